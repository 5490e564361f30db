"""What steps end with: parameters as JSON values, and the fitted scikit-learn object that they make.

Every class holds the same at all sites, and gives what scikit-learn would have fitted on the pooled table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from commonscale.transforms import scaler
from commonscale.transforms.moments import Moments
from commonscale.transforms.ordering import Floats


class Fitted(Protocol):
    """The end of a step."""

    def parameters(self) -> dict[str, Any]:
        """As JSON values."""

    def estimator(self) -> Any:
        """A fitted scikit-learn object; None where there is none to fit."""


@dataclass(frozen=True)
class FittedStandard:
    """Of z-score."""

    moments: Moments

    def parameters(self) -> dict[str, Any]:
        """Count (null if it was not revealed), mean, variance and scale."""
        return scaler.parameters(self.moments)

    def estimator(self) -> Any:
        """A StandardScaler."""
        return scaler.standard_scaler(self.moments)


@dataclass(frozen=True)
class FittedMinMax:
    """Of min-max."""

    columns: tuple[str, ...]
    low: Floats
    high: Floats
    feature_range: tuple[float, float]
    clip: bool
    variant: str
    why: str

    def parameters(self) -> dict[str, Any]:
        """Minima, maxima, and which variant found them."""
        return {
            "transform": "minmax",
            "columns": list(self.columns),
            "min": plain(self.low),
            "max": plain(self.high),
            "feature_range": list(self.feature_range),
            "clip": self.clip,
            "variant": self.variant,
            "variant_why": self.why,
        }

    def estimator(self) -> Any:
        """A MinMaxScaler."""
        from sklearn.preprocessing import MinMaxScaler

        low, high = self.feature_range
        made = MinMaxScaler(feature_range=self.feature_range, clip=self.clip)
        made.data_min_, made.data_max_ = self.low.copy(), self.high.copy()
        made.data_range_ = self.high - self.low
        made.scale_ = (high - low) / nonzero(made.data_range_)
        made.min_ = low - made.data_min_ * made.scale_
        return named(made, self.columns)


@dataclass(frozen=True)
class FittedMaxAbs:
    """Of max-abs."""

    columns: tuple[str, ...]
    max_abs: Floats
    variant: str
    why: str

    def parameters(self) -> dict[str, Any]:
        """The largest magnitudes, and which variant found them."""
        return {
            "transform": "maxabs",
            "columns": list(self.columns),
            "max_abs": plain(self.max_abs),
            "variant": self.variant,
            "variant_why": self.why,
        }

    def estimator(self) -> Any:
        """A MaxAbsScaler."""
        from sklearn.preprocessing import MaxAbsScaler

        made = MaxAbsScaler()
        made.max_abs_ = self.max_abs.copy()
        made.scale_ = nonzero(self.max_abs)
        return named(made, self.columns)


@dataclass(frozen=True)
class FittedRobust:
    """Of robust scaling. `quantiles` has a row a column: lower, median, upper."""

    columns: tuple[str, ...]
    count: tuple[int, ...]
    quantiles: Floats
    quantile_range: tuple[float, float]
    with_centering: bool
    with_scaling: bool
    unit_variance: bool

    def parameters(self) -> dict[str, Any]:
        """Counts, medians and quantiles."""
        return {
            "transform": "robust",
            "columns": list(self.columns),
            "count": list(self.count),
            "quantile_range": list(self.quantile_range),
            "lower": plain(self.quantiles[:, 0]),
            "median": plain(self.quantiles[:, 1]),
            "upper": plain(self.quantiles[:, 2]),
            "with_centering": self.with_centering,
            "with_scaling": self.with_scaling,
            "unit_variance": self.unit_variance,
        }

    def estimator(self) -> Any:
        """A RobustScaler."""
        from scipy import stats
        from sklearn.preprocessing import RobustScaler

        made = RobustScaler(
            with_centering=self.with_centering,
            with_scaling=self.with_scaling,
            quantile_range=self.quantile_range,
            unit_variance=self.unit_variance,
        )
        lower, upper = (percent / 100.0 for percent in self.quantile_range)
        made.center_ = self.quantiles[:, 1].copy() if self.with_centering else None
        made.scale_ = nonzero(self.quantiles[:, 2] - self.quantiles[:, 0]) if self.with_scaling else None
        if self.with_scaling and self.unit_variance:
            made.scale_ = made.scale_ / (stats.norm.ppf(upper) - stats.norm.ppf(lower))
        return named(made, self.columns)


@dataclass(frozen=True)
class FittedQuantiles:
    """Of quantiles: numbers to read."""

    columns: tuple[str, ...]
    count: tuple[int, ...]
    at: tuple[float, ...]
    quantiles: Floats

    def parameters(self) -> dict[str, Any]:
        """Counts, and one row of quantiles a column."""
        return {
            "transform": "quantiles",
            "columns": list(self.columns),
            "count": list(self.count),
            "quantiles": list(self.at),
            "values": [plain(row) for row in self.quantiles],
        }

    def estimator(self) -> None:
        """There is none."""


@dataclass(frozen=True)
class FittedYeoJohnson:
    """Of Yeo-Johnson: lambdas, and the moments of the transformed columns where they are standardized."""

    columns: tuple[str, ...]
    lambdas: Floats
    moments: Moments | None

    def parameters(self) -> dict[str, Any]:
        """Lambdas, and mean and variance after the transformation."""
        found: dict[str, Any] = {
            "transform": "yeo-johnson",
            "columns": list(self.columns),
            "lambda": plain(self.lambdas),
            "standardize": self.moments is not None,
        }
        if self.moments is not None:
            found |= {"mean": plain(self.moments.mean), "variance": plain(self.moments.variance)}
        return found

    def estimator(self) -> Any:
        """A PowerTransformer."""
        from sklearn.preprocessing import PowerTransformer

        made = PowerTransformer(method="yeo-johnson", standardize=self.moments is not None)
        made.lambdas_ = self.lambdas.copy()
        if self.moments is not None:
            made._scaler = scaler.standard_scaler(self.moments)
            # It sees arrays, never names.
            del made._scaler.feature_names_in_
        return named(made, self.columns)


def named(estimator: Any, columns: tuple[str, ...]) -> Any:
    """With the names of its columns."""
    estimator.n_features_in_ = len(columns)
    estimator.feature_names_in_ = np.array(columns, dtype=object)
    return estimator


def nonzero(scale: Floats) -> Floats:
    """1 in place of a scale that is zero up to rounding, by scikit-learn's own rule."""
    found: Floats = np.where(scale < 10 * np.finfo(np.float64).eps, 1.0, scale)
    return found


def plain(values: Iterable[float]) -> list[float | None]:
    """JSON values; not-a-number becomes null."""
    return [None if math.isnan(value) else float(value) for value in values]
