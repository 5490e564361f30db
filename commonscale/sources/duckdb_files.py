"""CSV and Parquet files as relations of an in-memory DuckDB: how cells become numbers and texts.

`source` has typed columns. `texts` has cells as they were written, since in a CSV file 007 is not 7; in a Parquet file
they are the same. DuckDB 2 prunes by statistics of Parquet files that do not count not-a-number (duckdb#25521), so
the optimizer that believes them is off, and no statement here may have a WHERE on numbers.
"""

import glob
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from commonscale.errors import UnreadableData, WrongType
from commonscale.ordering import Floats
from commonscale.sources.source import changed
from commonscale.sources.written import WrittenRows

_KINDS = {
    "number": (
        "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
        "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL",
    ),
    "boolean": ("BOOLEAN",),
    "time": ("DATE", "TIME", "TIMESTAMP", "INTERVAL"),
    "bytes": ("BLOB",),
}  # fmt: skip
_MAY_BE_NAN = ("FLOAT", "DOUBLE")
_SETTINGS: dict[str, Any] = {"autoinstall_known_extensions": "false", "disabled_optimizers": "statistics_propagation"}

# Nearly every column with a value has one among these.
_FIRST_ROWS = 2048
_ROWS_AT_ONCE = 10_000


class DuckDbFiles:
    """The files of one table as they are at one snapshot. Every statement has a cursor of its own."""

    def __init__(self, site: str, name: str, path: Path, missing: Sequence[str], snapshot: str) -> None:
        self.site = site
        self.name = name
        self.snapshot = snapshot
        self._path = path
        self._missing = missing
        self._lock = threading.Lock()
        self._has_texts = self._is_parquet
        self._connection = duckdb.connect(":memory:", config=_SETTINGS)
        if self._is_parquet:
            definition = f"CREATE VIEW source AS SELECT * FROM read_parquet({literal(str(path))})"
        else:
            # Parsed once into columns; types are found from all rows, not from the first few.
            definition = f"CREATE TABLE source AS SELECT * FROM {self._csv('sample_size=-1', missing)}"
        with self._faults():
            self._connection.execute(definition)
            described = self._connection.execute("DESCRIBE source").fetchall()
        self.types = {str(row[0]): str(row[1]) for row in described}

    @cached_property
    def row_count(self) -> int:
        """How many rows there are."""
        return int(self.row("SELECT count(*) FROM source")[0])

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Number, text, boolean, time or bytes for every column; a column without any value is a number."""
        kinds = {column: _kind(duck_type) for column, duck_type in self.types.items()}
        unsure = [column for column, kind in kinds.items() if kind in ("text", "bytes")]
        for relation in (f"(SELECT * FROM source LIMIT {_FIRST_ROWS})", "source"):
            if unsure:
                counts = ", ".join(f"count({quoted(column)})" for column in unsure)
                counted = self.row(f"SELECT {counts} FROM {relation}")
                unsure = [column for column, count in zip(unsure, counted, strict=True) if not count]
        return kinds | dict.fromkeys(unsure, "number")

    def row(self, sql: str) -> tuple[Any, ...]:
        """The only row of a statement."""
        (row,) = self.rows(sql)
        return row

    def rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement: for aggregates, not for tables."""
        with self._faults(), self._cursor() as cursor:
            found = cursor.execute(sql)
            while rows := found.fetchmany(_ROWS_AT_ONCE):
                yield from rows

    def batches(self, sql: str, rows_at_once: int) -> Iterator[pa.RecordBatch]:
        """The rows of a statement in columnar pieces, in order; one piece at a time is in memory."""
        with self._faults(), self._cursor() as cursor:
            relation = cursor.sql(sql)
            # Before DuckDB 1.4 it had another name.
            read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
            yield from read(rows_at_once)

    def beside(
        self, inputs: Sequence[str], written: Sequence[str], rows_at_once: int
    ) -> Iterator[tuple[pa.RecordBatch, pa.Table]]:
        """What some expressions give, and beside it columns as they were written."""
        if self._is_parquet:
            yield from self._beside_parquet(", ".join(inputs) or "1 AS row", written, rows_at_once)
            return
        cells = [f"{self.texts}.{quoted(name)} AS {quoted(f'written {name}')}" for name in written]
        for batch in self.batches(f"SELECT {', '.join([*inputs, *cells])} FROM {self.with_texts}", rows_at_once):
            names = batch.schema.names[: len(inputs)]
            used = pa.RecordBatch.from_arrays(batch.columns[: len(inputs)], names)
            yield used, pa.Table.from_arrays(batch.columns[len(inputs) :], names=list(written))

    def _beside_parquet(
        self, selection: str, written: Sequence[str], rows_at_once: int
    ) -> Iterator[tuple[pa.RecordBatch, pa.Table]]:
        rows = WrittenRows(sorted(glob.glob(str(self._path))), written) if written else None
        # DuckDB keeps the order of files and rows.
        for batch in self.batches(f"SELECT {selection} FROM source", rows_at_once):
            try:
                beside = rows.take(batch.num_rows) if rows else pa.table({})
            except (ValueError, pa.ArrowException):
                raise UnreadableData(
                    f"{self.site}: the files of data set {self.name!r} do not fit together, or changed meanwhile."
                ) from None
            yield batch, beside

    def numbers(self, columns: Sequence[str], rows_at_once: int) -> Iterator[list[Floats]]:
        """The present values of each column, a piece at a time; no piece of no column."""
        if not columns:
            return
        doubles = [f"CAST(source.{quoted(column)} AS DOUBLE)" for column in columns]
        selection = ", ".join(f"{_unless(self._marked(double), double)} AS c{i}" for i, double in enumerate(doubles))
        rows = 0
        for batch in self.batches(f"SELECT {selection} FROM source", rows_at_once):
            rows += batch.num_rows
            if rows > self.row_count:
                raise changed(self.site, self.name)
            # A null becomes not-a-number, and both are missing.
            values = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            yield [value[~np.isnan(value)] for value in values]
        if rows != self.row_count:
            raise changed(self.site, self.name)

    def as_double(self, column: str) -> str:
        """A column of source as doubles, with not-a-number as missing, as scikit-learn sees it."""
        double = f"CAST(source.{quoted(column)} AS DOUBLE)"
        tests = [f"isnan({double})"] if self.types[column] in _MAY_BE_NAN else []
        return _unless(tests + self._marked(double), double)

    def as_text(self, column: str) -> str:
        """A cell of a categorical column; what the site's configuration calls missing is missing."""
        name, duck_type = f"{self.texts}.{quoted(column)}", self.types[column]
        if not self._is_parquet or duck_type == "VARCHAR":
            missing = ", ".join(literal(text.strip()) for text in self._missing)
            tests = [f"trim({name}) IN ({missing})"] if missing else []
            # Only among numbers does "nan" mean not-a-number.
            tests += [f"isnan(TRY_CAST({name} AS DOUBLE))"] if duck_type in _MAY_BE_NAN else []
            return _unless(tests, name)
        if self.kinds[column] == "bytes":
            raise WrongType(f"{self.site}: column {column!r} holds bytes, not texts.", "Store it as text.")
        tests = self._marked(f"CAST({name} AS DOUBLE)") if self.kinds[column] == "number" else []
        # The shortest text of a 32-bit number is what a person wrote; as 64 bits it would have other digits.
        return _unless(tests, f"CAST(CAST({name} AS VARCHAR) AS DOUBLE)" if duck_type == "FLOAT" else name)

    def _marked(self, double: str) -> list[str]:
        """A test for numbers that mean "missing"; in a CSV file their texts were read as null before."""
        numbers = [number for text in self._missing if math.isfinite(number := _number(text))]
        marks = ", ".join(f"CAST('{number!r}' AS DOUBLE)" for number in numbers)
        return [f"{double} IN ({marks})"] if marks and self._is_parquet else []

    @property
    def texts(self) -> str:
        """The relation that has cells as they were written."""
        with self._lock:
            if not self._has_texts:
                self._read_texts()
                self._has_texts = True
        return "source" if self._is_parquet else "texts"

    @property
    def with_texts(self) -> str:
        """Rows with both: numbers from source, texts from the relation above."""
        return "source" if self.texts == "source" else "source POSITIONAL JOIN texts"

    def _read_texts(self) -> None:
        """Parse the CSV files once more, without types."""
        # All rows decide how the file is read, as for source: a quote may come late. A quoted "" is a text here.
        relation = self._csv("allow_quoted_nulls=false, all_varchar=true, sample_size=-1", ())
        with self._faults(), self._connection.cursor() as cursor:
            cursor.execute(f"CREATE OR REPLACE TABLE texts AS SELECT * FROM {relation}")
            sizes = [cursor.execute(f"SELECT count(*) FROM {name}").fetchall() for name in ("source", "texts")]
            names = [row[0] for row in cursor.execute("DESCRIBE texts").fetchall()]
        if sizes[0] != sizes[1] or names != list(self.types):
            raise UnreadableData(f"{self.site}: data set {self.name!r} reads differently as text.")

    @property
    def _is_parquet(self) -> bool:
        return ".parquet" in self._path.name

    def _csv(self, how: str, nulls: Sequence[str]) -> str:
        """Cells that are empty, or one of these texts, are null."""
        missing = ", ".join(map(literal, ["", *nulls]))
        # Delimiters are found by DuckDB; quotes are not, or '' might be taken for an empty cell.
        options = f"nullstr=[{missing}], header=true, quote='\"', {how}"
        return f"read_csv({literal(str(self._path))}, {options})"

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._lock:
            cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Failures become our errors. Messages of DuckDB may quote cells: only their kind is passed on."""
        try:
            yield
        # In mid-stream Arrow wraps them, as OSError in DuckDB 2.
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise UnreadableData(
                f"{self.site}: data set {self.name!r} cannot be read: {type(error).__name__}.",
                "A CSV file must be in UTF-8, with a first line of names and as many cells in every row.",
            ) from None


def _unless(tests: Sequence[str], cell: str) -> str:
    """A cell, or null where any of the tests holds."""
    return f"(CASE WHEN {' OR '.join(tests)} THEN NULL ELSE {cell} END)" if tests else cell


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def literal(text: str) -> str:
    """A text in a statement."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """A column's name in a statement."""
    return '"' + name.replace('"', '""') + '"'


def _kind(duck_type: str) -> str:
    for kind, types in _KINDS.items():
        if duck_type.startswith(types) and not duck_type.endswith("]"):
            return kind
    return "text"
