"""The Yeo-Johnson transformation y(x; λ), its derivative by λ, and the search for the likeliest λ.

Both are written with expm1 and log1p, so that they are exact near λ = 0, λ = 2 and x = 0. The log-likelihood is
concave in λ, so the sign of its derivative says on which side the optimum lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonscale.transforms.ordering import Floats

# λL beyond this would leave the range of floats.
_MAX_EXPONENT = 300.0
_FIRST_GRID = 1.0 + np.array([0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32])
_POINTS = 31
PRECISION = 1e-10


def transform(x: Floats, lam: float) -> Floats:
    """y(x; λ)."""
    log, k = np.log1p(np.abs(x)), np.where(x >= 0, lam, 2 - lam)
    y: Floats = np.sign(x) * log * _psi(k * log)
    return y


def derivative(x: Floats, lam: float) -> Floats:
    """∂y/∂λ: never negative."""
    log, k = np.log1p(np.abs(x)), np.where(x >= 0, lam, 2 - lam)
    slope: Floats = log**2 * _phi(k * log)
    return slope


def _psi(t: Floats) -> Floats:
    """expm1(t)/t."""
    safe = np.where(t == 0, 1.0, t)
    return np.where(t == 0, 1.0, np.expm1(safe) / safe)


def _phi(t: Floats) -> Floats:
    """(t·exp(t) - expm1(t))/t², with its series where the terms cancel."""
    small = np.abs(t) < 1e-2
    safe = np.where(small, 1.0, t)
    series = 0.5 + t / 3 + t**2 / 8 + t**3 / 30 + t**4 / 144
    return np.where(small, series, (safe * np.exp(safe) - np.expm1(safe)) / safe**2)


def scales(bound: float, lam: float) -> tuple[float, float]:
    """The largest magnitudes of y and of its derivative for |x| ≤ bound: public, so that sums stay in range."""
    ends = np.array([-bound, bound])
    smallest = float(np.finfo(np.float64).tiny)
    value, slope = float(np.abs(transform(ends, lam)).max()), float(derivative(ends, lam).max())
    return max(value, smallest), max(slope, smallest)


def terms(x: Floats, centre: float, bound: float, lam: float) -> tuple[float, float, float, float]:
    """Sums over x of d, d², e and d·e: y and ∂y/∂λ less their values at the centre, over their scales."""
    y_scale, slope_scale = scales(bound, lam)
    at = np.array([centre])
    d = (transform(x, lam) - transform(at, lam)) / y_scale
    e = (derivative(x, lam) - derivative(at, lam)) / slope_scale
    return float(d.sum()), float(np.square(d).sum()), float(e.sum()), float((d * e).sum())


def uphill(count: float, logs: float, bound: float, lam: float, sums: tuple[float, float, float, float]) -> bool:
    """Whether the log-likelihood still rises at λ. `logs` is the sum of sign(x)·log1p|x|."""
    d, dd, e, de = (value / count for value in sums)
    y_scale, slope_scale = scales(bound, lam)
    variance = dd - d * d
    if variance <= 0:
        return lam < 1
    return logs / count > (de - d * e) / variance * slope_scale / y_scale


@dataclass
class Bracket:
    """Where one column's λ may still be."""

    bound: float
    low: float
    high: float
    first: bool = True

    @classmethod
    def around(cls, bound: float) -> Bracket:
        """The whole range in which floats can follow."""
        reach = _MAX_EXPONENT / max(float(np.log1p(bound)), 1.0)
        return cls(bound, max(2 - reach, 2 - float(_FIRST_GRID[-1])), min(reach, float(_FIRST_GRID[-1])))

    def points(self) -> Floats:
        """The candidates of the next round: the same number every time."""
        if self.first:
            grid = np.concatenate([2 - _FIRST_GRID[:0:-1], _FIRST_GRID])
            grid = np.concatenate([grid, np.full(_POINTS - len(grid), self.high)])
            return np.sort(np.clip(grid, self.low, self.high))
        inner: Floats = np.linspace(self.low, self.high, _POINTS + 2, dtype=np.float64)[1:-1]
        return inner

    def take(self, rising: list[bool]) -> None:
        """Keep the part between the last candidate that rises and the first that does not."""
        points = self.points()
        count = sum(rising)
        low = points[count - 1] if count else self.low
        high = points[count] if count < len(points) else self.high
        self.low, self.high, self.first = float(low), float(high), False

    def done(self) -> bool:
        """Whether λ is known."""
        return self.high - self.low <= PRECISION * max(1.0, abs(self.low))

    @property
    def middle(self) -> float:
        """λ."""
        return (self.low + self.high) / 2


POINTS = _POINTS
