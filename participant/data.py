"""A site's table: CSV or Parquet, read by DuckDB.

Python sees aggregates, the different values of categorical columns with their counts, and for ranks single columns in
order.
"""

from __future__ import annotations

import glob
import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from commonscale.config import DataSource
from commonscale.errors import DataChanged, InfiniteValues, MissingColumn, UnreadableData, WrongType
from commonscale.transforms.categories import TextRules, canonical
from commonscale.transforms.ordering import Floats

_KINDS = {
    "number": (
        "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
        "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL",
    ),
    "boolean": ("BOOLEAN",),
    "time": ("DATE", "TIME", "TIMESTAMP", "INTERVAL"),
}  # fmt: skip
_MAY_BE_NAN = ("FLOAT", "DOUBLE")


class DuckTable:
    """One data source. Its methods block; callers use threads."""

    def __init__(self, site: str, name: str, source: DataSource) -> None:
        self.site = site
        self.name = name
        self._source = source
        self._lock = threading.Lock()
        self._connection: Any = None
        self._loaded = ""
        self._types: dict[str, str] = {}
        self._sums: dict[tuple[str, ...], list[tuple[int, float, float]]] = {}
        self._ordered: dict[tuple[str, ...], list[Floats]] = {}
        self._texts_of = ""

    def fingerprint(self) -> str:
        """Changes when the files change."""
        paths = sorted(glob.glob(str(self._source.path)))
        if not paths:
            raise UnreadableData(f"{self.site}: no file at {self._source.path}.", "Mend `path` in the configuration.")
        stats = [(path, Path(path).stat()) for path in paths]
        return hashlib.sha256(repr([(p, s.st_size, s.st_mtime_ns) for p, s in stats]).encode()).hexdigest()

    def pinned(self, fingerprint: str) -> PinnedTable:
        """The table for one job: raises DataChanged once the files are others than they were."""
        return PinnedTable(self, fingerprint)

    def row_count(self) -> int:
        """How many rows there are."""
        return int(self._query("SELECT count(*) FROM source")[0])

    def types(self) -> dict[str, str]:
        """Every column with its DuckDB type."""
        with self._cursor():
            return self._types

    def kinds(self, columns: Sequence[str]) -> dict[str, str]:
        """number, text, boolean or time for each column; a column without any value counts as a number."""
        types = self.types()
        for column in columns:
            if column not in types:
                raise MissingColumn(
                    f"{self.site} has no column {column!r} in data set {self.name!r}.",
                    "Add it there, or leave it out of the pipeline.",
                )
        found = {column: _kind(types[column]) for column in columns}
        for column, kind in found.items():
            if kind == "text" and not self._query(f"SELECT count({_quoted(column)}) FROM source")[0]:
                found[column] = "number"
        return found

    def check_numeric(self, columns: Sequence[str]) -> None:
        """Raise unless every column holds finite numbers or nothing."""
        if not columns:
            return
        for column, kind in self.kinds(columns).items():
            if kind != "number":
                raise WrongType(
                    f"{self.site}: column {column!r} holds {kind}, not numbers.",
                    "Name the texts that mean 'missing' in the data source, or mend the column.",
                )
        for column, (_, total, _) in zip(columns, self.sums(columns), strict=True):
            # Only infinities, or numbers whose sum is beyond float64, make a sum that is not finite.
            if not math.isfinite(total):
                raise InfiniteValues(
                    f"{self.site}: column {column!r} holds infinities.", "Replace them or leave them empty."
                )

    def sums(self, columns: Sequence[str]) -> list[tuple[int, float, float]]:
        """For each column: the count of present values, their sum, and the sum of their squares."""
        key = (self.fingerprint(), *columns)
        found = self._sums.get(key)
        if found is None:
            rows = self._aggregate(columns, ["count({x})", "fsum({x})", "fsum({x} * {x})"])
            found = [(int(count), float(total or 0), float(squares or 0)) for count, total, squares in rows]
            # The check before a job and the job itself need the same pass over the data.
            self._sums = {key: found}
        return found

    def deviations(self, columns: Sequence[str], means: Sequence[float]) -> list[tuple[float, float]]:
        """For each column: the sum of x - mean and the sum of (x - mean)², over present values."""
        rows = self._aggregate(columns, ["fsum({x})", "fsum({x} * {x})"], means)
        return [(float(deviation or 0), float(squared or 0)) for deviation, squared in rows]

    def extremes(self, columns: Sequence[str]) -> list[tuple[float, float] | None]:
        """The smallest and largest present value of each column; None where there is none."""
        rows = self._aggregate(columns, ["min({x})", "max({x})"])
        return [(float(low), float(high)) if low is not None else None for low, high in rows]

    def ordered(self, columns: Sequence[str]) -> list[Floats]:
        """The present values of each column, in order. Eight bytes a value; the last table asked for is kept."""
        key = (self.fingerprint(), *columns)
        found = self._ordered.get(key)
        if found is None:
            types = self.types()
            found = [self._sorted(column, types[column]) for column in columns]
            # A search asks for the same values in every round.
            self._ordered = {key: found}
        return found

    def _sorted(self, column: str, duck_type: str) -> Floats:
        with self._cursor() as cursor:
            query = f"SELECT x FROM (SELECT {_as_double(column, duck_type)} AS x FROM source) WHERE x IS NOT NULL"
            values: Floats = np.asarray(cursor.execute(query).fetchnumpy()["x"], dtype=np.float64)
        return np.sort(values)

    def categories(self, columns: Sequence[str], rules: TextRules) -> list[dict[str | None, int]]:
        """For each column its different canonical values and how often each occurs; None is the missing value."""
        found: list[dict[str | None, int]] = []
        for column in columns:
            counts: dict[str | None, int] = {}
            for value, count in self._rows(f"SELECT {self._text(column)}, count(*) FROM {self._texts()} GROUP BY 1"):
                text = canonical(value, rules)
                counts[text] = counts.get(text, 0) + int(count)
            found.append(counts)
        return found

    def target_sums(
        self, columns: Sequence[str], target: str, rules: TextRules
    ) -> list[dict[str | None, tuple[int, float]]]:
        """For each column and canonical value: the rows with a target, and the target's sum over them."""
        number = _as_double(target, self.types()[target], "source.")
        found: list[dict[str | None, tuple[int, float]]] = []
        for column in columns:
            sums: dict[str | None, tuple[int, float]] = {}
            inner = f"SELECT {self._text(column)} AS v, {number} AS x FROM {self._with_texts()}"
            for value, count, total in self._rows(f"SELECT v, count(x), fsum(x) FROM ({inner}) GROUP BY 1"):
                text = canonical(value, rules)
                before = sums.get(text, (0, 0.0))
                sums[text] = (before[0] + int(count), before[1] + float(total or 0))
            found.append(sums)
        return found

    def batches(
        self, numeric: Sequence[str], categorical: Sequence[str] = (), rows_at_once: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        """The whole table in columnar pieces: numeric columns as doubles, categorical ones as they were written."""
        numbers, texts = set(numeric), set(categorical)

        def selected(name: str, kind: str) -> str:
            if name in texts:
                return f"{self._text(name)} AS {_quoted(name)}"
            if name in numbers:
                return f"{_as_double(name, kind, 'source.')} AS {_quoted(name)}"
            return f"source.{_quoted(name)} AS {_quoted(name)}"

        selection = ", ".join(selected(name, kind) for name, kind in self.types().items())
        relation = self._with_texts() if texts else "source"
        with self._cursor() as cursor:
            yield from cursor.execute(f"SELECT {selection} FROM {relation}").to_arrow_reader(rows_at_once)

    def _texts(self) -> str:
        """The relation that has cells as they were written: in a CSV file, 007 is not 7."""
        if self._is_parquet:
            return "source"
        with self._cursor() as cursor, self._lock:
            # All rows decide how the file is read, as for source: a quote may come late.
            relation = self._csv("all_varchar=true, sample_size=-1")
            cursor.execute(f"CREATE TABLE IF NOT EXISTS texts AS SELECT * FROM {relation}")
            if self._loaded != self._texts_of:
                sizes = cursor.execute("SELECT (SELECT count(*) FROM source), (SELECT count(*) FROM texts)").fetchone()
                names = [row[0] for row in cursor.execute("DESCRIBE texts").fetchall()]
                if sizes[0] != sizes[1] or names != list(self._types):
                    raise UnreadableData(f"{self.site}: data set {self.name!r} reads differently as text.")
                self._texts_of = self._loaded
        return "texts"

    def _text(self, column: str) -> str:
        """A cell of a categorical column; what the site's configuration calls missing is missing."""
        name, kind = f"{self._texts()}.{_quoted(column)}", self.types()[column]
        if kind.startswith("BLOB"):
            raise WrongType(f"{self.site}: column {column!r} holds bytes, not texts.", "Store it as text.")
        if not self._is_parquet or kind == "VARCHAR":
            missing = ", ".join(_literal(text.strip()) for text in self._source.missing)
            return f"CASE WHEN trim({name}) IN ({missing}) THEN NULL ELSE {name} END" if missing else name
        # The shortest text of a 32-bit number is what a person wrote; as 64 bits it would have other digits.
        return f"CAST(CAST({name} AS VARCHAR) AS DOUBLE)" if kind == "FLOAT" else name

    def _with_texts(self) -> str:
        """Rows with both: numbers from source, texts from the relation above."""
        return "source" if self._texts() == "source" else "source POSITIONAL JOIN texts"

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            rows: list[tuple[Any, ...]] = cursor.execute(sql).fetchall()
        return rows

    def _aggregate(
        self, columns: Sequence[str], templates: Sequence[str], minus: Sequence[float] | None = None
    ) -> list[Any]:
        """The templates for every column, less a number where given, in one pass over the data."""
        types = self.types()
        # As text, a float keeps every bit, and the planner sees a constant.
        less = [f" - CAST('{number!r}' AS DOUBLE)" for number in minus] if minus else [""] * len(columns)
        inner = ", ".join(f"{_as_double(c, types[c])}{less[i]} AS c{i}" for i, c in enumerate(columns))
        outer = ", ".join(template.replace("{x}", f"c{i}") for i in range(len(columns)) for template in templates)
        row = self._query(f"SELECT {outer} FROM (SELECT {inner} FROM source)")
        width = len(templates)
        return [tuple(row[at : at + width]) for at in range(0, len(row), width)]

    def _query(self, sql: str) -> tuple[Any, ...]:
        with self._cursor() as cursor:
            row: tuple[Any, ...] = cursor.execute(sql).fetchone()
        return row

    def _cursor(self) -> _Cursor:
        with self._lock:
            fingerprint = self.fingerprint()
            if self._connection is None or self._loaded != fingerprint:
                self._connection = self._open()
                described = self._connection.execute("DESCRIBE source").fetchall()
                self._types = {row[0]: str(row[1]) for row in described}
                self._loaded = fingerprint
            return _Cursor(self, self._connection.cursor())

    def _open(self) -> Any:
        connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        if self._is_parquet:
            path = str(self._source.path).replace("'", "''")
            definition = f"CREATE VIEW source AS SELECT * FROM read_parquet('{path}')"
        else:
            # Parsed once into columns; types are found from all rows, not from the first few.
            definition = f"CREATE TABLE source AS SELECT * FROM {self._csv('sample_size=-1')}"
        try:
            connection.execute(definition)
        except duckdb.Error as error:
            raise UnreadableData(
                f"{self.site}: data set {self.name!r} cannot be read: {_kind_of_fault(error)}."
            ) from None
        return connection

    @property
    def _is_parquet(self) -> bool:
        return ".parquet" in self._source.path.name

    def _csv(self, how: str) -> str:
        path = str(self._source.path).replace("'", "''")
        missing = ", ".join(map(_literal, ["", *self._source.missing]))
        return f"read_csv('{path}', nullstr=[{missing}], header=true, {how})"


class _Cursor:
    """A cursor whose failures are our errors and say nothing of the data."""

    def __init__(self, table: DuckTable, cursor: Any) -> None:
        self._table = table
        self._cursor = cursor

    def __enter__(self) -> Any:
        return self._cursor

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._cursor.close()
        if isinstance(error, duckdb.Error):
            raise UnreadableData(
                f"{self._table.site}: data set {self._table.name!r} cannot be read: {_kind_of_fault(error)}."
            ) from None


@dataclass(frozen=True)
class PinnedTable:
    """A table that must not change while a job uses it."""

    table: DuckTable
    fingerprint: str

    def sums(self, columns: Sequence[str]) -> list[tuple[int, float, float]]:
        """As the table's."""
        self._check()
        return self.table.sums(columns)

    def deviations(self, columns: Sequence[str], means: Sequence[float]) -> list[tuple[float, float]]:
        """As the table's."""
        self._check()
        return self.table.deviations(columns, means)

    def extremes(self, columns: Sequence[str]) -> list[tuple[float, float] | None]:
        """As the table's."""
        self._check()
        return self.table.extremes(columns)

    def ordered(self, columns: Sequence[str]) -> list[Floats]:
        """As the table's."""
        self._check()
        return self.table.ordered(columns)

    def categories(self, columns: Sequence[str], rules: TextRules) -> list[dict[str | None, int]]:
        """As the table's."""
        self._check()
        return self.table.categories(columns, rules)

    def target_sums(
        self, columns: Sequence[str], target: str, rules: TextRules
    ) -> list[dict[str | None, tuple[int, float]]]:
        """As the table's."""
        self._check()
        return self.table.target_sums(columns, target, rules)

    def _check(self) -> None:
        if self.table.fingerprint() != self.fingerprint:
            raise DataChanged(
                f"{self.table.site}: the files of data set {self.table.name!r} changed during the job.",
                "Submit the job again.",
            )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_double(column: str, duck_type: str, relation: str = "") -> str:
    """A column as doubles, with not-a-number as missing, as scikit-learn sees it."""
    double = f"CAST({relation}{_quoted(column)} AS DOUBLE)"
    return f"(CASE WHEN isnan({double}) THEN NULL ELSE {double} END)" if duck_type in _MAY_BE_NAN else double


def _kind(duck_type: str) -> str:
    for kind, types in _KINDS.items():
        if duck_type.startswith(types) and not duck_type.endswith("]"):
            return kind
    return "text"


def _kind_of_fault(error: duckdb.Error) -> str:
    """DuckDB's messages may quote cells: only the kind of the fault is passed on."""
    return type(error).__name__
