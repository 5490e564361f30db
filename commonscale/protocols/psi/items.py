"""A site's categorical values as the bytes that protocols work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Identifiers = NDArray[np.int64]


@dataclass(frozen=True)
class Values:
    """A site's different values of some columns and how often each occurs: in order, the missing value first."""

    columns: tuple[str, ...]
    counts: tuple[dict[str | None, int], ...] = field(repr=False)

    @classmethod
    def of(cls, columns: Sequence[str], found: Sequence[Mapping[str | None, int]]) -> Values:
        """From how often each canonical value of each column occurs."""
        ordered = (sorted(column.items(), key=lambda pair: (pair[0] is not None, pair[0] or "")) for column in found)
        return cls(tuple(columns), tuple(map(dict, ordered)))

    @property
    def sizes(self) -> list[int]:
        """How many per column."""
        return [len(column) for column in self.counts]

    def items(self) -> list[bytes]:
        """All of them, column after column: equal bytes mean the same value of the same column."""
        return [item(name, text) for name, column in zip(self.columns, self.counts, strict=True) for text in column]

    def split(self, numbers: Identifiers) -> list[Identifiers]:
        """One array over all items as one per column."""
        return np.split(numbers, np.cumsum(self.sizes)[:-1])


def item(column: str, text: str | None) -> bytes:
    """Unambiguous: the column's length keeps it apart from the text."""
    name = column.encode()
    return len(name).to_bytes(4, "big") + name + (b"missing" if text is None else b"=" + text.encode())
