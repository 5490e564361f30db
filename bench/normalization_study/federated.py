"""Normalization parameters from what each client may add to a secure sum, minimum or maximum; rows stay where they are.

Each function takes the clients' tables, asks every one for a statistic of its own rows, and combines the answers:

- z-score: counts and sums give the means; squared deviations from them give the variances.
- min-max: minima and maxima.
- robust: a quantile is an order statistic, found by bisection: each round sums the clients' counts of values up to a
  candidate. Candidates are halved over the floating-point numbers in their order, so that 64 rounds find the value
  itself.
- Yeo-Johnson: λ is where the derivative of the log-likelihood changes its sign, found by bisection (the likelihood
  has one maximum); each round sums the transformed values, their derivatives, and the centred products of both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
from commonscale_worker.networks.losses import FloatArray

LAMBDA_ROUNDS = 64
# Beyond this exponent a transformed value would overflow when squared.
LARGEST_EXPONENT = 300.0
# A column whose variance is not above the rounding of its mean is constant (scikit-learn's rule).
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Affine:
    """(x - centre) / scale."""

    centre: FloatArray
    scale: FloatArray

    def __call__(self, x: FloatArray) -> FloatArray:
        """Apply it to rows."""
        return (x - self.centre) / self.scale


@dataclass(frozen=True)
class Power:
    """Yeo-Johnson with one λ a column, then a z-score."""

    lambdas: FloatArray
    standard: Affine

    def __call__(self, x: FloatArray) -> FloatArray:
        """Apply it to rows."""
        return self.standard(yeo_johnson(x, self.lambdas)[0])


def _summed(values: Sequence[FloatArray]) -> FloatArray:
    return reduce(np.add, values)


def _moments(tables: Sequence[FloatArray]) -> tuple[int, FloatArray, FloatArray]:
    """Pooled count, means and variances in two rounds."""
    count = sum(len(t) for t in tables)
    mean = _summed([t.sum(axis=0) for t in tables]) / count
    deviation = _summed([(t - mean).sum(axis=0) for t in tables])
    squared = _summed([((t - mean) ** 2).sum(axis=0) for t in tables])
    return count, mean, np.maximum(squared - deviation**2 / count, 0.0) / count


def _constant(count: int, mean: FloatArray, variance: FloatArray) -> npt.NDArray[np.bool_]:
    return np.asarray(variance <= count * EPSILON * variance + (count * mean * EPSILON) ** 2)


def zscore(tables: Sequence[FloatArray]) -> Affine:
    """Pooled mean and standard deviation; a constant column keeps its scale."""
    count, mean, variance = _moments(tables)
    return Affine(mean, np.where(_constant(count, mean, variance), 1.0, np.sqrt(variance)))


def minmax(tables: Sequence[FloatArray]) -> Affine:
    """Pooled minimum and range."""
    low = reduce(np.minimum, [t.min(axis=0) for t in tables])
    high = reduce(np.maximum, [t.max(axis=0) for t in tables])
    return Affine(low, _usable(high - low))


def robust(tables: Sequence[FloatArray]) -> Affine:
    """Pooled median and interquartile range."""
    lower, median, upper = (quantile(tables, q) for q in (0.25, 0.5, 0.75))
    return Affine(median, _usable(upper - lower))


def _usable(scale: FloatArray) -> FloatArray:
    return np.where(scale < 10 * EPSILON, 1.0, scale)


def quantile(tables: Sequence[FloatArray], q: float) -> FloatArray:
    """Quantile with linear interpolation between two neighbouring order statistics."""
    place = (sum(len(t) for t in tables) - 1) * q
    k = int(np.floor(place))
    below = order_statistic(tables, k + 1)
    above = order_statistic(tables, k + 2) if place > k else below
    return below + (above - below) * (place - k)


def order_statistic(tables: Sequence[FloatArray], k: int) -> FloatArray:
    """The k-th smallest pooled value of each column (k from 1): the least candidate with at least k values up to it."""
    low = _ordered(reduce(np.minimum, [t.min(axis=0) for t in tables]))
    high = _ordered(reduce(np.maximum, [t.max(axis=0) for t in tables]))
    while np.any(low < high):
        middle = low + (high - low) // 2
        counts = _summed([(t <= _unordered(middle)).sum(axis=0) for t in tables])
        enough = counts >= k
        high, low = np.where(enough, middle, high), np.where(enough, low, middle + 1)
    return _unordered(low)


def _ordered(x: FloatArray) -> npt.NDArray[np.object_]:
    # Whole numbers in the order of the floats, neighbours to neighbours; Python's, since differences pass 64 bits.
    bits = np.ascontiguousarray(x + 0.0).view(np.int64)  # + 0.0: one zero, not two
    return np.where(bits < 0, -(bits & np.int64(2**63 - 1)), bits).astype(object)


def _unordered(whole: npt.NDArray[np.object_]) -> FloatArray:
    magnitudes = np.abs(whole).astype(np.int64).view(np.float64)
    return np.where(whole.astype(np.int64) < 0, -magnitudes, magnitudes)


def yeo_johnson(x: FloatArray, lambdas: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Transformed values ψ(x, λ) and their derivatives by λ.

    With L = log(1 + |x|) and e = λ for x ≥ 0, e = 2 - λ below: ψ = ±(exp(e·L) - 1)/e, and in both halves
    dψ/dλ = L²·(t·exp(t) - exp(t) + 1)/t² with t = e·L.
    """
    logs = np.log1p(np.abs(x))
    t = np.where(x >= 0, lambdas, 2.0 - lambdas) * logs
    small = np.abs(t) < 1e-4
    safe = np.where(small, 1.0, t)
    growth = np.expm1(safe)
    first = np.where(small, 1 + t / 2 + t**2 / 6, growth / safe)
    second = np.where(small, 0.5 + t / 3 + t**2 / 8, (safe * (growth + 1.0) - growth) / safe**2)
    return np.copysign(logs * first, x), logs**2 * second


def _slope(tables: Sequence[FloatArray], lambdas: FloatArray, count: int, logs: FloatArray) -> FloatArray:
    """Derivative of the log-likelihood: -n · cov(ψ, dψ)/var(ψ) + sum of sign(x)·log(1 + |x|)."""
    pairs = [yeo_johnson(t, lambdas) for t in tables]
    mean = _summed([y.sum(axis=0) for y, _ in pairs]) / count
    mean_slope = _summed([d.sum(axis=0) for _, d in pairs]) / count
    variance = _summed([((y - mean) ** 2).sum(axis=0) for y, _ in pairs])
    covariance = _summed([((y - mean) * (d - mean_slope)).sum(axis=0) for y, d in pairs])
    return logs - count * covariance / variance


def power(tables: Sequence[FloatArray]) -> Power:
    """Pooled Yeo-Johnson λ by bisection, then the z-score of the transformed values; constant columns keep λ = 1."""
    count, mean, variance = _moments(tables)
    logs = _summed([(np.sign(t) * np.log1p(np.abs(t))).sum(axis=0) for t in tables])
    largest = reduce(np.maximum, [np.log1p(np.abs(t)).max(axis=0) for t in tables])
    reach = LARGEST_EXPONENT / np.maximum(largest, EPSILON)
    low, high = -reach, np.maximum(reach, 2.0 + reach)
    with np.errstate(all="ignore"):
        lambdas = _bisected(lambda at: _slope(tables, at, count, logs), low, high)
    lambdas = np.where(_constant(count, mean, variance), 1.0, lambdas)
    return Power(lambdas, zscore([yeo_johnson(t, lambdas)[0] for t in tables]))


def _bisected(slope: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray) -> FloatArray:
    for _ in range(LAMBDA_ROUNDS):
        middle = (low + high) / 2
        rising = slope(middle) > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return (low + high) / 2
