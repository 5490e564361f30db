"""What may be asked of a table, as data: hashable, loggable, readable by a policy.

A query says which columns it looks at and what comes back; a source answers it. Numbers come back as arrays with one
column per column asked for. Missing values (nulls, not-a-number, the site's own markers) are skipped.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from commonscale.axis import KEYS, Axis
from commonscale.categories import DEFAULT_RULES, TextRules
from commonscale.ordering import Floats

A = TypeVar("A")
Integers = NDArray[np.uint64]
Answers = NDArray[np.bool_]

# Different values of a column at one site, at most.
MOST_VALUES = 1 << 20

# How often each canonical text occurs; None is the missing value.
Frequency = Mapping[str | None, int]
# The rows with a target, and the target's sum over them, for each canonical text.
TargetSum = Mapping[str | None, tuple[int, float]]


@dataclass(frozen=True)
class Query(Generic[A]):
    """A question about some columns; A is the type of its answer."""

    # For people: what a site computes on its rows.
    title: ClassVar[str]
    # The rows of an answer that is an array.
    rows: ClassVar[tuple[str, ...]] = ()
    # Whether it compares its columns as texts; else it reads them as numbers.
    reads_texts: ClassVar[bool] = False

    columns: tuple[str, ...]

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """Columns that it reads as numbers."""
        return () if self.reads_texts else self.columns

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns that it compares as texts."""
        return self.columns if self.reads_texts else ()


@dataclass(frozen=True)
class RowCount(Query[int]):
    """How many rows there are."""

    title = "number of rows"

    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sums(Query[Floats]):
    """Three rows: the count of present values, their sum, and the sum of their squares; beyond float64: not finite."""

    title = "counts, sums and sums of squares"
    rows = ("count", "sum", "sum of squares")


@dataclass(frozen=True)
class Deviations(Query[Floats]):
    """Two rows: the sum of x - centre and the sum of (x - centre)²."""

    title = "deviations and squared deviations from given centres"
    rows = ("deviation", "squared deviation")

    around: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.around) != len(self.columns):
            raise ValueError("one centre for each column")


@dataclass(frozen=True)
class Extremes(Query[Floats]):
    """Two rows: the smallest and the largest present value; not-a-number where there is none."""

    title = "smallest and largest values"
    rows = ("minimum", "maximum")


@dataclass(frozen=True)
class Cuts:
    """Evenly spaced cuts through one column, at positions on its axis: first + i·step.

    A cut may be any integer: below every position it counts nothing, above every one all present values.
    """

    # The place of the column in the query.
    column: int
    first: int
    step: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0 or (self.count > 1 and self.step < 1):
            raise ValueError("cuts rise")


@dataclass(frozen=True)
class CountsAt(Query[Integers]):
    """How many present values are at or below each cut; one number per cut, ranges one after the other."""

    title = "numbers of values up to given cuts"

    cuts: tuple[Cuts, ...]
    # One for each column; without them, positions are keys.
    axes: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        if len(self.axes) not in (0, len(self.columns)):
            raise ValueError("one axis for each column")
        if any(not 0 <= cuts.column < len(self.columns) for cuts in self.cuts):
            raise ValueError("every cut is through a column of the query")

    def axis(self, column: int) -> Axis:
        """On which its cuts lie."""
        return self.axes[column] if self.axes else KEYS

    @property
    def length(self) -> int:
        """How many counts it asks for."""
        return sum(cuts.count for cuts in self.cuts)


@dataclass(frozen=True)
class Frequencies(Query[Sequence[Frequency]]):
    """For each column its different canonical texts and how often each occurs."""

    title = "different values and how often each occurs"
    reads_texts = True

    rules: TextRules = DEFAULT_RULES


@dataclass(frozen=True)
class TargetSums(Query[Sequence[TargetSum]]):
    """For each column and canonical text: the rows with a target, and the target's sum over them."""

    title = "rows and sums of a target per value"
    reads_texts = True

    target: str
    rules: TextRules = DEFAULT_RULES

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """The target."""
        return (self.target,)


@dataclass(frozen=True)
class Pieced(Query[A], ABC):
    """What no engine needs to know: computed from arrays, piece by piece."""

    @abstractmethod
    def fold(self, pieces: Iterable[Sequence[Floats]]) -> A:
        """The answer, from the present values of all columns, a piece at a time."""


@dataclass(frozen=True)
class AnyValue(Pieced[Sequence[Answers]]):
    """Questions whether any value of a column is such and such: yes or no to each, column by column."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, ...]:
        """How many questions there are about each column."""

    @abstractmethod
    def holds(self, column: int, values: Floats) -> Answers:
        """The answers of these present values of one column."""

    def fold(self, pieces: Iterable[Sequence[Floats]]) -> Sequence[Answers]:
        """Yes, where there is a piece with a yes."""
        found = [np.zeros(length, dtype=bool) for length in self.lengths]
        for piece in pieces:
            for column, values in enumerate(piece):
                found[column] |= self.holds(column, values)
        return found


@dataclass(frozen=True)
class Folded(Pieced[Floats]):
    """Sums of expressions."""

    @abstractmethod
    def terms(self, column: int, values: Floats) -> Floats:
        """The sums over these present values of one column, one number per row of the answer."""

    def fold(self, pieces: Iterable[Sequence[Floats]]) -> Floats:
        """Each sum rounded once."""
        parts: list[list[Floats]] = [[] for _ in self.columns]
        for piece in pieces:
            for column, values in enumerate(piece):
                parts[column].append(self.terms(column, values))
        nothing = self.terms(0, np.empty(0)) if self.columns else np.empty(0)
        return np.array([[_rounded_once(row) for row in zip(nothing, *found, strict=True)] for found in parts]).T


def _rounded_once(terms: Sequence[float]) -> float:
    """Their sum; not finite where it, or a part of it, is beyond float64."""
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sum(terms))
