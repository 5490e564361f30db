"""A fitted StandardScaler from pooled moments: what scikit-learn would have fitted on the pooled table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from commonscale.transforms.moments import Moments


def scale_of(moments: Moments) -> tuple[float, ...]:
    """Standard deviations, with 1 for columns that are constant up to rounding, by scikit-learn's own rule."""
    return tuple(
        1.0 if is_constant(variance, mean, count) else math.sqrt(variance)
        for variance, mean, count in zip(moments.variance, moments.mean, _counts(moments), strict=True)
    )


def _counts(moments: Moments) -> tuple[int, ...]:
    """Where counts were not revealed, a variance without meaning is 0 already."""
    return moments.count if moments.count is not None else (1,) * len(moments.columns)


def is_constant(variance: float, mean: float, count: int) -> bool:
    """Whether a column has no spread beyond rounding, by scikit-learn's own rule."""
    eps = float(np.finfo(np.float64).eps)
    return variance <= count * eps * variance + (count * mean * eps) ** 2


def standard_scaler(moments: Moments) -> Any:
    """sklearn.preprocessing.StandardScaler, fitted."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaler.mean_ = np.array(moments.mean)
    scaler.var_ = np.array(moments.variance)
    scaler.scale_ = np.array(scale_of(moments))
    if moments.count is not None:
        same = len(set(moments.count)) == 1
        scaler.n_samples_seen_ = np.int64(moments.count[0]) if same else np.array(moments.count)
    scaler.n_features_in_ = len(moments.columns)
    scaler.feature_names_in_ = np.array(moments.columns, dtype=object)
    return scaler


def parameters(moments: Moments) -> dict[str, Any]:
    """The same as plain JSON values; not-a-number becomes null."""
    return {
        "transform": "zscore",
        "columns": list(moments.columns),
        "count": None if moments.count is None else list(moments.count),
        "mean": [_plain(value) for value in moments.mean],
        "variance": [_plain(value) for value in moments.variance],
        "scale": [_plain(value) for value in scale_of(moments)],
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
