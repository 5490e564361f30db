"""Numbers for a person to read; nothing comes out for new rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from commonscale.options import Prefer
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import Integers
from commonscale.statistics.histograms import histograms
from commonscale.statistics.moments import Moments, moments
from commonscale.statistics.quantiles import Level, quantiles
from commonscale.statistics.quantiles import Quantiles as Fitted
from commonscale.statistics.rows import row_count
from commonscale.transforms.base import MAX_QUANTILES, Transform, plain
from commonscale.transforms.scaling import RanksTransform

Share = Annotated[float, Field(ge=0, le=1)]


class Quantiles(RanksTransform):
    """Ranked elements of pooled columns."""

    produces: ClassVar[bool] = False
    repeats: ClassVar[tuple[str, ...]] = ("quantiles",)

    transform: Literal["quantiles"] = "quantiles"
    # Between 0 and 1, interpolated as numpy does.
    quantiles: Annotated[tuple[Share, ...], Field(min_length=1, max_length=MAX_QUANTILES)] = (0.25, 0.5, 0.75)

    async def fit(self, pool: Pool) -> Fitted:
        """The quantiles of every column."""
        return await quantiles(pool, self.columns, self.quantiles, self.prefer, self.method, self.ckks, self.epsilon)

    def numbers(self, fitted: Fitted) -> dict[str, Any]:
        """Counts, and one row of quantiles per column."""
        return {"count": list(fitted.count), "values": [plain(row) for row in fitted.values]}

    def estimator(self, fitted: Fitted) -> None:
        """There is none."""


@dataclass(frozen=True)
class Description:
    """What is known of some columns: quartiles between the extremes, if these may be known, and counts of bins."""

    rows: int
    moments: Moments
    quartiles: Floats
    edges: Sequence[Floats]
    bins: Sequence[Integers]


class Describe(Transform):
    """Counts, means, deviations, quartiles, extremes and histograms of pooled columns."""

    produces: ClassVar[bool] = False

    transform: Literal["describe"] = "describe"
    # Smallest and largest values; without them there are quartiles alone, and no histogram.
    extremes: bool = True
    # Of the histogram, of equal width between the extremes: 10 if nothing is said; 0: none.
    bins: int | None = Field(default=None, ge=0, le=100)
    prefer: Prefer = "bytes"

    MEAN: ClassVar[Reveal] = Reveal("mean", "pooled count of present values and mean of each column")
    VARIANCE: ClassVar[Reveal] = Reveal("variance", "pooled variance of each column")

    @model_validator(mode="after")
    def _bins_have_ends(self) -> Describe:
        if self.bins and not self.extremes:
            raise ValueError("a histogram lies between the extremes: leave bins out, or ask for the extremes")
        return self

    @property
    def _bins(self) -> int:
        return 0 if not self.extremes else 10 if self.bins is None else self.bins

    async def fit(self, pool: Pool) -> Description:
        """Rows, moments, ranks, and counts between the extremes."""
        rows = await row_count(pool)
        found = await moments(pool, self.MEAN, self.VARIANCE, self.columns, "masks")
        levels: list[Level] = [0.0, 0.25, 0.5, 0.75, 1.0] if self.extremes else [0.25, 0.5, 0.75]
        quartiles = (await quantiles(pool, self.columns, levels, self.prefer)).values
        if not self._bins:
            return Description(rows, found, quartiles, (), ())
        edges = [self._edges(row[0], row[-1]) for row in quartiles]
        assert found.count is not None
        return Description(rows, found, quartiles, edges, await histograms(pool, self.columns, found.count, edges))

    def _edges(self, low: float, high: float) -> Floats:
        """A constant column has its value in the middle, as numpy's; for one without values any edges will do."""
        low, high = (0.0, 0.0) if math.isnan(low) else (low, high)
        return np.linspace(low - 0.5 * (low == high), high + 0.5 * (low == high), self._bins + 1, dtype=np.float64)

    def numbers(self, fitted: Description) -> dict[str, Any]:
        """One list per number; shares are of all rows, and deviations are divided by the count less one."""
        counts, rows = fitted.moments.count or (), fitted.rows
        names = ("min", "lower", "median", "upper", "max") if self.extremes else ("lower", "median", "upper")
        return {
            "rows": rows,
            "count": list(counts),
            "missing": [(rows - count) / rows if rows else None for count in counts],
            "mean": plain(fitted.moments.mean),
            "sd": plain(map(_deviation, fitted.moments.variance, counts)),
            **dict(zip(names, map(plain, fitted.quartiles.T), strict=True)),
            "edges": [plain(edges) if any(bins) else [] for edges, bins in zip(fitted.edges, fitted.bins, strict=True)],
            "histogram": [bins.tolist() if any(bins) else [] for bins in fitted.bins],
        }

    def estimator(self, fitted: Description) -> None:
        """There is none."""


def _deviation(variance: float, count: int) -> float:
    return math.sqrt(variance * count / (count - 1)) if count > 1 else math.nan
