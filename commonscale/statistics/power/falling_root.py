"""The root of a falling function, from one value per round.

Through three values goes one function (x - r)/(α + βx); its root r is the next candidate. This converges as fast as
inverse quadratic interpolation, and is exact for functions that level off like a + b/x, on which straight lines fail.
Only the four operations are used, so that every role finds the same candidates on any machine.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class _Sample:
    x: float
    value: float


class FallingRoot:
    """Candidates `x` between `low` and `high` for the root of a falling function whose slope at first is guessed."""

    def __init__(self, start: float, low: float, high: float, *, slope: float, step: float) -> None:
        self.x = start
        self.low, self.high = low, high
        self._slope, self._step = slope, step
        self._samples: list[_Sample] = []
        # The root lies between.
        self._below, self._above = -math.inf, math.inf
        self._width = self._smallest = math.inf

    def take(self, value: float, *, precision: float, least_gain: float) -> bool:
        """The function's value at x: whether x is the root, else x is the next candidate.

        It is if the root is nearer than `precision` relative to max(1, |x|), if the integral up to the root is less
        than `least_gain`, or if the root lies beyond an end and x is that end.
        """
        now = _Sample(self.x, value)
        self._samples = [sample for sample in self._samples if sample.x != now.x] + [now]
        if value > 0:
            self._below = now.x
        else:
            self._above = now.x
        slope = self._slope_at(now)
        near = precision * max(1.0, abs(now.x))
        small = abs(value) <= near * slope or value * value <= 2 * slope * least_gain
        if value == 0 or (small and len(self._samples) > 1):
            return True
        bracketed = self._below > -math.inf and self._above < math.inf
        following = self._between(near) if bracketed else self._beyond(now, slope)
        self.x = min(max(following, self.low), self.high)
        return self.x == now.x

    @property
    def at_limit(self) -> bool:
        """Whether the root lies beyond an end of the range."""
        last = self._samples[-1]
        return (last.x <= self.low and last.value < 0) or (last.x >= self.high and last.value > 0)

    def _slope_at(self, now: _Sample) -> float:
        """How steeply the function falls here, from the nearest other sample."""
        if len(self._samples) == 1:
            return self._slope
        nearest = min(self._samples[:-1], key=lambda sample: abs(sample.x - now.x))
        slope = (nearest.value - now.value) / (now.x - nearest.x)
        return slope if slope > 0 else self._slope

    def _interpolated(self) -> float | None:
        """The root of the linear fraction through the three smallest values, or of the line through two."""
        nearest = sorted(self._samples, key=lambda sample: abs(sample.value))[:3]
        if len(nearest) < 2:
            return None
        c, b = nearest[0], nearest[1]
        if len(nearest) == 3:
            a = nearest[2]
            p, q = a.x - c.x, b.x - c.x
            determinant = (a.value - c.value) * b.value * q - (b.value - c.value) * a.value * p
            if determinant:
                return c.x - c.value * (p * q * (b.value - a.value)) / determinant
        return c.x - c.value * (b.x - c.x) / (b.value - c.value) if b.value != c.value else None

    def _between(self, near: float) -> float:
        """Inside the bracket; its middle where the last round halved neither it nor the smallest value."""
        low, high = self._below, self._above
        if high - low <= near:
            return self._samples[-1].x
        smallest = min(abs(sample.value) for sample in self._samples)
        slow = self._width < 2 * (high - low) and self._smallest < 2 * smallest
        self._width, self._smallest = high - low, smallest
        guess = self._interpolated()
        return self._middle(low, high) if slow or guess is None or not low < guess < high else guess

    def _middle(self, low: float, high: float) -> float:
        """The arithmetic middle, or the geometric one where the ends are of different sizes beyond a step."""
        if low < -self._step and high > self._step:
            return 0.0
        far, near = (low, high) if -low > high else (high, low)
        size = max(abs(near), self._step)
        if abs(far) <= 4 * size:
            return (low + high) / 2
        return math.copysign(math.sqrt(abs(far) * size), far)

    def _beyond(self, now: _Sample, slope: float) -> float:
        """A step past all samples: to a little beyond where the root seems to be, if values show that it nears."""
        if len(self._samples) == 1:
            step = min(abs(now.value) / slope, 4 * self._step)
        else:
            before = self._samples[-2]
            last = abs(now.x - before.x)
            guess = self._interpolated()
            ahead = 0.0 if guess is None else math.copysign(1.0, now.value) * (guess - now.x)
            # On a level stretch lines point anywhere: steps double until the value has halved.
            least = 0.0 if 2 * abs(now.value) <= abs(before.value) and ahead > 0 else 2 * last
            step = min(max(1.1 * ahead, least), 4 * last)
        return now.x + math.copysign(step, now.value)
