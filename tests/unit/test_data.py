"""A site's table: aggregates as numpy computes them, faults as sentences that show no cell."""

from __future__ import annotations

import datetime as dt
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonscale.config import DataSource
from commonscale.errors import DataChanged, InfiniteValues, MissingColumn, UnreadableData, WrongType
from commonscale.transforms import scaler
from commonscale.transforms.categories import TextRules, canonical
from commonscale.transforms.moments import Moments
from participant.data import DuckTable
from participant.transform import write_transformed
from tests.federation import NumpyTable

COLUMNS = ["age", 'odd "name"', "x y"]


def table(path: Path, missing: list[str] | None = None) -> DuckTable:
    return DuckTable("north", "main", DataSource(path=path, missing=missing or []))


def write_csv(path: Path, text: str) -> DuckTable:
    path.write_text(text)
    return table(path, ["?"])


def write_parquet(path: Path, rows: np.ndarray) -> DuckTable:
    pq.write_table(pa.table({c: pa.array(rows[:, i]) for i, c in enumerate(COLUMNS)}), path)
    return table(path)


cells = st.one_of(st.floats(-1e12, 1e12), st.just(float("nan")), st.sampled_from([0.0, -0.0, 1e-9, 1.0, 1.0]))


@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=30))
def test_parquet_aggregates_equal_numpy(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, ...]]
) -> None:
    """Counts, sums, squares and deviations, with missing values, ties and extremes."""
    array = np.array(rows)
    duck = write_parquet(tmp_path_factory.mktemp("t") / "t.parquet", array)
    reference = NumpyTable(COLUMNS, array)
    np.testing.assert_allclose(duck.sums(COLUMNS), reference.sums(COLUMNS), rtol=1e-12, atol=1e-3)
    means = [float(np.nan_to_num(m)) for m in (1.5, -2.25, 1e6)]
    got, expected = duck.deviations(COLUMNS, means), reference.deviations(COLUMNS, means)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-3)


def test_csv_cells_are_read_exactly(tmp_path: Path) -> None:
    """Integers, floats, missing marks and empty cells."""
    duck = write_csv(tmp_path / "t.csv", "a,b\n1,0.5\n2,?\n,0.25\n4,\n")
    assert duck.sums(["a", "b"]) == [(3, 7.0, 21.0), (2, 0.75, 0.3125)]
    assert duck.row_count() == 4


def test_types_come_from_all_rows_not_the_first(tmp_path: Path) -> None:
    """A text in row 30,000 makes a text column, found before the job instead of in its middle."""
    duck = write_csv(tmp_path / "t.csv", "a\n" + "1\n" * 30_000 + "unknown\n")
    with pytest.raises(WrongType, match=r"north: column 'a' holds text"):
        duck.check_numeric(["a"])


@pytest.mark.parametrize(
    ("text", "column", "error", "words"),
    [
        ("a\n1\n", "b", MissingColumn, "north has no column 'b'"),
        ("a\nSECRET\n", "a", WrongType, "holds text"),
        ("a\ntrue\nfalse\n", "a", WrongType, "holds boolean"),
        ("a\n2020-01-01\n", "a", WrongType, "holds time"),
        ("a\n1\ninf\n", "a", InfiniteValues, "column 'a' holds infinities"),
    ],
)
def test_unfit_columns_are_named(tmp_path: Path, text: str, column: str, error: type[Exception], words: str) -> None:
    """Site and column, but no cell."""
    duck = write_csv(tmp_path / "t.csv", text)
    with pytest.raises(error, match=words) as caught:
        duck.check_numeric([column])
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("text", ["a,b\n", "a,b\n,1\n,2\n", "a,b\n5,1\n"])
def test_empty_all_missing_and_single_row_tables_are_fit(tmp_path: Path, text: str) -> None:
    """Each contributes what it has, also nothing."""
    duck = write_csv(tmp_path / "t.csv", text)
    duck.check_numeric(["a"])
    count, total, _ = duck.sums(["a"])[0]
    assert (count, total) == ((1, 5.0) if "5" in text else (0, 0.0))
    assert duck.deviations(["a"], [5.0]) == [(0.0, 0.0)]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the key to mend."""
    with pytest.raises(UnreadableData, match="no file at"):
        table(tmp_path / "nothing.csv").types()


def test_an_unreadable_file_shows_none_of_its_bytes(tmp_path: Path) -> None:
    """A Parquet file that is none."""
    (tmp_path / "t.parquet").write_bytes(b"SECRET" * 50)
    with pytest.raises(UnreadableData) as caught:
        table(tmp_path / "t.parquet").types()
    assert "SECRET" not in str(caught.value)


def test_data_that_changes_during_a_job_ends_it(tmp_path: Path) -> None:
    """The second pass must see the table of the first."""
    duck = write_csv(tmp_path / "t.csv", "a\n1\n2\n")
    pinned = duck.pinned(duck.fingerprint())
    pinned.sums(["a"])
    (tmp_path / "t.csv").write_text("a\n1\n3\n")
    os.utime(tmp_path / "t.csv", ns=(1, 1))
    with pytest.raises(DataChanged, match="north: the files of data set 'main' changed"):
        pinned.deviations(["a"], [1.5])


def test_several_parquet_files_are_one_table(tmp_path: Path) -> None:
    """A path may be a pattern."""
    for number in range(3):
        write_parquet(tmp_path / f"p{number}.parquet", np.full((2, 3), float(number)))
    assert table(tmp_path / "p*.parquet").sums(["age"]) == [(6, 6.0, 10.0)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_transform_writes_the_scaled_table(tmp_path: Path, suffix: str) -> None:
    """Scaled columns are scaled, others pass through, missing values stay missing."""
    duck = write_csv(tmp_path / "in.csv", "name,a\nx,1\ny,\nz,3\n")
    fitted = scaler.standard_scaler(Moments(("a",), (2,), (2.0,), (4.0,)))
    output = tmp_path / f"out{suffix}"
    assert sum(write_transformed(duck, fitted, output)) == 3
    again = table(output)
    assert again.sums(["a"]) == [(2, 0.0, 0.5)]
    assert again.types()["name"] == "VARCHAR"


def test_a_million_rows_never_become_python_objects(tmp_path: Path) -> None:
    """Python's own memory stays small while DuckDB passes over a million rows."""
    rows = np.random.default_rng(0).normal(size=(1_000_000, 3))
    duck = write_parquet(tmp_path / "t.parquet", rows)
    tracemalloc.start()
    try:
        totals = duck.sums(COLUMNS)
        duck.deviations(COLUMNS, [0.0, 0.0, 0.0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose([total for _, total, _ in totals], rows.sum(axis=0), rtol=1e-9)
    assert peak < 1 << 20


RULES = TextRules()


def test_a_quote_that_comes_late_is_no_part_of_a_category(tmp_path: Path) -> None:
    """Thirty thousand plain rows, then quoted cells: texts are read as the table is."""
    path = tmp_path / "late.csv"
    late = '1,"y"\n2,"a, b"\n3,"say ""hi"""\n'
    path.write_text("n,word\n" + "0,x\n" * 30_000 + late, encoding="utf-8")
    table = DuckTable("here", "main", DataSource(path=path))
    assert table.categories(["word"], RULES) == [{"x": 30_000, "y": 1, "a, b": 1, 'say "hi"': 1}]
    assert table.target_sums(["word"], "n", RULES)[0]["a, b"] == (1, 2.0)


def test_a_marker_of_missing_cells_may_stand_among_spaces(tmp_path: Path) -> None:
    """As in the original Adult files; in CSV and Parquet alike."""
    path = tmp_path / "a.csv"
    path.write_text("n,word\n1, ?\n2,?\n3, Private\n", encoding="utf-8")
    parquet = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2, 3], "word": [" ?", "?", " Private"]}), parquet)
    for file in (path, parquet):
        table = DuckTable("here", "main", DataSource(path=file, missing=["?"]))
        assert table.categories(["word"], RULES) == [{None: 2, "Private": 1}]
        (batch,) = table.batches([], ["word"])
        assert [canonical(cell) for cell in batch.column("word").to_pylist()] == [None, None, "Private"]


def test_typed_columns_have_the_texts_that_a_person_would_write(tmp_path: Path) -> None:
    """32-bit numbers, booleans, dates and times of a Parquet file equal the same cells of a CSV file."""
    path, parquet = tmp_path / "a.csv", tmp_path / "a.parquet"
    path.write_text("f,b,d,t,i\n0.1,True,2020-01-02,2020-01-02 03:04:05,007\n", encoding="utf-8")
    when = dt.datetime(2020, 1, 2, 3, 4, 5)
    columns = {
        "f": pa.array([0.1], pa.float32()), "b": [True], "d": [when.date()], "t": pa.array([when], pa.timestamp("us")),
        "i": ["007"],
    }  # fmt: skip
    pq.write_table(pa.table(columns), parquet)
    names = list(columns)
    found = [DuckTable("here", "main", DataSource(path=file)).categories(names, RULES) for file in (path, parquet)]
    assert found[0] == found[1]
    assert found[0][0] == {"0.1": 1}
    assert found[0][4] == {"007": 1}


def test_bytes_are_no_category(tmp_path: Path) -> None:
    """A column of bytes is refused by name."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"raw": [b"Private"]}), path)
    with pytest.raises(WrongType, match="column 'raw' holds bytes"):
        DuckTable("here", "main", DataSource(path=path)).categories(["raw"], RULES)
