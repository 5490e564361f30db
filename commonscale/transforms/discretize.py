"""Bins of numeric columns."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from commonscale.errors import MissingColumn
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.statistics.extremes import Extremes, extremes
from commonscale.transforms.base import Transform, named, plain


class KBins(Transform):
    """Cut columns into bins of equal width between the pooled extremes."""

    continuous: ClassVar[bool] = False
    takes_missing: ClassVar[bool] = False
    repeats: ClassVar[tuple[str, ...]] = ("n_bins", "encode")

    transform: Literal["kbins"] = "kbins"
    n_bins: int = Field(default=5, ge=2, le=1000)
    encode: Literal["onehot", "onehot-dense", "ordinal"] = "onehot"

    RANGE: ClassVar[Reveal] = Reveal("range", "pooled minimum and maximum of each column")

    async def fit(self, pool: Pool) -> Extremes:
        """Minima and maxima."""
        found = await extremes(pool, self.RANGE, self.columns)
        for column, low in zip(self.columns, found.low, strict=True):
            if np.isnan(low):
                raise MissingColumn(f"Column {column!r} has no value at any site.", "Leave it out of the pipeline.")
        return found

    def outputs(self) -> list[str] | None:
        """The same columns, unless every bin becomes one."""
        return self.columns if self.encode == "ordinal" else None

    def numbers(self, fitted: Extremes) -> dict[str, Any]:
        """Minima and maxima; the edges follow from them."""
        return {"min": plain(fitted.low), "max": plain(fitted.high)}

    def estimator(self, fitted: Extremes) -> Any:
        """A KBinsDiscretizer; its edges are those of two rows, the extremes."""
        from sklearn.preprocessing import KBinsDiscretizer

        bins = KBinsDiscretizer(n_bins=self.n_bins, encode=self.encode, strategy="uniform", subsample=None)
        return named(bins.fit(np.stack([fitted.low, fitted.high])), self.columns)
