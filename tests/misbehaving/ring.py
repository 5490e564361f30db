"""Sites that attack the ring of identifiers (commonscale.protocols.psi.ring)."""

from typing import Any

from commonscale.v1 import protocols_pb2 as wire
from tests.misbehaving.roles import Change, SiteThatChanges


def first_to(number: int) -> Change:
    """Of the numbers of all columns, the first."""

    def change(message: Any) -> Any:
        name = "next" if isinstance(message, wire.RingOffsets) else "sizes"
        return type(message)(**{name: [number, *list(getattr(message, name))[1:]]})

    return change


class SiteThatPassesOnAnotherOffset(SiteThatChanges):
    """A site that says another next free identifier of the first column than there is."""

    def __init__(self, site: str, number: int) -> None:
        super().__init__(site, "ring.RingOffsets", first_to(number))


class SiteThatPassesOnOffsetsOfOtherColumns(SiteThatChanges):
    """A site that says so many offsets, whatever the number of columns."""

    def __init__(self, site: str, count: int) -> None:
        super().__init__(site, "ring.RingOffsets", lambda _: wire.RingOffsets(next=[1] * count))


class SiteThatAnnouncesAnotherTotal(SiteThatChanges):
    """A first site that says another size of the first column: to all, or to one."""

    def __init__(self, site: str, number: int, *, to: str | None = None) -> None:
        super().__init__(site, "ring.RingTotals", first_to(number), to=to)
