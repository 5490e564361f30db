"""Many estimators over one table: as scikit-learn's ColumnTransformer, and the tables that are written with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from commonscale.errors import ConfigError
from commonscale.transforms import scaler, storage
from commonscale.transforms.categories import Dictionary
from commonscale.transforms.columns import FederatedColumnTransformer
from commonscale.transforms.encoders import FederatedOneHotEncoder, FederatedOrdinalEncoder
from commonscale.transforms.moments import Moments
from commonscale.transforms.text_encoders import RollingHashEncoder
from participant import transform
from participant.transform import write_transformed

SEX = Dictionary(("f", "m", None), (0, 1, 2), 3)
NUMBERS = Dictionary(("1", "2", "3"), (0, 1, 2), 3)


class FakeTable:
    """The table of a site, in memory; remembers what it was asked for."""

    name = "fake"

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.table = pa.table(columns)
        self.checked: list[str] = []

    def check_numeric(self, numeric: Sequence[str]) -> None:
        self.checked = list(numeric)

    def batches(self, numeric: Sequence[str], categorical: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        table = self.table
        for names, kind in ((numeric, pa.float64()), (categorical, pa.string())):
            for name in names:
                index = table.schema.get_field_index(name)
                table = table.set_column(index, name, table.column(name).cast(kind))
        yield from table.to_batches(max_chunksize=2)


def standard(*columns: str) -> Any:
    """Mean 1, standard deviation 2."""
    count = len(columns)
    return scaler.standard_scaler(Moments(columns, (9,) * count, (1.0,) * count, (4.0,) * count))


def mixed() -> FederatedColumnTransformer:
    """Scaled age, one-hot sex, and age as a category too."""
    return FederatedColumnTransformer.fitted(
        [
            ("scaled", standard("age"), ["age"]),
            ("sexes", FederatedOneHotEncoder.fitted(["sex"], [SEX], sparse_output=True), ["sex"]),
            ("codes", FederatedOrdinalEncoder.fitted(["age"], [NUMBERS]), ["age"]),
        ]
    )


def written(table: FakeTable, estimator: Any, path: Path) -> dict[str, list[Any]]:
    rows = sum(write_transformed(table, estimator, path))  # type: ignore[arg-type]
    found = pq.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)
    assert found.num_rows == rows
    return {name: found.column(name).to_pylist() for name in found.column_names}


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
    fitted = StandardScaler().fit(table[:, [2, 0]].astype(float))
    fitted.feature_names_in_ = np.array(["b", "a"], dtype=object)
    hot = FederatedOneHotEncoder.fitted(["sex"], [Dictionary(("m", "f"), (1, 0), 2)])
    ours = FederatedColumnTransformer.fitted([("scale", fitted, ["b", "a"]), ("hot", hot, ["sex"])])
    assert list(ours.feature_names_in_) == ["b", "a", "sex"]
    np.testing.assert_allclose(ours.transform(table[:, [2, 0, 1]]), expected, rtol=1e-12)


def test_columns_are_listed_by_first_use_and_by_kind() -> None:
    """One column may be both a number and a category."""
    made = mixed()
    assert list(made.feature_names_in_) == ["age", "sex"]
    assert made.n_features_in_ == 2
    assert made.numeric_columns_ == ["age"]
    assert made.categorical_columns_ == ["sex", "age"]


def test_a_missing_number_is_not_a_number() -> None:
    """Texts that are numbers count as numbers."""
    found = mixed().transform([[3, "f"], [None, None], ["1.0", "x"]])
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [[1, 1, 0, 0, 2], [math.nan, 0, 0, 1, -1], [0, 0, 0, 0, 0]])


def test_a_text_among_numbers_is_an_error_that_does_not_show_it() -> None:
    """The sentence names the column."""
    with pytest.raises(ValueError, match="'age'") as caught:
        mixed().transform([["secret", "f"]])
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_names_have_a_prefix_only_where_they_collide() -> None:
    """And then all that collide have one."""
    names = ["scaled__age", "sex_f", "sex_m", "sex_missing", "codes__age"]
    assert list(mixed().get_feature_names_out()) == names
    alone = FederatedColumnTransformer.fitted([("x", standard("age", "bmi"), ["age", "bmi"])])
    assert list(alone.get_feature_names_out(["age", "bmi"])) == ["age", "bmi"]
    odd = FederatedColumnTransformer.fitted(
        [("a", standard("x"), ["x"]), ("b", standard("x"), ["x"]), ("c", standard("a__x"), ["a__x"])]
    )
    assert len(set(odd.get_feature_names_out())) == 3


def test_a_column_transformer_survives_its_file(tmp_path: Path) -> None:
    """With all that is in it."""
    rows = [[3, "f"], [None, None]]
    storage.save(mixed(), tmp_path / "x.skops")
    again = storage.load(tmp_path / "x.skops")
    np.testing.assert_array_equal(again.transform(rows), mixed().transform(rows))
    assert list(again.get_feature_names_out()) == list(mixed().get_feature_names_out())
    assert again.categorical_columns_ == ["sex", "age"]


def test_a_file_with_another_type_is_not_loaded(tmp_path: Path) -> None:
    """Only our own classes are trusted beside scikit-learn's."""
    estimator = standard("age")
    estimator.extra_ = FakeTable({"a": [1]})
    with pytest.raises(Exception, match=r"FakeTable|serial|pickle"):  # noqa: PT012 - either may refuse it
        storage.save(estimator, tmp_path / "x.skops")
        storage.load(tmp_path / "x.skops")


def test_what_is_trusted_exists() -> None:
    """Every name is that of a class."""
    import importlib

    for name in storage.TRUSTED:
        module, _, kind = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), kind), type)


def test_transformers_that_do_not_fit_are_refused() -> None:
    """No two of one name, none without columns of its own; a clone is not fitted."""
    for bad in (
        [],
        [("a", standard("x"), ["x"]), ("a", standard("y"), ["y"])],
        [("a", standard("x"), ["y"])],
        [("a", StandardScaler(), ["x"])],
    ):
        with pytest.raises(ValueError, match=r"\.$"):
            FederatedColumnTransformer.fitted(bad)
    with pytest.raises(ValueError, match="2 columns"):
        mixed().transform([[1]])
    with pytest.raises(NotFittedError, match="a job"):
        clone(mixed()).fit([[1]])
    assert mixed().fit([[1]]).transform([[1, "f"]]).shape == (1, 5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_encoding_replaces_its_columns_at_the_end_of_the_table(tmp_path: Path, suffix: str) -> None:
    """Other columns keep their order and their cells."""
    table = FakeTable({"id": [1, 2, 3], "sex": ["f", "x", None], "note": ["a", "b", "c"]})
    found = written(table, FederatedOneHotEncoder.fitted(["sex"], [SEX]), tmp_path / f"out{suffix}")
    assert found == {
        "id": [1, 2, 3],
        "note": ["a", "b", "c"],
        "sex_f": [1, 0, 0],
        "sex_m": [0, 0, 0],
        "sex_missing": [0, 0, 1],
    }
    assert list(found) == ["id", "note", "sex_f", "sex_m", "sex_missing"]
    assert table.checked == []


def test_an_output_with_an_inputs_name_takes_its_place(tmp_path: Path) -> None:
    """Numbers and ordinals; a missing number stays missing."""
    table = FakeTable({"age": [3, None, 1], "id": [1, 2, 3], "sex": ["f", "m", "x"]})
    found = written(table, standard("age"), tmp_path / "a.parquet")
    assert list(found) == ["age", "id", "sex"]
    assert found["age"] == [1.0, None, 0.0]
    assert table.checked == ["age"]
    found = written(table, FederatedOrdinalEncoder.fitted(["sex"], [SEX]), tmp_path / "b.parquet")
    assert list(found) == ["age", "id", "sex"]
    assert found["sex"] == [0, 1, -1]


def test_a_column_in_two_roles_is_written_in_both(tmp_path: Path) -> None:
    """It is checked as a number, and read as text."""
    table = FakeTable({"age": [3, None, 1], "sex": ["f", "m", None], "id": [1, 2, 3]})
    found = written(table, mixed(), tmp_path / "a.parquet")
    assert list(found) == ["id", "scaled__age", "sex_f", "sex_m", "sex_missing", "codes__age"]
    assert found["scaled__age"] == [1.0, None, 0.0]
    assert found["codes__age"] == [2, -1, 0]
    assert table.checked == ["age"]


def test_an_output_that_would_hide_another_column_is_refused(tmp_path: Path) -> None:
    """The table's own column stays as it is, or nothing is written."""
    table = FakeTable({"sex": ["f"], "sex_f": [7]})
    with pytest.raises(ConfigError, match="sex_f"):
        written(table, FederatedOneHotEncoder.fitted(["sex"], [SEX]), tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()


def test_wide_encodings_are_written_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory is bounded whatever the width is."""
    monkeypatch.setattr(transform, "_CELLS_AT_ONCE", 100)
    table = FakeTable({"sex": ["f", "m", "x", None, "f"]})
    encoder = RollingHashEncoder.fitted(["sex"], buckets=90)
    assert list(write_transformed(table, encoder, tmp_path / "a.parquet")) == [1] * 5  # type: ignore[arg-type]
    rows = pq.read_table(tmp_path / "a.parquet")
    found = np.column_stack([column.to_numpy() for column in rows.columns])
    np.testing.assert_array_equal(found, encoder.transform([["f"], ["m"], ["x"], [None], ["f"]]))
