"""Sites and coordinators that attack the matching of tokens (commonscale.protocols.psi.matching)."""

from collections.abc import Callable
from typing import Any

from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.v1 import protocols_pb2 as wire
from crypto import oprf
from tests.federation import Federation
from tests.misbehaving.roles import (
    ChangingMailbox,
    CoordinatorThatShowsAnother,
    Misbehaving,
    SiteThatChanges,
    field_of,
)

P = 2**255 - 19
# Points whose multiples are few.
LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P - 1,
    P,
    P + 1,
]


class SiteThatSendsAPointOfLowOrder(SiteThatChanges):
    """In place of its first one."""

    def __init__(self, site: str, kind: str, u: int) -> None:
        super().__init__(site, kind, field_of("points", lambda raw: u.to_bytes(32, "little") + raw[32:]))


class SiteThatAnswersUnderAnotherKey(SiteThatChanges):
    """A keyholder that uses a second key towards one site."""

    def __init__(self, site: str, to: str) -> None:
        other = oprf.gen_key()

        def again(raw: bytes) -> bytes:
            return b"".join(oprf.evaluate(other, [raw[at : at + 32] for at in range(0, len(raw), 32)]))

        super().__init__(site, "match.EvaluatedItems", field_of("points", again), to=to)


class SiteThatSendsATokenTwice(SiteThatChanges):
    """Its last one, in place of the one before."""

    def __init__(self, site: str) -> None:
        super().__init__(site, "match.Tokens", field_of("tokens", lambda raw: raw[:-32] + 2 * raw[-16:]))


class SiteThatReplaysTokens(SiteThatChanges):
    """A site that sends the tokens of an earlier run."""

    def __init__(self, site: str, before: bytes) -> None:
        super().__init__(site, "match.Tokens", lambda _: wire.Tokens.FromString(before))


class CoordinatorThatShowsOtherPositions(CoordinatorThatShowsAnother):
    """To one site, of its tokens."""

    def __init__(self, site: str, change: Callable[[bytes], bytes]) -> None:
        super().__init__(site, "match.TokenPositions", field_of("positions", change))


class CoordinatorThatSwapsPositions(Misbehaving):
    """It tells two sites the positions of each other's tokens."""

    def __init__(self, run: str, one: str, other: str) -> None:
        slots = [Slot(run, "match.TokenPositions", COORDINATOR, site) for site in (one, other)]
        self._sites = (one, other)
        self._instead = dict(zip(slots, reversed(slots), strict=True))

    def mailboxes(self, federation: Federation) -> dict[str, Any]:
        """What the two are shown."""
        instead = self._instead

        class Swapping(ChangingMailbox):
            async def get(self, slot: Slot) -> bytes:
                return await super().get(instead.get(slot, slot))

        return {site: Swapping(federation.mailbox) for site in self._sites}
