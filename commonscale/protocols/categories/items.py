"""A site's categorical values as the bytes that protocols work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from commonscale.transforms.categories import TextRules

Identifiers = NDArray[np.int64]


class TableCategories(Protocol):
    """A site's table, as far as categories need it."""

    def categories(self, columns: Sequence[str], rules: TextRules) -> list[Mapping[str | None, int]]:
        """For each column its different canonical values and how often each occurs; None is the missing value."""


@dataclass(frozen=True)
class Values:
    """A site's different values of some columns, in order, the missing value first."""

    columns: tuple[str, ...]
    texts: tuple[tuple[str | None, ...], ...]
    counts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, table: TableCategories, columns: Sequence[str], rules: TextRules) -> Values:
        """From a table."""
        found = table.categories(columns, rules)
        ordered = [sorted(column.items(), key=_order) for column in found]
        texts = tuple(tuple(text for text, _ in column) for column in ordered)
        return cls(tuple(columns), texts, tuple(tuple(count for _, count in column) for column in ordered))

    def with_texts(self, more: Sequence[Sequence[str | None]]) -> Values:
        """The same with further values, which do not occur."""
        texts, counts = [], []
        for own, own_counts, others in zip(self.texts, self.counts, more, strict=True):
            known = dict(zip(own, own_counts, strict=True))
            column = sorted((dict.fromkeys(others, 0) | known).items(), key=_order)
            texts.append(tuple(text for text, _ in column))
            counts.append(tuple(count for _, count in column))
        return Values(self.columns, tuple(texts), tuple(counts))

    @property
    def sizes(self) -> list[int]:
        """How many a column."""
        return [len(column) for column in self.texts]

    def items(self) -> list[bytes]:
        """All of them, column after column: equal bytes mean the same value of the same column."""
        return [item(name, text) for name, column in zip(self.columns, self.texts, strict=True) for text in column]

    def split(self, numbers: Identifiers) -> list[Identifiers]:
        """One array over all items as one a column."""
        return np.split(numbers, np.cumsum(self.sizes)[:-1])


def _order(pair: tuple[str | None, int]) -> tuple[bool, str]:
    return pair[0] is not None, pair[0] or ""


def item(column: str, text: str | None) -> bytes:
    """Unambiguous: the column's length keeps it apart from the text."""
    name = column.encode()
    return len(name).to_bytes(4, "big") + name + (b"missing" if text is None else b"=" + text.encode())
