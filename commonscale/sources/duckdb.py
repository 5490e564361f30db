"""CSV and Parquet files, read by DuckDB.

Sums, extremes and frequencies are computed by DuckDB. What it has no function for is computed by numpy from columnar
pieces. Python keeps no column row by row; keys of columns that a search asks for again and again stay in order
while they fit into KEPT_KEYS_BYTES (256 MiB per source).
"""

from __future__ import annotations

import glob
import hashlib
import threading
from collections.abc import Iterator, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from commonscale.categories import TextRules, canonical
from commonscale.errors import TooManyCategories, UnreadableData
from commonscale.ordering import Floats
from commonscale.sources.cuts import KEPT_KEYS_BYTES, CutCounter, OrderedKeys, counts_up_to
from commonscale.sources.duckdb_files import DuckDbFiles, quoted
from commonscale.sources.queries import (
    MOST_VALUES,
    CountsAt,
    Deviations,
    Extremes,
    Frequencies,
    Integers,
    Pieced,
    Query,
    RowCount,
    Sums,
    TargetSums,
)
from commonscale.sources.source import ROWS_AT_ONCE, Source, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

A = TypeVar("A")


class DuckDbSource(Source):
    """One table in files. Its methods block and may be called by several threads at once."""

    def __init__(
        self, site: str, name: str, path: Path, missing: Sequence[str] = (), kept_keys_bytes: int = KEPT_KEYS_BYTES
    ) -> None:
        self.site = site
        self.name = name
        self._path = path
        self._missing = tuple(missing)
        self._lock = threading.Lock()
        self._opened: DuckDbFiles | None = None
        self._ordered = OrderedKeys(kept_keys_bytes)
        self._last_sums: tuple[str, Sums, Floats] | None = None

    def schema(self) -> dict[str, str]:
        """Every column with its kind: number, text, boolean, time or bytes; a column without any value is a number."""
        return dict(self._files().kinds)

    def snapshot(self) -> str:
        """Changes when the files change."""
        try:
            stats = [(path, Path(path).stat()) for path in sorted(glob.glob(str(self._path)))]
        except OSError as error:
            raise UnreadableData(f"{self.site}: {self._path} cannot be read: {error.strerror}.") from None
        if not stats:
            raise UnreadableData(f"{self.site}: no file at {self._path}.", "Fix `path` in the configuration.")
        return hashlib.sha256(repr([(p, s.st_size, s.st_mtime_ns) for p, s in stats]).encode()).hexdigest()

    def answer(self, query: Query[A]) -> A:
        """A query's answer, from the files as they are."""
        files = self._files()
        check_columns(self, files.types, (*query.numeric_columns, *query.text_columns))
        answer: Any
        match query:
            case RowCount():
                answer = files.row_count
            case Sums():
                answer = self._sums(files, query)
            case Deviations():
                answer = _aggregates(files, query.columns, ("sum", "squares"), query.around)
            case Extremes():
                # Of -0.0 and 0.0, which are one value, DuckDB may find either.
                answer = _aggregates(files, query.columns, ("lowest", "highest")) + 0.0
            case CountsAt():
                answer = self._counts_at(files, query)
            case Frequencies():
                answer = [_frequency(files, column, query.rules) for column in query.columns]
            case TargetSums():
                answer = [_target_sum(files, column, query.target, query.rules) for column in query.columns]
            case Pieced():
                answer = query.fold(files.numbers(query.columns, ROWS_AT_ONCE))
            case _:
                raise TypeError(f"DuckDB has no answer to {type(query).__name__}")
        found: A = answer
        return found

    def batches(
        self, numeric: Sequence[str], texts: Sequence[str] = (), rows_at_once: int = ROWS_AT_ONCE
    ) -> Iterator[pa.RecordBatch]:
        """These columns in columnar pieces, in the order of the table: numbers as doubles, texts as they were written.

        A column that is asked for as both comes as text.
        """
        files = self._files()
        check_columns(self, files.types, (*numeric, *texts))
        cells = {name: files.as_double(name) for name in numeric} | {name: files.as_text(name) for name in texts}
        if cells:
            selection = ", ".join(f"{cells[name]} AS {quoted(name)}" for name in files.types if name in cells)
            relation = files.with_texts if texts else "source"
            yield from files.batches(f"SELECT {selection} FROM {relation}", rows_at_once)

    def beside(
        self, numeric: Sequence[str], texts: Sequence[str], written: Sequence[str], rows_at_once: int = ROWS_AT_ONCE
    ) -> Iterator[tuple[pa.RecordBatch, pa.Table]]:
        """The table in columnar pieces, each in two parts that may share columns.

        First what is computed with: numeric columns as doubles, texts, what is missing as null. Then columns as they
        were written: of a CSV file the texts of all cells, of Parquet files the values and types.
        """
        files = self._files()
        check_columns(self, files.types, (*numeric, *texts, *written))
        inputs = [f"{files.as_double(name)} AS {quoted(name)}" for name in numeric]
        inputs += [f"{files.as_text(name)} AS {quoted(name)}" for name in texts]
        yield from files.beside(inputs, written, rows_at_once)

    def _files(self) -> DuckDbFiles:
        with self._lock:
            snapshot = self.snapshot()
            if self._opened is None or self._opened.snapshot != snapshot:
                self._opened = DuckDbFiles(self.site, self.name, self._path, self._missing, snapshot)
            return self._opened

    def _sums(self, files: DuckDbFiles, query: Sums) -> Floats:
        last = self._last_sums
        # The check before a job and the job itself need the same pass over the data.
        if last is None or last[:2] != (files.snapshot, query):
            last = (files.snapshot, query, _aggregates(files, query.columns, ("count", "sum", "squares")))
            self._last_sums = last
        return last[2].copy()

    def _counts_at(self, files: DuckDbFiles, query: CountsAt) -> Integers:
        through: dict[int, list[int]] = {}
        for place, cuts in enumerate(query.cuts):
            through.setdefault(cuts.column, []).append(place)
        ranges = {column: [query.cuts[place] for place in places] for column, places in through.items()}
        names = {column: query.columns[column] for column in through}
        pieces = partial(files.numbers, rows_at_once=ROWS_AT_ONCE)
        ordered = self._ordered.of(files.snapshot, list(dict.fromkeys(names.values())), files.row_count, pieces)
        counts: dict[int, Sequence[Integers]] = {
            column: counts_up_to(ranges[column], ordered[name], query.axis(column))
            for column, name in names.items()
            if name in ordered
        }
        passed = {column: CutCounter(ranges[column], query.axis(column)) for column in names if column not in counts}
        for piece in pieces([names[column] for column in passed]):
            for counter, values in zip(passed.values(), piece, strict=True):
                counter.add(values)
        counts |= {column: counter.counts for column, counter in passed.items()}
        found: dict[int, Integers] = {}
        for column, places in through.items():
            found |= zip(places, counts[column], strict=True)
        return np.concatenate([np.empty(0, dtype=np.uint64), *(found[place] for place in range(len(query.cuts)))])


_AGGREGATES = {
    "count": "count({x})",
    "sum": "coalesce(fsum({x}), 0)",
    "squares": "coalesce(fsum({x} * {x}), 0)",
    "lowest": "min({x})",
    "highest": "max({x})",
}


def _aggregates(
    files: DuckDbFiles, columns: Sequence[str], names: Sequence[str], minus: Sequence[float] | None = None
) -> Floats:
    """One row for each aggregate, of every column less a number where given, in one pass over the data."""
    if not columns:
        return np.empty((len(names), 0))
    # As text, a float keeps every bit, and the planner sees a constant.
    less = [f" - CAST('{float(number)!r}' AS DOUBLE)" for number in minus] if minus else [""] * len(columns)
    inner = ", ".join(f"{files.as_double(column)}{less[i]} AS c{i}" for i, column in enumerate(columns))
    outer = ", ".join(_AGGREGATES[name].replace("{x}", f"c{i}") for name in names for i in range(len(columns)))
    row = files.row(f"SELECT {outer} FROM (SELECT {inner} FROM source)")
    return np.array(row, dtype=np.float64).reshape(len(names), len(columns))


def _frequency(files: DuckDbFiles, column: str, rules: TextRules) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for value, count in files.rows(f"SELECT {files.as_text(column)}, count(*) FROM {files.texts} GROUP BY 1"):
        text = canonical(value, rules)
        counts[text] = counts.get(text, 0) + int(count)
        _check_number(files, column, counts)
    return counts


def _target_sum(files: DuckDbFiles, column: str, target: str, rules: TextRules) -> dict[str | None, tuple[int, float]]:
    sums: dict[str | None, tuple[int, float]] = {}
    inner = f"SELECT {files.as_text(column)} AS v, {files.as_double(target)} AS x FROM {files.with_texts}"
    for value, count, total in files.rows(f"SELECT v, count(x), fsum(x) FROM ({inner}) GROUP BY 1"):
        text = canonical(value, rules)
        rows, before = sums.get(text, (0, 0.0))
        sums[text] = (rows + int(count), before + float(total or 0))
        _check_number(files, column, sums)
    return sums


def _check_number(files: DuckDbFiles, column: str, values: Sized) -> None:
    """Raise before a column that is hardly categorical fills the memory."""
    if len(values) > MOST_VALUES:
        raise TooManyCategories(
            f"{files.site}: column {column!r} has more than {MOST_VALUES:,} different values.",
            "It is hardly categorical; leave it out.",
        )
