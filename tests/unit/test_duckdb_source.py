"""Files read by DuckDB: what tests/contract cannot ask of every source."""

import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commonscale.categories import TextRules
from commonscale.errors import DataChanged, InfiniteValues, MissingColumn, TooManyCategories, UnreadableData, WrongType
from commonscale.sources import duckdb as duckdb_source
from commonscale.sources.duckdb import DuckDbSource
from commonscale.sources.duckdb_files import DuckDbFiles
from commonscale.sources.queries import CountsAt, Cuts, Extremes, Frequencies, Query, RowCount, Sums, TargetSums
from commonscale.sources.source import check
from tests.patience import PATIENCE_S

RULES = TextRules()
LAST = (1 << 64) - 1


def source_at(path: Path, *missing: str) -> DuckDbSource:
    return DuckDbSource("north", "main", path, missing)


def csv_source(path: Path, text: str) -> DuckDbSource:
    path.write_text(text, encoding="utf-8")
    return source_at(path, "?")


def parquet_source(path: Path, **columns: Any) -> DuckDbSource:
    pq.write_table(pa.table(columns), path)
    return source_at(path)


def test_csv_cells_are_read_exactly(tmp_path: Path) -> None:
    """Integers, floats, missing marks and empty cells."""
    source = csv_source(tmp_path / "t.csv", "a,b\n1,0.5\n2,?\n,0.25\n4,\n")
    assert source.answer(Sums(("a", "b"))).tolist() == [[3, 2], [7.0, 0.75], [21.0, 0.3125]]
    assert source.answer(RowCount()) == 4


def test_types_come_from_all_rows_not_the_first(tmp_path: Path) -> None:
    """A text in row 30,000 makes a text column, found before the job instead of in its middle."""
    source = csv_source(tmp_path / "t.csv", "a\n" + "1\n" * 30_000 + "unknown\n")
    with pytest.raises(WrongType, match=r"north: column 'a' holds text"):
        check(source, ["a"], [])


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
    source = csv_source(tmp_path / "t.csv", text)
    with pytest.raises(error, match=words) as caught:
        check(source, [column], [])
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("text", ["a,b\n", "a,b\n,1\n,2\n", "a,b\n5,1\n"])
def test_empty_all_missing_and_single_row_tables_are_fit(tmp_path: Path, text: str) -> None:
    """Each contributes what it has, also nothing."""
    source = csv_source(tmp_path / "t.csv", text)
    check(source, ["a"], [])
    count, total, _ = source.answer(Sums(("a",)))[:, 0]
    assert (count, total) == ((1, 5.0) if "5" in text else (0, 0.0))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the key to mend."""
    with pytest.raises(UnreadableData, match="no file at"):
        source_at(tmp_path / "nothing.csv").schema()


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_an_unreadable_file_shows_none_of_its_bytes(tmp_path: Path, name: str) -> None:
    """A Parquet file that is none, a CSV file that is no text."""
    (tmp_path / name).write_bytes(b"SECRET\xff\xfe\x00" * 50)
    with pytest.raises(UnreadableData, match="north: data set 'main' cannot be read") as caught:
        source_at(tmp_path / name).schema()
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("rows", [1, 9])
def test_other_rows_under_a_pass_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Parquet files are read at every pass: it must see as many rows as were counted."""
    source = parquet_source(tmp_path / "t.parquet", a=[1.0, 2.0, 3.0])
    source.answer(RowCount())
    # As if the file changed just after it was looked at.
    snapshot = source.snapshot()
    monkeypatch.setattr(source, "snapshot", lambda: snapshot)
    parquet_source(tmp_path / "t.parquet", a=[1.0] * rows)
    with pytest.raises(DataChanged):
        source.answer(CountsAt(("a",), (Cuts(0, LAST),)))


def test_several_parquet_files_are_one_table(tmp_path: Path) -> None:
    """A path may be a pattern; a further file is another snapshot."""
    for number in range(3):
        parquet_source(tmp_path / f"p{number}.parquet", age=np.full(2, float(number)))
    source = source_at(tmp_path / "p*.parquet")
    assert source.answer(Sums(("age",))).tolist() == [[6], [6.0], [10.0]]
    pinned = source.pinned(source.snapshot())
    parquet_source(tmp_path / "p3.parquet", age=np.full(2, 3.0))
    with pytest.raises(DataChanged):
        pinned.answer(Sums(("age",)))
    assert source.answer(Sums(("age",))).tolist() == [[8], [12.0], [28.0]]


def test_a_quote_that_comes_late_is_no_part_of_a_category(tmp_path: Path) -> None:
    """Thirty thousand plain rows, then quoted cells: texts are read as the table is."""
    late = '1,"y"\n2,"a, b"\n3,"say ""hi"""\n'
    source = csv_source(tmp_path / "late.csv", "n,word\n" + "0,x\n" * 30_000 + late)
    assert source.answer(Frequencies(("word",), RULES)) == [{"x": 30_000, "y": 1, "a, b": 1, 'say "hi"': 1}]
    assert source.answer(TargetSums(("word",), "n", RULES))[0]["a, b"] == (1, 2.0)


def test_an_apostrophe_is_no_quote(tmp_path: Path) -> None:
    """Two of them are a text, not an empty cell."""
    source = csv_source(tmp_path / "t.csv", "word;n\n'';1.5\n'x';1.5\nso it is text;1.5\n")
    assert source.answer(Frequencies(("word",), RULES)) == [{"''": 1, "'x'": 1, "so it is text": 1}]


def test_typed_columns_have_the_texts_that_a_person_would_write(tmp_path: Path) -> None:
    """32-bit numbers, booleans, dates and times of a Parquet file equal the same cells of a CSV file."""
    when = dt.datetime(2020, 1, 2, 3, 4, 5)
    text = "f,b,d,t,i\n0.1,True,2020-01-02,2020-01-02 03:04:05,007\n"
    columns = {
        "f": pa.array([0.1], pa.float32()), "b": [True], "d": [when.date()], "t": pa.array([when], pa.timestamp("us")),
        "i": ["007"],
    }  # fmt: skip
    sources = csv_source(tmp_path / "a.csv", text), parquet_source(tmp_path / "a.parquet", **columns)
    found = [source.answer(Frequencies(tuple(columns), RULES)) for source in sources]
    assert found[0] == found[1]
    assert found[0][0] == {"0.1": 1}
    assert found[0][4] == {"007": 1}


def test_bytes_are_neither_number_nor_category(tmp_path: Path) -> None:
    """A column of bytes is refused by name; one without any value fits all."""
    source = parquet_source(tmp_path / "a.parquet", raw=[b"Private"], empty=pa.array([None], pa.binary()))
    assert source.schema() == {"raw": "bytes", "empty": "number"}
    query = Frequencies(("raw",), RULES)
    for refused in (lambda: check(source, [], ["raw"]), lambda: source.answer(query)):
        with pytest.raises(WrongType, match="north: column 'raw' holds bytes, not texts"):
            refused()
    with pytest.raises(WrongType, match="column 'raw' holds bytes, not numbers"):
        check(source, ["raw"], [])
    assert check(source, ["empty"], ["empty"]) == {"empty": "number"}
    assert source.answer(Frequencies(("empty",), RULES)) == [{None: 1}]
    assert source.answer(Sums(("empty",))).tolist() == [[0], [0], [0]]


def test_every_type_of_number_is_a_number(tmp_path: Path) -> None:
    """Of Parquet files: small and large integers, with and without sign, decimals and floats; lists are not."""
    types = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    types += [pa.float32(), pa.float64(), pa.decimal128(38, 3)]
    columns = {str(kind): pa.array([1, None, 2], pa.int64()).cast(kind) for kind in types}
    lists = pa.array([[1.0], None, []], pa.list_(pa.float64()))
    source = parquet_source(tmp_path / "a.parquet", **columns, lists=lists)
    assert source.schema() == dict.fromkeys(columns, "number") | {"lists": "text"}
    names = tuple(columns)
    assert source.answer(Sums(names)).T.tolist() == [[2, 3, 5]] * len(names)
    assert source.answer(Extremes(names)).T.tolist() == [[1, 2]] * len(names)


def test_huge_integers_of_a_csv_file_are_numbers(tmp_path: Path) -> None:
    """Beyond 64 bits too."""
    source = csv_source(tmp_path / "t.csv", f"a\n{2**70}\n{-(2**90)}\n")
    assert check(source, ["a"], []) == {"a": "number"}
    assert source.answer(Extremes(("a",))).tolist() == [[-(2.0**90)], [2.0**70]]


def test_sums_of_check_and_job_are_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the files are others; what a caller does with an answer does not change the next one."""
    passes: list[str] = []
    row = DuckDbFiles.row
    monkeypatch.setattr(DuckDbFiles, "row", lambda files, sql: passes.append(sql) or row(files, sql))
    source = csv_source(tmp_path / "t.csv", "a\n1\n2\n")
    check(source, ["a"], [])
    source.answer(Sums(("a",)))[:] = 0
    assert source.answer(Sums(("a",))).tolist() == [[2], [3.0], [5.0]]
    assert sum("fsum" in sql for sql in passes) == 1
    (tmp_path / "t.csv").write_text("a\n1\n2\n3\n")
    assert source.answer(Sums(("a",))).tolist() == [[3], [6.0], [14.0]]


def test_a_query_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    """By its name, not by a wrong answer."""

    class Whatever(Query[int]):
        """Nothing."""

    with pytest.raises(TypeError, match="Whatever"):
        csv_source(tmp_path / "t.csv", "a\n1\n").answer(Whatever(("a",)))


@pytest.mark.parametrize("module", ["queries", "source", "cuts"])
def test_queries_need_no_engine(module: str) -> None:
    """A coordinator knows what may be asked without DuckDB, Arrow or the network."""
    heavy = ["duckdb", "pyarrow", "grpc", "pydantic", "sklearn"]
    code = f"import sys, commonscale.sources.{module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("query", [Frequencies(("id",)), TargetSums(("id",), "x")])
def test_a_column_of_identifiers_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: Frequencies | TargetSums
) -> None:
    """Its different values are counted no further than a categorical column may have."""
    monkeypatch.setattr(duckdb_source, "MOST_VALUES", 5)
    few = csv_source(tmp_path / "few.csv", "id,x\n" + "".join(f"p{row % 5},1\n" for row in range(20)))
    assert len(few.answer(query)[0]) == 5
    many = csv_source(tmp_path / "many.csv", "id,x\n" + "".join(f"p{row},1\n" for row in range(20)))
    with pytest.raises(TooManyCategories, match=r"column 'id' has more than 5 different values\. It is hardly"):
        many.answer(query)
