"""What answers queries. Every engine keeps this contract; tests/contract runs one suite on each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from commonscale.errors import DataChanged, InfiniteValues, MissingColumn, WrongType
from commonscale.sources.queries import Extremes, Query, RowCount, Sums

if TYPE_CHECKING:
    import pyarrow as pa

A = TypeVar("A")

ROWS_AT_ONCE = 65_536


class Source(ABC):
    """One table of a site. Its methods block and may be called by several threads at once."""

    # Whose table it is, and what the site calls it: for messages.
    site: str
    name: str

    @abstractmethod
    def schema(self) -> dict[str, str]:
        """Every column with its kind: number, text, boolean, time or bytes; a column without any value is a number."""

    @abstractmethod
    def snapshot(self) -> str:
        """Another text as soon as the rows may be others."""

    @abstractmethod
    def answer(self, query: Query[A]) -> A:
        """A query's answer, from the rows as they are; MissingColumn if it names a column that is not there."""

    @abstractmethod
    def batches(
        self, numeric: Sequence[str], texts: Sequence[str] = (), rows_at_once: int = ROWS_AT_ONCE
    ) -> Iterator[pa.RecordBatch]:
        """These columns in columnar pieces, in the order of the table: numbers as doubles, texts as they were written.

        A column that is asked for as both comes as text.
        """

    def pinned(self, snapshot: str) -> Source:
        """The same table for one job: raises DataChanged once its snapshot is another."""
        return PinnedSource(self, snapshot)


class PinnedSource(Source):
    """A source that must not change while a job uses it."""

    def __init__(self, source: Source, at: str) -> None:
        self.site, self.name = source.site, source.name
        self._source, self._at = source, at

    def schema(self) -> dict[str, str]:
        """As the source's."""
        self._check()
        return self._source.schema()

    def snapshot(self) -> str:
        """As the source's."""
        return self._source.snapshot()

    def answer(self, query: Query[A]) -> A:
        """As the source's."""
        self._check()
        try:
            return self._source.answer(query)
        finally:
            # A file that changed under the query may have made its answer, or its failure.
            self._check()

    def batches(
        self, numeric: Sequence[str], texts: Sequence[str] = (), rows_at_once: int = ROWS_AT_ONCE
    ) -> Iterator[pa.RecordBatch]:
        """As the source's."""
        self._check()
        for batch in self._source.batches(numeric, texts, rows_at_once):
            self._check()
            yield batch
        self._check()

    def _check(self) -> None:
        if self._source.snapshot() != self._at:
            raise changed(self.site, self.name)


def check(source: Source, numeric: Sequence[str], texts: Sequence[str], complete: Sequence[str] = ()) -> dict[str, str]:
    """Raise MissingColumn, WrongType or InfiniteValues unless a job may use these columns; returns their kinds.

    Of the numeric columns, those that must be complete may lack no value.
    """
    schema = source.schema()
    check_columns(source, schema, (*numeric, *texts))
    for column in numeric:
        if schema[column] != "number":
            raise WrongType(
                f"{source.site}: column {column!r} holds {schema[column]}, not numbers.",
                "Name the texts that mean 'missing' in the data source, or fix the column.",
            )
    for column in texts:
        if schema[column] == "bytes":
            raise WrongType(f"{source.site}: column {column!r} holds bytes, not texts.", "Store it as text.")
    _check_values(source, tuple(dict.fromkeys(numeric)), complete)
    return {column: schema[column] for column in (*numeric, *texts)}


def check_columns(source: Source, known: dict[str, str], columns: Sequence[str]) -> None:
    """Raise MissingColumn unless the table has all these columns."""
    for column in columns:
        if column not in known:
            raise MissingColumn(
                f"{source.site} has no column {column!r} in data set {source.name!r}.",
                "Add it there, or leave it out of the pipeline.",
            )


def changed(site: str, name: str) -> DataChanged:
    """The error of rows that are others than a job began with."""
    return DataChanged(f"{site}: the files of data set {name!r} changed during the job.", "Submit the job again.")


def _check_values(source: Source, columns: tuple[str, ...], complete: Sequence[str]) -> None:
    if not columns:
        return
    # The query that most jobs begin with: a source may keep its answer.
    counts, totals, _ = source.answer(Sums(columns))
    rows = source.answer(RowCount()) if complete else 0
    for column, count in zip(columns, counts, strict=True):
        if column in complete and 0 < count < rows:
            raise WrongType(
                f"{source.site}: column {column!r} has missing values, which a step of the job does not take.",
                "Fill them in the table, or leave the column out of that step.",
            )
    # Infinities make a sum that is not finite, but so do huge numbers.
    suspects = tuple(column for column, total in zip(columns, totals, strict=True) if not np.isfinite(total))
    if not suspects:
        return
    for column, extremes in zip(suspects, source.answer(Extremes(suspects)).T, strict=True):
        if np.isinf(extremes).any():
            raise InfiniteValues(
                f"{source.site}: column {column!r} holds infinities.", "Replace them or leave them empty."
            )
