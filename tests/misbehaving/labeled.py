"""Sites that attack labeled intersection (commonscale.protocols.psi.labeled)."""

import random
from typing import Any

from tests.misbehaving.roles import SiteThatChanges, field_of, flipped


class SiteThatMutatesPolynomials(SiteThatChanges):
    """A querier or a holder that damages one of the polynomials that it sends to one site."""

    def __init__(self, site: str, kind: str, seed: int, *, to: str) -> None:
        self._source = random.Random(seed)
        super().__init__(site, kind, self._mutate, to=to)

    def _mutate(self, message: Any) -> None:
        source = self._source
        at = source.randrange(len(message.polynomials))
        raw = bytearray(message.polynomials[at])
        match source.randrange(5):
            case 0:
                raw[source.randrange(len(raw))] ^= 1 << source.randrange(8)
            case 1:
                del raw[source.randrange(len(raw)) :]
            case 2:
                raw[:8] = b"\xff" * 8
            case 3:
                raw = bytearray(len(raw))
            case _:
                del message.polynomials[at]
                return
        message.polynomials[at] = bytes(raw)


class SiteThatSaysAnotherHashSeed(SiteThatChanges):
    """A holder that hashes in another way than it says; None: by one bit."""

    def __init__(self, site: str, seed: bytes | None, *, to: str) -> None:
        change = field_of("hash_seed", lambda raw: flipped(raw) if seed is None else seed)
        super().__init__(site, "psi.PsiOffer", change, to=to)
