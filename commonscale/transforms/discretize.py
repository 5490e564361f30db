"""Two values or bins in place of numbers."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from commonscale.errors import OutOfRange
from commonscale.options import Prefer
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.statistics.extremes import extremes
from commonscale.statistics.quantiles import percent, quantiles
from commonscale.transforms.base import Transform, check_few, check_finite, check_present, named, plain

# Edges that are nearer to each other are one, by scikit-learn's own rule.
_LEAST_WIDTH = 1e-8


class Binarizer(Transform):
    """1 above a threshold, 0 elsewhere. No protocol: the threshold is public."""

    continuous: ClassVar[bool] = False
    takes_missing: ClassVar[bool] = False
    repeats: ClassVar[tuple[str, ...]] = ("threshold",)

    transform: Literal["binarizer"] = "binarizer"
    threshold: float = Field(default=0.0, allow_inf_nan=False)

    async def fit(self, pool: Pool) -> None:
        """There is nothing to learn."""

    def estimator(self, fitted: None) -> Any:
        """A Binarizer."""
        from sklearn.preprocessing import Binarizer

        return named(Binarizer(threshold=self.threshold).fit(np.zeros((1, len(self.columns)))), self.columns)


class KBins(Transform):
    """Cut columns into bins, of equally many values of all sites or of equal width between the pooled extremes."""

    continuous: ClassVar[bool] = False
    takes_missing: ClassVar[bool] = False
    repeats: ClassVar[tuple[str, ...]] = ("n_bins", "encode", "strategy")
    unsupported: ClassVar[dict[str, str]] = {
        "subsample": "it draws rows at random; here all rows count, as with None",
        "random_state": "nothing is drawn at random",
        "quantile_method": "it is always 'linear'",
    }

    transform: Literal["kbins"] = "kbins"
    n_bins: int = Field(default=5, ge=2, le=1000)
    encode: Literal["onehot", "onehot-dense", "ordinal"] = "onehot"
    strategy: Literal["quantile", "uniform"] = "quantile"
    prefer: Prefer = "bytes"

    @model_validator(mode="after")
    def _few_quantiles(self) -> "KBins":
        if self.strategy == "quantile":
            check_few(self.n_bins, "n_bins")
        return self

    async def fit(self, pool: Pool) -> list[Floats]:
        """The edges of each column's bins; infinite ones for a constant column, which has one bin."""
        if self.strategy == "quantile":
            found = await quantiles(pool, self.columns, percent(np.linspace(0, 100, self.n_bins + 1)), self.prefer)
            edges = found.values
            check_present(self.columns, edges[:, 0])
        else:
            range_ = await extremes(pool, self.columns, self.prefer)
            check_present(self.columns, range_.low)
            # One by one: for all columns at once, numpy takes another formula as soon as one of them is constant.
            ends = zip(range_.low, range_.high, strict=True)
            edges = np.stack([np.linspace(low, high, self.n_bins + 1) for low, high in ends])
        check_finite(self.columns, edges)
        distinct = [self._distinct_edges(row) for row in edges]
        for column, row in zip(self.columns, distinct, strict=True):
            if len(row) < 2 and self.encode != "ordinal":
                raise OutOfRange(
                    f"All values of column {column!r} are nearer to each other than {_LEAST_WIDTH:g}: it has no bin.",
                    "Scale it by an earlier step, or use strategy 'uniform'.",
                )
        return distinct

    def _distinct_edges(self, edges: Floats) -> Floats:
        if edges[0] == edges[-1]:
            return np.array([-np.inf, np.inf])
        return edges if self.strategy == "uniform" else edges[np.ediff1d(edges, to_begin=np.inf) > _LEAST_WIDTH]

    def outputs(self) -> list[str] | None:
        """The same columns, unless every bin becomes one."""
        return self.columns if self.encode == "ordinal" else None

    def numbers(self, fitted: Sequence[Floats]) -> dict[str, Any]:
        """The edges; none for a constant column."""
        return {"edges": [plain(edges) if np.isfinite(edges[0]) else [] for edges in fitted]}

    def estimator(self, fitted: Sequence[Floats]) -> Any:
        """A KBinsDiscretizer."""
        from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder

        made = KBinsDiscretizer(
            n_bins=self.n_bins, encode=self.encode, strategy=self.strategy, quantile_method="linear", subsample=None
        )
        made.bin_edges_, made.n_bins_ = np.empty(len(fitted), dtype=object), np.array([len(e) - 1 for e in fitted])
        for place, edges in enumerate(fitted):
            made.bin_edges_[place] = edges
        if self.encode != "ordinal":
            bins = [np.arange(number) for number in made.n_bins_]
            made._encoder = OneHotEncoder(categories=bins, sparse_output=self.encode == "onehot", dtype=np.float64)
            made._encoder.fit(np.zeros((1, len(bins))))
        return named(made, self.columns)
