"""Sites and coordinators that attack over-threshold intersection (commonscale.protocols.psi.threshold)."""

import numpy as np

from commonscale.protocols.psi.threshold import NO_CLASS
from commonscale.v1 import protocols_pb2 as wire
from crypto import field61
from tests.misbehaving.roles import CoordinatorThatChanges, SiteThatChanges, field_of


class SiteThatInventsHits(SiteThatChanges):
    """A reconstructor that tells one site, in every place that is no hit, of a class of the first two sites."""

    def __init__(self, site: str, *, to: str) -> None:
        super().__init__(site, "psi.owners.Hits", self._invent, to=to)

    @staticmethod
    def _invent(message: wire.Hits) -> None:
        classes = np.frombuffer(message.classes, "<u4").copy()
        members = np.frombuffer(message.members, np.uint8).copy()
        nothing = np.flatnonzero(classes == NO_CLASS)
        classes[nothing], members[nothing] = 1000 + nothing, 0b11000000
        message.classes, message.members = classes.tobytes(), members.tobytes()


class SiteThatGivesOneIdentifierForAll(SiteThatChanges):
    """A first holder that says the same identifier for every class."""

    def __init__(self, site: str, *, to: str) -> None:
        def same(raw: bytes) -> bytes:
            return b"".join(raw[at : at + 4] + bytes(4) for at in range(0, len(raw), 8))

        super().__init__(site, "psi.owners.ClassIdentifiers", field_of("entries", same), to=to)


class SiteThatSendsSharesOfNothing(SiteThatChanges):
    """A site whose tables are random numbers only."""

    def __init__(self, site: str) -> None:
        rng = np.random.default_rng(3)

        def noise(raw: bytes) -> bytes:
            return rng.integers(0, field61.PRIME, len(raw) // 8).astype("<u8").tobytes()

        super().__init__(site, "psi.hits.ShareTables", field_of("shares", noise))


def the_prime_first(raw: bytes) -> bytes:
    """The first share is no element of the field."""
    return field61.PRIME.to_bytes(8, "little") + raw[8:]


class SiteThatSendsAShareBeyondTheField(SiteThatChanges):
    """In its tables."""

    def __init__(self, site: str) -> None:
        super().__init__(site, "psi.hits.ShareTables", field_of("shares", the_prime_first))


class CoordinatorThatMakesAShareBeyondTheField(CoordinatorThatChanges):
    """Of those that it computes for the last site."""

    def __init__(self) -> None:
        super().__init__("psi.tokens.OwnShares", field_of("shares", the_prime_first))
