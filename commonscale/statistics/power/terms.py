"""The sums that the search for the likeliest λ of Yeo-Johnson and Box-Cox is made on. Pure arithmetic, no network.

With L = log1p|x| and a centre c ≥ 0 (a column whose centre is negative is mirrored: x → -x, λ → 2 - λ) every value
enters by its distance from the centre, divided by exp(λ·log1p c), in which nothing cancels however far y saturates:

    w = L - log1p c,   u = expm1(λ·w)/λ,                                    ∂u/∂λ = w²·φ(λ·w)              (x ≥ 0)
    w = -L - log1p c,  u = -(L·ψ((2-λ)·L) + log1p c·ψ(λ·log1p c))/(1+c)^λ,  ∂u/∂λ likewise positive        (x < 0)

where ψ(t) = expm1(t)/t and φ = ψ'. The derivative of the log-likelihood over n is then

    f(λ) = mean(w) - cov(u, ∂u/∂λ) / var(u).

Box-Cox is the same for x > 0 with x in place of 1 + x (`shift` 0 instead of 1), and knows no other side.

A round opens five sums per column: of u/S, (u/S)², v, v·u/S and w/W with v = ∂u/∂λ/(S·W). W is the width of the
column in L, so that |v| ≤ |u/S|. S is a power of two that brings the largest possible |u| to about 2^40: squares of
2^30 values at a site stay below 2^111, and values 2^75 times smaller than the largest possible one still have all their
digits above 2^-128. Where a column lies even lower, the totals show it, and the round is repeated with a finer S.

What all roles compute from the totals is exact or correctly rounded (Fraction, Decimal's exp and ln), so that they
agree to the last bit on any machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np

from commonscale.ordering import Floats

TERMS = 5
_HEADROOM_BITS = 40
# Sums of squares below this may have lost digits at 2^-128.
_LEAST_SQUARES = Fraction(1, 2**70)
_CHUNK = 8192
# φ(t) = Σ (k+1)/(k+2)!·t^k, highest power first; enough for |t| < 0.1.
_PHI_SERIES = tuple((k + 1) / math.factorial(k + 2) for k in range(9, -1, -1))
_SERIES_BELOW = 0.1
# Nearer to 0 than this, λ·w could leave the range of normal floats.
_LINEAR_BELOW = 1e-30
EXACT = Context(prec=40)
_SERIES_DECIMAL = Decimal("1e-8")


@dataclass(frozen=True)
class Known:
    """What everyone knows of a column: powers of two above its largest and its largest negative value (0: none).

    For Box-Cox, whose shift is 0, also the power of two that its smallest value reaches.
    """

    count: int
    mean: float
    variance: float
    bound_pos: float
    bound_neg: float
    shift: int = 1
    bound_low: float = 0.0

    @property
    def range(self) -> tuple[float, float]:
        """Between what all values must be: no value is further from the mean than √n standard deviations."""
        reach = math.sqrt(self.variance) * math.sqrt(self.count) * (1 + 2.0**-20)
        least = -self.bound_neg if self.shift else self.bound_low
        return max(least, self.mean - reach), min(self.bound_pos, self.mean + reach)

    def log(self, x: float) -> float:
        """What λ stretches: sign(x)·log1p|x|, for Box-Cox log x; correctly rounded."""
        with localcontext(EXACT):
            return float(Decimal(x).ln()) if not self.shift else math.copysign(float(_log1p(Decimal(abs(x)))), x)


@dataclass(frozen=True)
class Point:
    """Where a column's terms are wanted. λ and the centre are those of the mirrored column if `mirrored`."""

    lam: float
    centre: float
    mirrored: bool
    scale_bits: int
    width: float
    shift: int = 1

    @property
    def saturates_above(self) -> bool:
        """Whether it is large λ, not small ones, that bring all y together."""
        return self.mirrored or (not self.shift and self.centre < 1)


def terms(x: Floats, point: Point) -> Floats:
    """This part's share in a column's five sums: of u/S, (u/S)², v, v·u/S and w/W. No value may be missing."""
    total = np.zeros(TERMS)
    for start in range(0, len(x), _CHUNK):
        total += _terms(x[start : start + _CHUNK], point)
    return total


def _terms(x: Floats, point: Point) -> Floats:
    """One piece that stays in the processor's cache."""
    x = -x if point.mirrored else x
    lam, centre = point.lam, point.centre
    log_centre = math.log1p(centre) if point.shift else math.log(centre)
    # One logarithm per value: log1p((x-c)/(1+c)) keeps all digits near the centre, log1p|x| far below it.
    near = (x - centre) / (point.shift + centre)
    negative = x < 0
    far = negative | (near < -0.5)
    w = np.log1p(near, where=~far, out=np.zeros(len(x)))
    w[far] = (np.log1p(np.abs(x[far])) if point.shift else np.log(x[far])) * np.where(negative[far], -1, 1) - log_centre
    u, slope = _growth(w, lam)
    if negative.any():
        u[negative], slope[negative] = _across(-w[negative] - log_centre, lam, log_centre)
    scale = math.ldexp(1.0, -point.scale_bits)
    u *= scale
    slope *= scale / point.width
    return np.array([u.sum(), np.dot(u, u), slope.sum(), np.dot(slope, u), w.sum() / point.width])


def _growth(w: Floats, lam: float) -> tuple[Floats, Floats]:
    """expm1(λw)/λ and its derivative by λ."""
    if abs(lam) < _LINEAR_BELOW:
        return w.copy(), w * w / 2
    t = lam * w
    small = np.abs(t) < _SERIES_BELOW
    grown = np.expm1(t)
    u = grown / lam
    slope = (w * (grown + 1) - u) / lam
    if small.any():
        slope[small] = np.square(w[small]) * np.polyval(_PHI_SERIES, t[small])
    return u, slope


def _across(log: Floats, lam: float, log_centre: float) -> tuple[Floats, Floats]:
    """The same for values on the other side of zero than the centre, from their L."""
    mine, mine_slope = _growth(log, 2 - lam)
    (centre,), (centre_slope,) = _growth(np.array([log_centre]), lam)
    factor = math.exp(-lam * log_centre)
    u = -(mine + centre) * factor
    # d/dλ of -(y + y_c)·(1+c)^-λ
    slope = (mine_slope - centre_slope) * factor - log_centre * u
    return u, slope


def point_at(known: Known, lam: float, centre: float) -> Point:
    """Where to evaluate a column at λ, about a centre near its mean: the same at every role."""
    start, end = known.range
    shift, mirrored = known.shift, centre < 0
    if mirrored:
        lam, centre, start, end = 2 - lam, -centre, -end, -start
    with localcontext(EXACT):
        largest = max(abs(_gap(centre, start, lam, shift)), abs(_gap(centre, end, lam, shift)))
    # A power of ten below which it is, as a power of two: 3.322 is a little more than log2(10).
    scale_bits = math.ceil((largest.adjusted() + 1) * 3.322) - _HEADROOM_BITS
    width = known.log(end) - known.log(start)
    return Point(lam, centre, mirrored, scale_bits, width, shift)


@dataclass(frozen=True)
class Totals:
    """The pooled sums at a point, and what follows from them."""

    point: Point
    count: int
    sums: Sequence[Fraction]

    @property
    def squares(self) -> Fraction:
        """The sum of squares of u/S about its mean."""
        return self.sums[1] - self.sums[0] ** 2 / self.count

    def finer(self) -> Point | None:
        """The same point at a finer scale, if digits were lost below the fixed point."""
        found = self.sums[1]
        if self.squares >= _LEAST_SQUARES or found >= 1:
            return None
        size = found.numerator.bit_length() - found.denominator.bit_length() if found > 0 else -2 * _HEADROOM_BITS
        return replace(self.point, scale_bits=self.point.scale_bits + size // 2 - _HEADROOM_BITS)

    def centred(self, cancellation: int) -> bool:
        """Whether the centre is so near to the mean that squares about it are at most so many times too large."""
        return self.sums[0] ** 2 / self.count <= cancellation * self.squares

    def slope(self) -> float:
        """The derivative f(λ) of the log-likelihood over n."""
        u, _, v, products, logs = self.sums
        covariance = products - u * v / self.count
        slope = float(Fraction(self.point.width) * (logs / self.count - covariance / self.squares))
        return -slope if self.point.mirrored else slope

    def centre(self) -> float:
        """The x whose y is the mean: the best centre for a λ nearby."""
        lam, rise, shift = Decimal(self.point.lam), self._mean(), self.point.shift
        with localcontext(EXACT):
            base = shift + Decimal(self.point.centre)
            moved = base * _inverse(lam, rise) - shift if 1 + lam * rise > 0 else Decimal(-1)
            if moved < 0 and shift:
                left = -rise * (lam * base.ln()).exp() - _gap(0.0, self.point.centre, self.point.lam)
                moved = 1 - _inverse(2 - lam, max(left, Decimal(0)))
        return float(-moved if self.point.mirrored else moved)

    def moments(self) -> tuple[Decimal, Decimal]:
        """Mean and variance (divided by the count) of y."""
        lam, centre, shift = self.point.lam, self.point.centre, self.point.shift
        with localcontext(EXACT):
            # y is 0 at x = 0, and for Box-Cox at x = 1.
            origin = 1.0 - shift
            factor = (Decimal(lam) * _log_ratio(origin, centre, shift)).exp()
            mean = _gap(origin, centre, lam, shift) + factor * self._mean()
            variance = factor * factor * _decimal(self.squares / self.count * Fraction(4) ** self.point.scale_bits)
        return -mean if self.point.mirrored else mean, variance

    def relative_spread(self) -> Decimal:
        """The standard deviation of y as a part of its mean."""
        mean, variance = self.moments()
        with localcontext(EXACT):
            return variance.sqrt() / abs(mean) if mean else Decimal(1)

    def _mean(self) -> Decimal:
        """The mean of u."""
        return _decimal(self.sums[0] / self.count * Fraction(2) ** self.point.scale_bits)


def _decimal(value: Fraction) -> Decimal:
    return EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))


def _log1p(x: Decimal) -> Decimal:
    if abs(x) > _SERIES_DECIMAL:
        return (1 + x).ln()
    return x * (1 - x * (Decimal(1) / 2 - x * (Decimal(1) / 3 - x * (Decimal(1) / 4 - x / 5))))


def _expm1(x: Decimal) -> Decimal:
    if abs(x) > _SERIES_DECIMAL:
        return x.exp() - 1
    return x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))))


def _inverse(power: Decimal, y: Decimal) -> Decimal:
    """(1 + power·y)^(1/power): 1 + |x| of a y."""
    return (_log1p(power * y) / power if power else y).exp()


def _log_ratio(start: float, end: float, shift: int) -> Decimal:
    """log((shift + end)/(shift + start)), also where they are nearly the same."""
    before, after = shift + Decimal(start), shift + Decimal(end)
    apart = (after - before) / before
    return _log1p(apart) if abs(apart) < _SERIES_DECIMAL else (after / before).ln()


def _gap(start: float, end: float, lam: float, shift: int = 1) -> Decimal:
    """(y(end) - y(start))/(shift + start)^λ for start ≥ 0, whatever its size."""
    before, power = Decimal(start), Decimal(lam)
    if end < 0:
        across = _gap(0.0, -end, 2 - lam) + _gap(0.0, start, lam)
        return -across * (-power * _log1p(before)).exp()
    w = _log_ratio(start, end, shift)
    return _expm1(power * w) / power if power else w
