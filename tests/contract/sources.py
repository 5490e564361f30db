"""Tables for the suite of all sources, and what every source must answer: plain Python on the same cells."""

import csv
import itertools
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from commonscale.categories import TextRules, canonical
from commonscale.sources.duckdb import DuckDbSource
from commonscale.sources.queries import AnyValue, Cuts, Folded
from commonscale.sources.source import Source

Cells = Mapping[str, Sequence[Any]]

# n, its remainder with every seventh missing, and the remainder's text.
NUMBERED = """
    SELECT n, CASE WHEN n % 7 = 0 THEN NULL ELSE CAST(n % 1000 AS DOUBLE) - 500 END AS x, 'r' || (n % 3) AS word
    FROM range({rows}) AS numbers(n)
"""


class Engine(Protocol):
    """Puts tables where one kind of source finds them. A further kind of source needs one of these, and no test."""

    def source(self, cells: Cells, missing: Sequence[str] = (), parts: int = 1) -> Source:
        """A new table; in several files, if the engine has files."""

    def numbered(self, rows: int) -> Source:
        """A new table of n = 0 … rows - 1: see NUMBERED."""

    def replace(self, source: Source, cells: Cells) -> None:
        """Give a table other rows."""


@dataclass
class DuckDbFilesEngine:
    """CSV or Parquet files, read by DuckDB."""

    directory: Path
    suffix: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._numbers = itertools.count()

    def source(self, cells: Cells, missing: Sequence[str] = (), parts: int = 1) -> Source:
        stem = f"t{next(self._numbers)}-"
        rows = max((len(column) for column in cells.values()), default=0)
        share = max(1, math.ceil(rows / parts))
        for part in range(parts):
            here = {name: column[part * share : (part + 1) * share] for name, column in cells.items()}
            _write(self.directory / f"{stem}{part}{self.suffix}", here)
        return self._open(stem, missing)

    def numbered(self, rows: int) -> Source:
        stem = f"t{next(self._numbers)}-"
        duckdb.connect().execute(f"COPY ({NUMBERED.format(rows=rows)}) TO '{self.directory}/{stem}0{self.suffix}'")
        return self._open(stem, ())

    def replace(self, source: Source, cells: Cells) -> None:
        path = self.directory / f"{source.name}0{self.suffix}"
        _write(path, cells)
        # On a coarse clock two writes may fall into one tick.
        os.utime(path, ns=(1, 1))

    def _open(self, stem: str, missing: Sequence[str]) -> Source:
        return DuckDbSource("north", stem, self.directory / f"{stem}*{self.suffix}", missing, **self.options)


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "csv": lambda directory: DuckDbFilesEngine(directory, ".csv", {}),
    "parquet": lambda directory: DuckDbFilesEngine(directory, ".parquet", {}),
    "parquet, no keys kept": lambda directory: DuckDbFilesEngine(directory, ".parquet", {"kept_keys_bytes": 0}),
}


def _write(path: Path, cells: Cells) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: pa.array(column) for name, column in cells.items()}), path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))


def present(column: Sequence[Any]) -> list[float]:
    """The numbers of a column."""
    return [float(cell) for cell in column if cell is not None and not math.isnan(cell)]


def key(number: float) -> int:
    """What commonscale.ordering gives, bit by bit."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", number + 0.0))
    return bits ^ ((1 << 64) - 1) if bits >> 63 else bits | 1 << 63


def counts_at(columns: Sequence[Sequence[Any]], ranges: Sequence[Cuts]) -> list[int]:
    """The answer to CountsAt."""
    keys = [[key(number) for number in present(column)] for column in columns]
    cuts = [(r.column, r.first + i * r.step) for r in ranges for i in range(r.count)]
    return [sum(found <= cut for found in keys[column]) for column, cut in cuts]


def frequency(column: Sequence[Any], rules: TextRules) -> dict[str | None, int]:
    """The answer to Frequencies for one column."""
    texts = [canonical(cell, rules) for cell in column]
    return {text: texts.count(text) for text in texts}


def target_sum(column: Sequence[Any], target: Sequence[Any], rules: TextRules) -> dict[str | None, tuple[int, float]]:
    """The answer to TargetSums for one column."""
    texts = [canonical(cell, rules) for cell in column]
    numbers = {text: present([t for at, t in zip(texts, target, strict=True) if at == text]) for text in texts}
    return {text: (len(found), math.fsum(found)) for text, found in numbers.items()}


@dataclass(frozen=True)
class Roots(Folded):
    """A query that no engine knows: the sums of √|x| and of x·place, place being the column's from 1."""

    title = "sums of roots"

    def terms(self, column: int, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.array([np.sqrt(np.abs(values)).sum(), (values * (column + 1)).sum()])


@dataclass(frozen=True)
class Signs(AnyValue):
    """A question that no engine knows: whether there are values below zero, and others."""

    title = "signs"

    @property
    def lengths(self) -> tuple[int, ...]:
        return (2,) * len(self.columns)

    def holds(self, column: int, values: np.ndarray) -> np.ndarray:
        return np.array([(values < 0).any(), (values >= 0).any()])
