"""All steps of a job in one scikit-learn Pipeline: chained as the job ran them, by name and by position."""

import json
import math
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import KBinsDiscretizer, MinMaxScaler, OneHotEncoder, StandardScaler

from commonscale.categories import Dictionary
from commonscale.estimators import storage
from commonscale.estimators.assembly import FittedStep, assemble, table_and_outputs, table_columns
from commonscale.estimators.encoder import UnknownValueError
from commonscale.estimators.encoders import FederatedOneHotEncoder, FederatedOrdinalEncoder
from commonscale.estimators.text_encoders import FastTextEncoder
from commonscale.statistics.moments import Moments
from commonscale.transforms import scaling as scaler
from commonscale.transforms.base import named
from tests.patience import PATIENCE_S

# scikit-learn warns of rows with names where it expects none, and without where it expects some.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

SEX = Dictionary(("f", "m", None), (0, 1, 2), 3)
NUMBERS = Dictionary(("1", "2", "3"), (0, 1, 2), 3)
TRUTH = Dictionary(("true", "false", None), (0, 1, 2), 3)


def standard(*columns: str) -> Any:
    """Mean 1, standard deviation 2."""
    count = len(columns)
    return scaler.standard_scaler(Moments(columns, (9,) * count, (1.0,) * count, (4.0,) * count))


def numbers(name: str, *columns: str) -> FittedStep:
    """A step that scales."""
    return FittedStep(name, standard(*columns), False)


def mixed() -> Pipeline:
    """Scaled age, one-hot sex, and grades as categories."""
    return assemble(
        [
            numbers("scaled", "age"),
            FittedStep("sexes", FederatedOneHotEncoder.fitted(["sex"], [SEX], sparse_output=True), True),
            FittedStep("codes", FederatedOrdinalEncoder.fitted(["grade"], [NUMBERS]), True),
        ]
    )


def chain(rows: np.ndarray) -> tuple[list[FittedStep], np.ndarray]:
    """Impute a and b, scale c and a, bin a: scikit-learn's own on the rows a, b, c, and what they make of them."""
    made = rows.copy()
    imputer = SimpleImputer(strategy="median", keep_empty_features=True).fit(made[:, [0, 1]])
    made[:, [0, 1]] = imputer.transform(made[:, [0, 1]])
    scaled = StandardScaler().fit(made[:, [2, 0]])
    made[:, [2, 0]] = scaled.transform(made[:, [2, 0]])
    bins = KBinsDiscretizer(3, encode="onehot-dense", strategy="uniform").fit(np.array([[-1.0], [1.0]]))
    hot = bins.transform(made[:, [0]])
    steps = [
        FittedStep("impute", named(imputer, ("a", "b")), False),
        FittedStep("scale", named(scaled, ("c", "a")), False),
        FittedStep("bin", named(bins, ("a",)), False),
    ]
    return steps, np.column_stack([made[:, 1:], hot])


cells = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan))


@settings(max_examples=40)
@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=2, max_size=12))
def test_a_chain_does_what_its_steps_do_one_after_another(rows: list[tuple[float, float, float]]) -> None:
    """Impute, then scale, then bin; arrays by position, DataFrames by name in any order and with other columns."""
    pandas = pytest.importorskip("pandas")
    table = np.array(rows)
    steps, expected = chain(table)
    made = assemble(steps)
    assert list(made.get_feature_names_out()) == ["b", "c", "a_0.0", "a_1.0", "a_2.0"]
    assert list(made.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_array_equal(made.transform(table), expected)
    frame = pandas.DataFrame(table, columns=["a", "b", "c"]).assign(other="x")[["c", "other", "b", "a"]]
    np.testing.assert_array_equal(made.transform(frame), expected)
    assert made.transform(frame).dtype == np.float64


@given(
    rows=st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.sampled_from(["f", "m"]), st.floats(-1e6, 1e6)), min_size=2, max_size=20
    )
)
def test_outputs_are_those_of_scikit_learns_own(rows: list[tuple[float, str, float]]) -> None:
    """On the pooled table, with values known in its order."""
    table = np.array(rows, dtype=object)
    theirs = ColumnTransformer(
        [("scale", StandardScaler(), [2, 0]), ("hot", OneHotEncoder(categories=[["f", "m"]]), [1])], sparse_threshold=0
    )
    expected = theirs.fit_transform(table)
    fitted = named(StandardScaler().fit(table[:, [2, 0]].astype(float)), ("b", "a"))
    hot = FederatedOneHotEncoder.fitted(["sex"], [Dictionary(("m", "f"), (1, 0), 2)])
    ours = assemble([FittedStep("scale", fitted, False), FittedStep("hot", hot, True)])
    assert list(ours.feature_names_in_) == ["b", "a", "sex"]
    np.testing.assert_allclose(ours.transform(table[:, [2, 0, 1]]), expected, rtol=1e-12)


def test_a_missing_name_is_named() -> None:
    """As scikit-learn's ColumnTransformer does."""
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"columns are missing: \{'sex'\}"):
        mixed().transform(pandas.DataFrame({"age": [1.0], "grade": [1]}))


def test_columns_are_listed_by_first_use_and_by_kind() -> None:
    """Of all steps, and of an estimator alone, which is of one kind."""
    made = mixed()
    assert list(made.feature_names_in_) == ["age", "sex", "grade"]
    assert made.n_features_in_ == 3
    assert table_columns(made) == (["age"], ["sex", "grade"])
    assert table_columns(standard("age", "bmi")) == (["age", "bmi"], [])
    assert table_columns(FederatedOrdinalEncoder.fitted(["sex"], [SEX])) == ([], ["sex"])


def test_a_missing_number_is_not_a_number() -> None:
    """Texts that are numbers count as numbers."""
    found = mixed().transform([[3, "f", 3], [None, None, None], ["1.0", "x", "1.0"]])
    assert found.dtype == np.float64
    assert list(mixed().get_feature_names_out()) == ["age", "sex_f", "sex_m", "sex_missing", "grade"]
    np.testing.assert_array_equal(found, [[1, 1, 0, 0, 2], [math.nan, 0, 0, 1, -1], [0, 0, 0, 0, 0]])


def test_cells_of_frames_stay_what_they_are_beside_floats() -> None:
    """True is "true" and not 1.0, a time is a time, a long integer keeps its digits, pandas.NA is missing."""
    pandas = pytest.importorskip("pandas")
    long = "9007199254740993"
    when = Dictionary(("2020-01-02 00:00:00", None), (0, 1), 2)
    encoder = FederatedOrdinalEncoder.fitted(["b", "t", "i"], [TRUTH, when, Dictionary((long, None), (0, 1), 2)])
    made = assemble([numbers("scaled", "age"), FittedStep("codes", encoder, True)])
    frame = pandas.DataFrame(
        {
            "age": [1.0, 3.0],
            "b": pandas.array([True, None], dtype="boolean"),
            "t": pandas.to_datetime(["2020-01-02", None]),
            "i": pandas.array([int(long), None], dtype="Int64"),
        }
    )
    np.testing.assert_array_equal(made.transform(frame), [[0, 0, 0, 0], [1, 2, 1, 1]])
    whole = frame.iloc[:1].astype({"b": bool, "i": "int64"})
    np.testing.assert_array_equal(made.transform(whole), [[0, 0, 0, 0]])
    np.testing.assert_array_equal(encoder.transform(whole[["i", "b", "t"]]), [[0, 0, 0]])


def test_texts_between_numbers_of_scikit_learns_own_stay_texts() -> None:
    """Also without any class of ours: True is not 1.0 when it comes to a text step."""
    pandas = pytest.importorskip("pandas")
    imputer = SimpleImputer(strategy="constant", missing_values=None, fill_value="none", keep_empty_features=True)
    imputer = named(imputer.fit(np.array([["x"], [None]], dtype=object)), ("word",))
    steps = [numbers("scale", "age"), FittedStep("fill", imputer, True)]
    made = assemble(steps)
    assert made.transform([[3.0, None], [None, "y"]])[0].tolist() == [1.0, "none"]
    assert made.transform(pandas.DataFrame({"word": [True], "age": [3]})).tolist() == [[1.0, True]]
    assert table_and_outputs(steps)[1] == {"age": "number", "word": "text"}
    dumped = skops.io.dumps(made)
    assert skops.io.get_untrusted_types(data=dumped) == ["numpy.dtype"], "which SimpleImputer holds"


def test_a_filled_text_is_encoded_in_a_later_stage() -> None:
    """With a number that passes by: it comes out as a number."""
    imputer = SimpleImputer(strategy="constant", missing_values=None, fill_value="f", keep_empty_features=True)
    imputer = named(imputer.fit(np.array([["x"], [None]], dtype=object)), ("sex",))
    made = assemble(
        [
            numbers("scale", "age"),
            FittedStep("fill", imputer, True),
            FittedStep("hot", FederatedOneHotEncoder.fitted(["sex"], [SEX]), True),
        ]
    )
    found = made.transform([[3.0, None], [None, "m"], [-0.0, "x"]])
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [[1, 1, 0, 0], [math.nan, 0, 1, 0], [-0.5, 0, 0, 0]])
    assert list(made.named_steps) == ["table", "stage_1", "stage_2", "order"]


def test_steps_that_do_not_wait_stand_side_by_side() -> None:
    """One stage for two steps on other columns; a step that reads what another makes is in the next."""
    assert [name for name, _ in mixed().steps] == ["table", "stage_1"]
    made = assemble([numbers("a", "x"), numbers("b", "y"), numbers("c", "y", "x"), numbers("d", "z")])
    assert [name for name, _ in made.steps] == ["table", "stage_1", "stage_2", "order"]
    assert list(made.get_feature_names_out()) == ["x", "y", "z"], "each in the place of its input"
    np.testing.assert_array_equal(made.transform([[1.0, 5.0, 3.0]]), [[-0.5, 0.5, 1.0]])


def test_a_column_is_replaced_only_after_all_have_read_it() -> None:
    """A step of a later stage still sees the column as it was when its turn came."""
    made = assemble([numbers("a", "x"), numbers("b", "x", "y"), numbers("c", "y"), numbers("d", "y", "x")])
    assert list(made.get_feature_names_out()) == ["x", "y"]
    np.testing.assert_array_equal(made.transform([[3.0, 9.0]]), [[-0.5, 0.25]])


def test_a_name_may_come_to_mean_another_column() -> None:
    """Once its first meaning is used up; whoever makes it anew comes after those who read it before."""

    def coded(name: str, column: str, value: str) -> FittedStep:
        return FittedStep(name, FederatedOneHotEncoder.fitted([column], [Dictionary((value,), (0,), 1)]), True)

    # x_y of the table is used up by c, and then is what d makes of x.
    steps = [
        coded("a", "p", "q"),
        coded("b", "p_q", "1"),
        coded("c", "x_y", "w"),
        coded("d", "x", "y"),
        numbers("e", "x_y"),
    ]
    made = assemble(steps)
    assert list(made.feature_names_in_) == ["p", "x_y", "x"]
    assert list(made.get_feature_names_out()) == ["p_q_1", "x_y_w", "x_y"]
    np.testing.assert_array_equal(made.transform([["q", "w", "y"], ["-", "-", "-"]]), [[1, 1, 0], [0, 0, -0.5]])


def test_every_stage_says_what_comes_from_whom() -> None:
    """As a ColumnTransformer that scikit-learn has fitted: steps with their outputs, and what passes by them."""
    stage = mixed()["stage_1"]
    assert {name: stage.output_indices_[name] for name in ("scaled", "sexes", "codes", "remainder")} == {
        "scaled": slice(0, 1), "sexes": slice(1, 4), "codes": slice(4, 5), "remainder": slice(0, 0),
    }  # fmt: skip
    later = assemble([numbers("a", "x", "y"), numbers("b", "y")])["stage_2"]
    assert (later.output_indices_["b"], later.output_indices_["numbers_kept"]) == (slice(0, 1), slice(1, 2))
    assert [type(each).__name__ for _, each, _ in later.transformers] == ["StandardScaler", "FunctionTransformer"]


def test_a_made_column_may_be_scaled() -> None:
    """It keeps its place among those that were made with it."""
    made = assemble([FittedStep("hot", FederatedOneHotEncoder.fitted(["sex"], [SEX]), True), numbers("scale", "sex_m")])
    assert list(made.get_feature_names_out()) == ["sex_f", "sex_m", "sex_missing"]
    np.testing.assert_array_equal(made.transform([["f"], ["m"]]), [[1, -0.5, 0], [0, 0, 0]])


@settings(max_examples=25)
@given(names=st.lists(st.text(max_size=8), min_size=2, max_size=4, unique=True))
def test_columns_may_have_any_names(names: list[str]) -> None:
    """With braces, underscores, names of scikit-learn's own parameters, or nothing at all."""
    usable = [name.replace("\0", "") for name in ["remainder", "{x}", "a__b", *names]]
    usable = list(dict.fromkeys(usable))
    made = assemble([numbers("s", *usable), numbers("t", usable[-1])])
    assert list(made.get_feature_names_out()) == usable
    expected = np.array([[1.0] * (len(usable) - 1) + [0.0]])
    np.testing.assert_array_equal(made.transform(np.full((1, len(usable)), 3.0)), expected)


def test_frames_come_out_with_the_same_names() -> None:
    """Where the user asks scikit-learn for them: of chains, of steps side by side, of encoders."""
    pandas = pytest.importorskip("pandas")
    table = np.array([[math.nan, 2.0, 3.0], [4.0, math.nan, 0.0]])
    steps, expected = chain(table)
    frame = pandas.DataFrame(table, columns=["a", "b", "c"])
    with pytest.warns(UserWarning, match="X has feature names"):
        found = assemble(steps).set_output(transform="pandas").transform(frame)
    assert list(found.columns) == ["b", "c", "a_0.0", "a_1.0", "a_2.0"]
    np.testing.assert_array_equal(found.to_numpy(), expected)
    codes = FederatedOrdinalEncoder.fitted(["sex", "grade"], [SEX, NUMBERS])
    both = assemble([numbers("scaled", "age"), numbers("bmi", "bmi"), FittedStep("codes", codes, True)])
    rows = pandas.DataFrame({"sex": ["m"], "age": [3], "grade": [3], "bmi": [1]})
    with pytest.warns(UserWarning, match="X has feature names"):
        found = both.set_output(transform="pandas").transform(rows)
    assert found.to_dict("list") == {"age": [1.0], "bmi": [0.0], "sex": [1.0], "grade": [2.0]}
    assert list(found.columns) == ["age", "bmi", "sex", "grade"]


def test_a_pipeline_survives_its_file(tmp_path: Path) -> None:
    """With all that is in it."""
    rows = [[3, "f", 1], [None, None, None]]
    storage.save(mixed(), tmp_path / "x.skops")
    again = storage.load(tmp_path / "x.skops")
    np.testing.assert_array_equal(again.transform(rows), mixed().transform(rows))
    assert list(again.get_feature_names_out()) == list(mixed().get_feature_names_out())
    assert table_columns(again) == table_columns(mixed())


def test_numbers_alone_are_kept_in_classes_of_scikit_learn() -> None:
    """A file of them needs no trust in any other class, columns that pass by and their order included."""
    minmax = named(MinMaxScaler().fit([[0.0], [2.0]]), ("y",))
    made = assemble([numbers("a", "x", "y"), FittedStep("b", minmax, False)])
    assert list(made.named_steps) == ["table", "stage_1", "stage_2", "order"]
    dumped = skops.io.dumps(made)
    assert skops.io.get_untrusted_types(data=dumped) == []
    np.testing.assert_array_equal(skops.io.loads(dumped).transform([[5.0, 3.0]]), [[2.0, 0.5]])


@pytest.mark.long
def test_a_file_loads_with_scikit_learn_and_skops_alone(tmp_path: Path) -> None:
    """In an environment that has neither this package nor pandas."""
    table = np.array([[math.nan, 2.0, 3.0], [4.0, math.nan, 0.0]])
    steps, expected = chain(table)
    storage.save(assemble(steps), tmp_path / "pipeline.skops")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    wanted = [f"{name}=={metadata.version(name)}" for name in ("scikit-learn", "skops")]
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True, timeout=600)
    script = """
import importlib.util, json, sys
import numpy as np, skops.io
assert not any(map(importlib.util.find_spec, ("commonscale", "pandas", "pyarrow")))
made = skops.io.load("pipeline.skops", trusted=["numpy.dtype"])
table = np.array([[np.nan, 2.0, 3.0], [4.0, np.nan, 0.0]])
print(json.dumps([made.transform(table).tolist(), made.get_feature_names_out().tolist()]))
"""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-W", "error::UserWarning", "-c", script],
        cwd=tmp_path, env=bare, capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    values, names = json.loads(done.stdout)
    np.testing.assert_array_equal(values, expected)
    assert names == ["b", "c", "a_0.0", "a_1.0", "a_2.0"]


def test_a_file_with_another_type_is_not_loaded(tmp_path: Path) -> None:
    """Only our own classes are trusted beside scikit-learn's."""

    class Stranger:
        pass

    estimator = standard("age")
    estimator.extra_ = Stranger()
    with pytest.raises(Exception, match=r"Stranger|serial|pickle"):  # noqa: PT012 - either may refuse it
        storage.save(estimator, tmp_path / "x.skops")
        storage.load(tmp_path / "x.skops")


def test_what_is_trusted_exists() -> None:
    """Every name is that of a class."""
    import importlib

    for name in storage.TRUSTED:
        module, _, kind = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), kind), type)


def test_nothing_learns_from_rows() -> None:
    """A fit on other rows, in another order or of a clone changes nothing."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"sex": ["f"], "grade": [2], "age": [1]})
    for made in (mixed(), clone(mixed())):
        before = made.transform(frame)
        np.testing.assert_array_equal(made.fit(frame).transform(frame), before)
        assert made.fit_transform(frame).shape == (1, 5)


def test_assembling_opens_no_model_and_needs_no_known_value() -> None:
    """A dictionary without values refuses all later ones, but it can be put together."""
    strict = FederatedOneHotEncoder.fitted(["sex"], [Dictionary((), (), 2)], handle_unknown="error")
    model = FastTextEncoder.fitted(["word"], "/nowhere.bin", 3, "00" * 32)
    made = assemble([FittedStep("hot", strict, True), FittedStep("words", model, True)])
    assert list(made.get_feature_names_out()) == ["sex_#0", "sex_#1", "word_0", "word_1", "word_2"]
    with pytest.raises(UnknownValueError):
        made.transform([["f", "x"]])


def test_steps_that_do_not_fit_are_refused() -> None:
    """No two of one name in a stage, no output that hides another, nothing that is gone, no rows of another width."""
    hot = FittedStep("hot", FederatedOneHotEncoder.fitted(["sex"], [SEX]), True)
    for bad, words in (
        ([numbers("a", "x"), numbers("a", "y")], "not unique"),
        ([numbers("a", "sex_f"), hot], "'hot' makes a column 'sex_f', and there is one already"),
        ([hot, numbers("a", "sex")], "'a' names column 'sex', which an earlier step has replaced"),
    ):
        with pytest.raises(ValueError, match=words):
            assemble(bad)
    with pytest.raises(ValueError, match="1 features"):
        mixed().transform([[1]])
