"""Coordinators and sites that attack sums (commonscale.protocols.sums)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.v1 import protocols_pb2 as wire
from crypto import field61, fixed_point
from crypto.rings import FIELD61, Z256, Vector
from tests.federation import Federation
from tests.misbehaving.roles import (
    CoordinatorThatChanges,
    CoordinatorThatShowsAnother,
    SiteThatChanges,
    elements_of,
    field_of,
)


def added(raw: bytes, places: slice, delta: int) -> bytes:
    """Elements modulo the prime, some of them larger by delta."""
    elements = FIELD61.from_bytes(raw, len(raw) // FIELD61.element_bytes).copy()
    elements[places] = field61.add(elements[places], np.full_like(elements[places], delta % field61.PRIME))
    return FIELD61.to_bytes(elements)


class CoordinatorThatAddsToAHiddenSum(CoordinatorThatChanges):
    """It cannot read the sum, but adds to it, and tells all sites the same."""

    def __init__(self, kind: str, places: slice, delta: int) -> None:
        super().__init__(kind, field_of("elements", lambda raw: added(raw, places, delta)))


class SiteThatAddsToItsMaskedVector(SiteThatChanges):
    """Masks are added, so whoever sends a sum of them can add to what is under them."""

    def __init__(self, site: str, kind: str, delta: int) -> None:
        super().__init__(site, kind, field_of("elements", lambda raw: added(raw, slice(None), delta)))


class SiteThatSendsOtherBytes(SiteThatChanges):
    """A site whose elements are no vector of the length that was asked for."""

    def __init__(self, site: str, kind: str, damage: Callable[[bytes], bytes], *, to: str | None = None) -> None:
        super().__init__(site, kind, field_of("elements", damage), to=to)


class SiteThatNamesAnotherTranscript(SiteThatChanges):
    """A site that was shown other totals, as its shares say."""

    def __init__(self, site: str, kind: str, to: str | None = None) -> None:
        super().__init__(site, kind, field_of("transcript", lambda raw: bytes(len(raw))), to=to)


class CoordinatorThatShowsAnotherTotal(CoordinatorThatShowsAnother):
    """A coordinator that tells one site another opened sum than the others."""

    def __init__(self, site: str, kind: str, shift: Sequence[float]) -> None:
        def shifted(raw: bytes) -> bytes:
            total = Z256.from_bytes(raw, len(shift))
            return Z256.to_bytes(Z256.add(total, fixed_point.encode(list(shift), addends=1)))

        super().__init__(site, kind, field_of("elements", shifted))


@dataclass(frozen=True)
class Stolen:
    """What a coordinator makes of the second round of a z-score, about one site."""

    count: Fraction
    sum: Fraction


class CoordinatorThatShowsAnotherMean(CoordinatorThatShowsAnotherTotal):
    """It shows one site a mean that is further away, and reads the second round as if masks were not bound to it.

    If the site sums its deviations from μ + δ while all others take theirs from μ, the deviations of all add up to
    -δ·n_i, and their squares to the sum of squares less 2δ·Σ(x - μ) plus n_i·δ² of the site: for a large δ that is
    the site's own sum.
    """

    def __init__(self, site: str, sites: Sequence[str], shift_of_sum: float) -> None:
        super().__init__(site, "mean.Total", [0.0, shift_of_sum])
        self._sites = sites
        self._shift = Fraction(shift_of_sum)

    def stolen(self, federation: Federation, run: str) -> Stolen:
        """Of a job with one column, from what its sites have sent."""
        count, total = self._added(federation, run, "mean.MaskedVector")
        shift, squares = self._added(federation, run, "variance.MaskedVector")
        mean, shown = Fraction(float(total / count)), Fraction(float((total + self._shift) / count))
        away = shown - mean
        rows = -shift / away
        return Stolen(rows, rows * mean + (rows * away**2 - squares) / (2 * away))

    def _added(self, federation: Federation, run: str, kind: str) -> list[Fraction]:
        vectors: list[Vector] = [
            Z256.from_bytes(raw, 2) for raw in elements_of(self._sites, federation.mailbox.slots, run, kind)
        ]
        return fixed_point.decode(Z256.add_all(vectors))


def masks_that_are_not_bound(ch: Channel, _: bytes) -> bytes:
    """A weakened copy of what masks are bound to: the slot alone, not what was announced before it."""
    return ch.slot(wire.MaskedVector, "", COORDINATOR).context()
