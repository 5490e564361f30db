"""Linear equations in the sites' own numbers, from sums that were opened."""

from typing import Any

import numpy as np

# The site, and which of its numbers.
Unknown = tuple[Any, ...]


class Equations:
    """Linear equations in numbers of sites, as whoever sees sums of them can write them down."""

    def __init__(self) -> None:
        self._at: dict[Unknown, int] = {}
        self._rows: list[tuple[dict[int, float], float]] = []

    def add(self, terms: dict[Unknown, float], value: float) -> None:
        """The sum of the terms has this value."""
        places = {self._at.setdefault(unknown, len(self._at)): factor for unknown, factor in terms.items()}
        self._rows.append((places, value))

    def determined(self) -> dict[Unknown, int]:
        """The unknowns that have one value in all solutions, with it."""
        matrix = np.zeros((len(self._rows), len(self._at)))
        for number, (places, _) in enumerate(self._rows):
            matrix[number, list(places)] = list(places.values())
        left, singular, right = np.linalg.svd(matrix, full_matrices=False)
        real = singular > 1e-9 * singular[0]
        left, singular, right = left[:, real], singular[real], right[real]
        solution = right.T @ ((left.T @ np.array([value for _, value in self._rows])) / singular)
        fixed = np.square(right).sum(axis=0) > 1 - 1e-9
        return {unknown: round(solution[at]) for unknown, at in self._at.items() if fixed[at]}
