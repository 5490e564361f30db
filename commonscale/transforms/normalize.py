"""Rows of unit length: nothing is learned from the data, so nothing is sent."""

from typing import Any, ClassVar, Literal

import numpy as np

from commonscale.pool import Pool
from commonscale.transforms.base import Transform, named


class Normalizer(Transform):
    """Divide every row of these columns by its own norm. No protocol: a row is at one site."""

    takes_missing: ClassVar[bool] = False
    repeats: ClassVar[tuple[str, ...]] = ("norm",)

    transform: Literal["normalizer"] = "normalizer"
    norm: Literal["l1", "l2", "max"] = "l2"

    async def fit(self, pool: Pool) -> None:
        """There is nothing to learn."""

    def estimator(self, fitted: None) -> Any:
        """A Normalizer."""
        from sklearn.preprocessing import Normalizer

        return named(Normalizer(norm=self.norm).fit(np.zeros((1, len(self.columns)))), self.columns)
