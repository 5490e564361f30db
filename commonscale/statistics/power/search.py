"""The search for the likeliest λ of a column: the root of the likelihood's derivative, one candidate per round.

The log-likelihood is concave in λ, so its derivative falls and has one root at most. Every role runs this on the same
pooled sums and finds the same candidates.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from commonscale.statistics.power.falling_root import FallingRoot
from commonscale.statistics.power.terms import EXACT, Known, Totals, point_at

# λ is known when the root is this near, relative to max(1, |λ|).
PRECISION = 1e-9
# And where the log-likelihood per row can rise by no more than this: no float would show it.
_LEAST_GAIN = 1e-18
# How far squares about the centre may exceed those about the mean, of 53 bits: to be of use, and at the end.
_USABLE, _SMALL = 2**26, 2**10
# λ is not followed to where y's standard deviation is a smaller part of y: floats could not tell the values apart.
LEAST_SPREAD = 2.0**-30
# Nor to |λ|·log1p(10·bound) beyond this: half of the exponents of a float, as in scipy's own bounds of λ.
_MAX_EXPONENT = 337.0
_AIM = float(EXACT.ln(Decimal(4)))


class ColumnSearch:
    """The search of one column, until it is `done`: the next round asks for the terms at `point`."""

    def __init__(self, known: Known) -> None:
        self._known = known
        # λ is 1 where there is no spread; it is limited where floats can follow no further towards the likeliest.
        self.lam, self.limited = 1.0, False
        # Mean and variance (divided by the count) of the transformed column, once it is done.
        self.moments = known.mean, known.variance
        self.done = known.count < 2 or not known.variance > 0
        if not self.done and not _logs(known) > 0:
            # Values whose logarithms are one float: any power is as good as that which only shifts them.
            self.done = self.limited = True
            self.moments = known.mean - (1 - known.shift), known.variance
        if not self.done:
            self._root = _root(known)
            self._edge = _Edge(known)
            self.lam = self._root.x
            self.point = point_at(known, self.lam, known.mean)

    def take(self, sums: Sequence[Fraction]) -> None:
        """One round's five pooled sums: finish, ask again for more digits, or go on to the next candidate."""
        totals = Totals(self.point, self._known.count, sums)
        finer = totals.finer()
        if finer is not None:
            self.point = finer
            return
        settled = totals.centred(_USABLE) and self._settle(totals)
        if settled and totals.centred(_SMALL):
            mean, variance = totals.moments()
            self.done, self.moments = True, (float(mean), float(variance))
        else:
            start, end = self._known.range
            self.point = point_at(self._known, self.lam, min(max(totals.centre(), start), end))

    def _settle(self, totals: Totals) -> bool:
        """Whether this λ is the result; if not, self.lam is the next candidate."""
        slope = totals.slope()
        outward = slope >= 0 if totals.point.saturates_above else slope <= 0
        flat = self._edge.take(self.lam, totals)
        if not self._edge.active:
            settled = self._root.take(slope, precision=PRECISION, least_gain=_LEAST_GAIN)
            self.limited = settled and self._root.at_limit
            self._edge.active = flat and (settled or outward)
            if not self._edge.active:
                self.lam = self._root.x
                return settled
        self.limited = True
        if self._edge.reached:
            return True
        self.lam = self._edge.following()
        return False


def _root(known: Known) -> FallingRoot:
    """From the λ that changes least, with a guess: were L normal, f would fall by 1.5 times its variance."""
    # λ is looked for further than by scipy, whose bounds come from 20 times the exact maximum.
    low, high = -math.inf, math.inf
    for bound, middle in ((10 * known.bound_pos, 0.0), (10 * known.bound_neg, 2.0), (known.bound_low / 10, 0.0)):
        if bound:
            reach = _MAX_EXPONENT / abs(known.log(bound))
            low, high = max(low, middle - reach), min(high, middle + reach)
    logs = _logs(known)
    return FallingRoot(min(max(_first(known), low), high), low, high, slope=0.375 * logs * logs, step=1 / logs)


def _logs(known: Known) -> float:
    """How far the logarithms of two standard deviations lie apart."""
    start, end = known.range
    deviation = math.sqrt(known.variance)
    return known.log(min(known.mean + deviation, end)) - known.log(max(known.mean - deviation, start))


def _first(known: Known) -> float:
    """Yeo-Johnson leaves columns as they are at 1; of Box-Cox, 0 depends least on the unit."""
    return float(known.shift)


class _Edge:
    """Where y's relative spread is about the least that floats can carry: its logarithm is nearly linear in λ."""

    def __init__(self, known: Known) -> None:
        spread = math.sqrt(known.variance) / abs(known.mean) if known.mean else 1.0
        if not known.shift:
            spread /= max(1.0, abs(known.log(known.mean)))
        # A column may be flatter than that from the start; then it need not become steeper.
        self._least = min(LEAST_SPREAD, spread / 32)
        self._enough = _first(known), self._excess(Decimal(spread))
        self._flat: tuple[float, float] | None = None
        self.active = self.reached = False

    def _excess(self, spread: Decimal) -> float:
        """The logarithm of a spread over the least."""
        return float(EXACT.ln(EXACT.divide(spread, Decimal(self._least))))

    def take(self, lam: float, totals: Totals) -> bool:
        """Whether y is too flat at λ."""
        excess = self._excess(totals.relative_spread())
        self.reached = 0 <= excess <= 2 * _AIM
        if excess < 0:
            self._flat = lam, excess
        else:
            self._enough = lam, excess
        return excess < 0

    def following(self) -> float:
        """Four times the least spread, by a line between the last λ that was too flat and the last that was not."""
        assert self._flat is not None
        (flat, under), (enough, over) = self._flat, self._enough
        return flat + (enough - flat) * (_AIM - under) / (over - under)
