"""Scalers of numeric columns: z-score, min-max, max-abs and robust scaling."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from commonscale.options import CkksOptions, Positive, Prefer
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import Deviations, Query
from commonscale.statistics import extremes
from commonscale.statistics.extremes import Extremes
from commonscale.statistics.moments import Moments, is_constant, moments, moments_under_encryption
from commonscale.statistics.quantiles import EPSILON, MEDIAN, Level, Quantiles, quantiles
from commonscale.transforms.base import Transform, named, plain


class ZScore(Transform):
    """Standardize columns with the pooled mean and standard deviation."""

    may_ask: ClassVar[tuple[type[Query[Any]], ...]] = (Deviations,)

    transform: Literal["zscore"] = "zscore"
    # How numbers are added; see docs/protocols/sums.md. "ckks" does not even reveal the counts.
    method: Literal["masks", "shares", "sac-proportional", "ckks"] = "masks"
    # "one" spares a round where that costs no digits; not with ckks.
    rounds: Literal["two", "one"] = "two"
    ckks: CkksOptions = CkksOptions()
    # With ckks: the most rows there may be at all sites together. Fewer are quicker, and more exact for few rows: 1e-7
    # needs about 100 rows with the default.
    max_rows: int = Field(default=1 << 20, ge=1 << 8, le=1 << 30)

    MEAN: ClassVar[Reveal] = Reveal("mean", "pooled count of present values and mean of each column")
    SQUARES: ClassVar[Reveal] = Reveal("mean", "pooled count of present values, mean and mean square of each column")
    SECRET_COUNT_MEAN: ClassVar[Reveal] = Reveal("mean", "pooled mean of each column")
    VARIANCE: ClassVar[Reveal] = Reveal("variance", "pooled variance of each column")

    async def fit(self, pool: Pool) -> Moments:
        """Count (unless under encryption), mean and variance."""
        if self.method == "ckks":
            return await moments_under_encryption(
                pool, self.SECRET_COUNT_MEAN, self.VARIANCE, self.columns, self.ckks, self.max_rows
            )
        one_round = self.rounds == "one"
        first = self.SQUARES if one_round else self.MEAN
        return await moments(pool, first, self.VARIANCE, self.columns, self.method, one_round=one_round)

    def numbers(self, fitted: Moments) -> dict[str, Any]:
        """Count (null if it was not revealed), mean, variance and scale."""
        return {
            "count": None if fitted.count is None else list(fitted.count),
            "mean": plain(fitted.mean),
            "variance": plain(fitted.variance),
            "scale": plain(scale_of(fitted)),
        }

    def estimator(self, fitted: Moments) -> Any:
        """A StandardScaler."""
        return standard_scaler(fitted)


def scale_of(found: Moments) -> list[float]:
    """Standard deviations, with 1 for columns that are constant up to rounding, by scikit-learn's own rule."""
    # Where counts were not revealed, a variance without meaning is 0 already.
    counts = found.count if found.count is not None else (1,) * len(found.columns)
    columns = zip(found.variance, found.mean, counts, strict=True)
    return [1.0 if is_constant(variance, mean, count) else math.sqrt(variance) for variance, mean, count in columns]


def standard_scaler(found: Moments) -> Any:
    """sklearn.preprocessing.StandardScaler, fitted."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaler.mean_, scaler.var_ = np.array(found.mean), np.array(found.variance)
    scaler.scale_ = np.array(scale_of(found))
    if found.count is not None:
        same = len(set(found.count)) == 1
        scaler.n_samples_seen_ = np.int64(found.count[0]) if same else np.array(found.count)
    return named(scaler, found.columns)


class ExtremesTransform(Transform):
    """What min-max and max-abs share."""

    method: Literal["auto", "search", "sequential", "tree", "all-pairs"] = "auto"
    ckks: CkksOptions = CkksOptions()
    # With "search".
    prefer: Prefer = "bytes"
    # Between a site and the coordinator; decides with "auto".
    latency_ms: int = Field(default=10, ge=0, le=100_000)

    async def fit(self, pool: Pool) -> tuple[Extremes, str, str]:
        """Minima and maxima, by which method, and why."""
        method, why = self.method_for(len(pool.sites))
        return await extremes.extremes(pool, self.columns, self.prefer, method, self.ckks), method, why

    def method_for(self, sites: int) -> tuple[str, str]:
        """With "auto", the quickest."""
        return extremes.choose(self.method, sites, len(self.columns), self.ckks.profile, self.latency_ms, self.prefer)

    def check_sites(self, sites: Sequence[str]) -> None:
        """Raise where a method has no room for so many."""
        if self.method == "all-pairs" and not extremes.fits(self.method, len(sites), self.ckks.profile):
            raise ValueError(f"all-pairs has no room for {len(sites)} sites: use tree or search")


class MinMax(ExtremesTransform):
    """Bring columns into a range by their pooled minimum and maximum."""

    repeats: ClassVar[tuple[str, ...]] = ("feature_range", "clip")

    transform: Literal["minmax"] = "minmax"
    feature_range: tuple[float, float] = (0.0, 1.0)
    clip: bool = False

    @field_validator("feature_range")
    @classmethod
    def _ascending(cls, feature_range: tuple[float, float]) -> tuple[float, float]:
        if not (all(map(math.isfinite, feature_range)) and feature_range[0] < feature_range[1]):
            raise ValueError("the range's first number must be below its second")
        return feature_range

    def numbers(self, fitted: tuple[Extremes, str, str]) -> dict[str, Any]:
        """Minima, maxima, and which method found them."""
        found, method, why = fitted
        return {"min": plain(found.low), "max": plain(found.high), "method": method, "method_why": why}

    def estimator(self, fitted: tuple[Extremes, str, str]) -> Any:
        """A MinMaxScaler."""
        from sklearn.preprocessing import MinMaxScaler

        found, _, _ = fitted
        low, high = self.feature_range
        made = MinMaxScaler(feature_range=self.feature_range, clip=self.clip)
        made.data_min_, made.data_max_ = found.low.copy(), found.high.copy()
        made.data_range_ = found.high - found.low
        made.scale_ = (high - low) / nonzero(made.data_range_)
        made.min_ = low - made.data_min_ * made.scale_
        return named(made, self.columns)


class MaxAbs(ExtremesTransform):
    """Divide columns by their largest pooled magnitude."""

    transform: Literal["maxabs"] = "maxabs"

    def numbers(self, fitted: tuple[Extremes, str, str]) -> dict[str, Any]:
        """The largest magnitudes, and which method found them."""
        found, method, why = fitted
        return {"max_abs": plain(_magnitude(found)), "method": method, "method_why": why}

    def estimator(self, fitted: tuple[Extremes, str, str]) -> Any:
        """A MaxAbsScaler."""
        from sklearn.preprocessing import MaxAbsScaler

        made = MaxAbsScaler()
        made.max_abs_ = _magnitude(fitted[0])
        made.scale_ = nonzero(made.max_abs_)
        return named(made, self.columns)


def _magnitude(found: Extremes) -> Floats:
    largest: Floats = np.maximum(np.abs(found.low), np.abs(found.high))
    return largest


class RanksTransform(Transform):
    """What robust scaling and quantiles share."""

    # "masks", "shares" and "ckks" reveal n and the pooled distribution around each answer; "private" reveals n and the
    # answers alone (slower, under encryption); "binary" is the paper's loop.
    method: Literal["masks", "shares", "ckks", "private", "binary"] = "masks"
    # With "masks".
    prefer: Prefer = "bytes"
    ckks: CkksOptions = CkksOptions()
    # Where method "binary" stops.
    epsilon: Positive = EPSILON


class Robust(RanksTransform):
    """Center columns by their pooled median, and scale them by a pooled interquantile range."""

    # A RobustScaler has them by the same names.
    repeats: ClassVar[tuple[str, ...]] = ("quantile_range", "with_centering", "with_scaling", "unit_variance")

    transform: Literal["robust"] = "robust"
    # In percent, as scikit-learn's.
    quantile_range: tuple[float, float] = (25.0, 75.0)
    with_centering: bool = True
    with_scaling: bool = True
    unit_variance: bool = False

    @field_validator("quantile_range")
    @classmethod
    def _inside(cls, quantile_range: tuple[float, float]) -> tuple[float, float]:
        low, high = quantile_range
        if not 0 <= low < high <= 100:
            raise ValueError("give two percentages, the lower one first")
        return quantile_range

    async def fit(self, pool: Pool) -> Quantiles:
        """Lower quantile, median, upper quantile."""
        low, high = self.quantile_range
        levels: list[Level] = [low / 100, MEDIAN, high / 100]
        return await quantiles(pool, self.columns, levels, self.prefer, self.method, self.ckks, self.epsilon)

    def numbers(self, fitted: Quantiles) -> dict[str, Any]:
        """Counts, medians and quantiles."""
        lower, median, upper = map(plain, fitted.values.T)
        return {"count": list(fitted.count), "lower": lower, "median": median, "upper": upper}

    def estimator(self, fitted: Quantiles) -> Any:
        """A RobustScaler."""
        from scipy import stats
        from sklearn.preprocessing import RobustScaler

        made = RobustScaler(**self.model_dump(include=set(self.repeats)))
        lower, median, upper = fitted.values.T
        made.center_ = median.copy() if self.with_centering else None
        made.scale_ = nonzero(upper - lower) if self.with_scaling else None
        if self.with_scaling and self.unit_variance:
            low, high = (stats.norm.ppf(percent / 100.0) for percent in self.quantile_range)
            made.scale_ = made.scale_ / (high - low)
        return named(made, self.columns)


def nonzero(scale: Floats) -> Floats:
    """1 in place of a scale that is zero up to rounding, by scikit-learn's own rule."""
    return np.where(scale < 10 * np.finfo(np.float64).eps, 1.0, scale)
