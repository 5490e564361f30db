"""What a later step sees of earlier ones: the right rows, in a file that only the site may read."""

import datetime as dt
import math
import resource
import stat
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer

from commonscale.categories import Dictionary
from commonscale.errors import ConfigError, DataChanged, StoreUnavailable, WrongType
from commonscale.estimators.assembly import FittedStep
from commonscale.estimators.encoders import FederatedOneHotEncoder
from commonscale.ordering import Floats
from commonscale.pipeline import Pipeline
from commonscale.sources.duckdb import DuckDbSource
from commonscale.sources.queries import Extremes, Frequencies, RowCount, Sums, TargetSums
from commonscale.sources.source import check
from commonscale.sources.view import view
from commonscale.transforms.base import named
from commonscale.transforms.encoding import OneHot
from commonscale.transforms.scaling import ZScore
from participant.results import StepResult, check_names


def source_of(directory: Path, text: str) -> DuckDbSource:
    (directory / "t.csv").write_text(text)
    return DuckDbSource("north", "main", directory / "t.csv", ["?"])


def doubled(rows: Any) -> Floats:
    return 2.0 * np.asarray(rows, dtype=float)


def lengths(rows: Any) -> Floats:
    """Missing texts have none."""
    return np.array([[np.nan if cell is None else len(cell) for cell in row] for row in rows])


def step(work: Callable[[Any], Floats], column: str, reads_texts: bool) -> FittedStep:
    return FittedStep(
        work.__name__, named(FunctionTransformer(work, feature_names_out="one-to-one"), [column]), reads_texts
    )


DOUBLE = step(doubled, "x", reads_texts=False)
LENGTH = step(lengths, "t", reads_texts=True)
TABLE = "x,y,t\n1,10,a\n,20,bb\n3,30,?\n"


def test_steps_are_applied_in_order(tmp_path: Path) -> None:
    """Each once, missing values stay missing, and the file is the owner's alone."""
    seen = view(source_of(tmp_path, TABLE), [DOUBLE, LENGTH, DOUBLE], ["x", "y", "t"], [], tmp_path / "s" / "1.parquet")
    np.testing.assert_array_equal(seen.answer(Extremes(("x", "y", "t"))), [[4, 10, 1], [12, 30, 2]])
    np.testing.assert_array_equal(seen.answer(Sums(("x", "t")))[0], [2, 2])
    assert stat.S_IMODE((tmp_path / "s" / "1.parquet").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_untouched_columns_come_from_the_source(tmp_path: Path) -> None:
    """Nothing is written for them."""
    source = source_of(tmp_path, TABLE)
    assert view(source, [DOUBLE], ["y"], ["t"], tmp_path / "1.parquet") is source
    assert not (tmp_path / "1.parquet").exists()


def test_raw_texts_stand_beside_made_numbers(tmp_path: Path) -> None:
    """With the site's own markers of what is missing."""
    seen = view(source_of(tmp_path, TABLE), [DOUBLE], ["x"], ["t"], tmp_path / "1.parquet")
    assert [dict(found) for found in seen.answer(Frequencies(("t",)))] == [{"a": 1, "bb": 1, None: 1}]
    assert [dict(found) for found in seen.answer(TargetSums(("t",), "x"))] == [
        {"a": (1, 2.0), "bb": (0, 0.0), None: (1, 6.0)}
    ]


def test_texts_are_compared_as_in_the_source(tmp_path: Path) -> None:
    """Whatever type a Parquet file has for them: Arrow would write other texts than those that sites compare."""
    moments = [dt.datetime(2020, 1, 2, 3, 4, 5), dt.datetime(2020, 1, 2), None]
    table = pa.table(
        {
            "x": [1.0, 2.0, 3.0],
            "double": [math.nan, 1e-7, 1e16],
            "half": pa.array([0.1, 2.5, None], pa.float32()),
            "money": pa.array([Decimal("1.50"), Decimal("2.00"), None], pa.decimal128(8, 2)),
            "moment": pa.array(moments, pa.timestamp("us")),
            "zone": pa.array(moments, pa.timestamp("ms", "Europe/Berlin")),
            "day": pa.array([dt.date(2020, 1, 2), None, dt.date(1999, 12, 31)]),
            "time": pa.array([dt.time(3, 4, 5), dt.time(3, 4, 5, 6), None]),
            "flag": [True, False, None],
            "count": [7, None, 2**53 + 1],
            "word": ["a", " a", ""],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    source = DuckDbSource("north", "main", tmp_path / "t.parquet")
    texts = tuple(name for name in table.column_names if name != "x")
    seen = view(source, [DOUBLE], ["x"], texts, tmp_path / "1.parquet")
    assert seen is not source
    assert seen.answer(Frequencies(texts)) == source.answer(Frequencies(texts))


def test_numbers_of_an_earlier_step_are_texts_as_any_number_is(tmp_path: Path) -> None:
    """1.0 is "1", and what is missing is missing."""
    seen = view(source_of(tmp_path, TABLE), [LENGTH], [], ["t"], tmp_path / "1.parquet")
    assert seen.answer(Frequencies(("t",))) == [{"1": 1, "2": 1, None: 1}]


def test_a_column_that_has_the_name_of_a_new_output_is_the_tables_own(tmp_path: Path) -> None:
    """An encoding's new columns are named by categories: a later step cannot mean them."""
    encoder = FederatedOneHotEncoder.fitted(["t"], [Dictionary(("a", "bb", None), (0, 1, 2), 3)])
    onehot = FittedStep("0-onehot", encoder, True)
    name = next(output for output in onehot.outputs if output.endswith("a"))
    source = source_of(tmp_path, TABLE.replace("y", name))
    assert view(source, [onehot], [name], [], tmp_path / "1.parquet") is source
    results = [StepResult(ZScore(columns=[name]), None, None), StepResult(OneHot(columns=["t"]), None, onehot)]
    job = Pipeline(sites=["a", "b", "c"], steps=[result.step for result in results])
    with pytest.raises(
        ConfigError, match="'0-onehot' makes a column whose name another step of the job uses"
    ) as caught:
        check_names(results, job)
    assert name not in str(caught.value)
    check_names(results, Pipeline(sites=["a", "b", "c"], steps=[ZScore(columns=["x"]), OneHot(columns=["t"])]))


def test_what_an_estimator_does_not_take_is_an_error_without_the_cell(tmp_path: Path) -> None:
    """That names the columns, and what to do."""
    bins = KBinsDiscretizer(2, encode="ordinal", strategy="uniform", subsample=None).fit([[0.0], [4.0]])
    kbins = FittedStep("0-kbins", named(bins, ["x"]), False)
    with pytest.raises(WrongType, match=r"value of 'x' that KBinsDiscretizer does not take, or lacks one\. Fill"):
        view(source_of(tmp_path, TABLE), [kbins], ["x"], [], tmp_path / "1.parquet")


def test_a_column_with_gaps_is_refused_where_a_step_takes_none(tmp_path: Path) -> None:
    """Before anything is opened; elsewhere gaps are allowed."""
    source = source_of(tmp_path, TABLE)
    assert check(source, ["x", "y"], [], ["y"])["x"] == "number"
    with pytest.raises(WrongType, match="north: column 'x' has missing values, which a step of the job does not take"):
        check(source, ["x", "y"], [], ["x"])


def test_a_table_without_rows_has_a_view(tmp_path: Path) -> None:
    """It adds nothing to the pooled numbers."""
    seen = view(source_of(tmp_path, "x,y,t\n"), [DOUBLE, LENGTH], ["x", "t"], [], tmp_path / "1.parquet")
    assert seen.answer(RowCount()) == 0
    np.testing.assert_array_equal(seen.answer(Sums(("x", "t"))), np.zeros((3, 2)))


def test_rows_that_change_meanwhile_are_noticed(tmp_path: Path) -> None:
    """A view is of the rows that the job began with."""
    source = source_of(tmp_path, TABLE)
    pinned = source.pinned(source.snapshot())
    (tmp_path / "t.csv").write_text(TABLE + "4,40,c\n")
    with pytest.raises(DataChanged):
        view(pinned, [DOUBLE], ["x"], [], tmp_path / "1.parquet")


def test_a_full_disk_is_a_wait(tmp_path: Path) -> None:
    """And the next attempt begins anew, whatever the first has left."""
    source = source_of(tmp_path, "x\n" + "\n".join(map(str, np.random.default_rng(1).random(20_000))) + "\n")
    before = source.answer(Sums(("x",)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreUnavailable, match=r"cannot be kept in .*: .*\. Make room; the job goes on by itself"):
            view(source, [DOUBLE], ["x"], [], tmp_path / "1.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    seen = view(source, [DOUBLE], ["x"], [], tmp_path / "1.parquet")
    np.testing.assert_allclose(seen.answer(Sums(("x",))), before * [[1], [2], [4]])
