"""A session of sums, for tests of sessions themselves: made-up vectors, and what their totals come to."""

import hashlib
from collections.abc import Sequence
from functools import partial

import numpy as np

from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from crypto import field61
from crypto.rings import FIELD61, Vector

TOTAL = Reveal("total", "the sum of made-up vectors")
MORE = Reveal("more", "the same of every fifth round, by shares")


def vector(site: str, number: int, length: int) -> Vector:
    """A site's vector in one round: elements of the whole field."""
    key = int.from_bytes(hashlib.sha256(f"{site} {number}".encode()).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key)).integers(0, field61.PRIME, length, dtype=np.uint64)


def never_twice_the_same(site: str, number: int, length: int) -> Vector:
    """The same, and one random element more: a message that is made a second time differs from the first."""
    return np.concatenate([vector(site, number, length), FIELD61.random(1)])


def chained(before: bytes, total: Vector) -> bytes:
    """One round more: a hash of all totals so far, in order."""
    return hashlib.sha256(before + FIELD61.to_bytes(total)).digest()


def expected(sites: Sequence[str], rounds: int, length: int) -> bytes:
    """The oracle: plain sums."""
    state = b""
    for number in range(1, rounds + 1):
        vectors = [vector(site, number, length) for site in sites]
        state = chained(state, sum(one.astype(object) for one in vectors) % field61.PRIME)
    return state


async def sums_in_rounds(pool: Pool, rounds: int, length: int, every: int, *, finally_too: bool = False) -> bytes:
    """All roles: so many rounds, every fifth by shares, with a checkpoint at every n-th, and perhaps at the end."""
    session = await pool.session()
    state = session.state
    for number, here in session.rounds(rounds):
        reveal, method = (MORE, "shares") if number % 5 == 0 else (TOTAL, "masks")
        mine = partial(never_twice_the_same, pool.me, number, length)
        total = await here.add(reveal, FIELD61, length + 1, mine, method=method)
        state = chained(state, total[:length])
        if number % every == 0:
            await session.checkpoint(state)
    if finally_too:
        await session.checkpoint(state)
    return state


def as_numbers(state: bytes) -> Floats:
    """A hash as eight whole numbers in a row, for a step whose result is numbers."""
    return np.frombuffer(state, "<u4").astype(np.float64).reshape(1, -1)
