"""Every micro-operation of Table IV, collectively, as all roles of a step follow it.

Before each operation all roles meet; its time is from there to the operation's end at the coordinator, with everything
that a job's message goes through: journal, audit log, TLS, relay. A coordinator with a clock cannot be replayed after a
crash: this is for benchmarks alone.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import numpy as np

from commonscale.channel.channel import Channel
from commonscale.concurrency import offload
from commonscale.options import CkksOptions
from commonscale.protocols import agreement
from commonscale.protocols.ckks import public_key, relinearization_key, rotation_keys
from commonscale.protocols.ckks.circuit import with_keys
from commonscale.protocols.ckks.key_set import crs_seed
from commonscale.protocols.ckks.levels import Chunks, Circuit, Opening
from commonscale.protocols.ckks.minmax import larger
from commonscale.reveal import Reveal
from commonscale.running import RunningPool
from crypto.ckks.arithmetic import with_levels
from crypto.ckks.context import context_of
from crypto.ckks.inverse import inverse, line
from crypto.ckks.keys import gen_key_share
from crypto.ckks.profiles import Profile, profile_for

T = TypeVar("T")

OPERATIONS = (
    "secret key generation",
    "collective public key generation",
    "collective relinearization key generation",
    "collective rotation key generation",
    "encryption, all sites",
    "homomorphic summation",
    "homomorphic multiplication",
    "collective bootstrapping",
    "collective decryption",
    "homomorphic maximum",
    "homomorphic inverse, up to 2^20",
    "homomorphic inverse, up to 2^30",
)


class Stopwatch:
    """Seconds of one operation after the other, at this role."""

    def __init__(self, ch: Channel) -> None:
        self._ch = ch.scope("ready")
        self.seconds: list[float] = []

    async def time(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait until every role has come this far, then work."""
        await agreement.agree(self._ch.scope(str(len(self.seconds) + 1)), b"ready")
        start = time.perf_counter()
        done = await work()
        self.seconds.append(time.perf_counter() - start)
        return done


async def measured(pool: RunningPool, options: CkksOptions, opened: Reveal) -> list[float]:
    """All roles: the seconds of each operation, in their order."""
    watch = Stopwatch(pool.ch)
    # These keys are made one after the other, to be measured; the circuits make their own, all at once.
    await _make_keys(pool.ch.scope("measured"), profile_for(options.profile, "comparison"), watch)
    async with with_keys(pool.ch.scope("comparison"), pool.transcript, options, "comparison") as circuit:
        await _compute(circuit, watch, opened)
    async with with_keys(pool.ch.scope("inverse"), pool.transcript, options, "inverse") as circuit:
        await _invert(circuit, watch)
    return watch.seconds


async def _make_keys(ch: Channel, profile: Profile, watch: Stopwatch) -> None:
    ctx, seed = await offload(context_of, profile), crs_seed(ch)

    async def one_secret() -> None:
        # One machine's work: the others do not take its processors.
        if ch.is_coordinator:
            await offload(gen_key_share, ctx, b"local")

    await watch.time(one_secret)
    share, mine = await public_key.secret(ch, ctx, seed) if ch.is_site else (None, None)
    await watch.time(partial(public_key.make, ch, ctx, mine))
    await watch.time(partial(relinearization_key.make, ch, ctx, share, seed))
    await watch.time(partial(rotation_keys.make, ch, ctx, share, seed, (1,)))


async def _compute(circuit: Circuit, watch: Stopwatch, opened: Reveal) -> None:
    slots = circuit.profile.slots

    def numbers() -> Chunks:
        return [np.random.default_rng(1).uniform(-0.04, 0.04, slots)]

    async def maximum() -> None:
        await with_levels(circuit, 1, [await larger(circuit, a, difference)])

    await circuit.input([numbers], 1)
    (a,) = await watch.time(partial(circuit.input, [numbers], 1))
    await watch.time(partial(circuit.add, a, a))
    b = await watch.time(partial(circuit.mul, a, a))
    await circuit.refresh([a])
    await watch.time(partial(circuit.refresh, [b]))
    await watch.time(partial(circuit.open, b, Opening([slots], opened)))
    difference = await circuit.sub(b, a)
    await watch.time(maximum)


async def _invert(circuit: Circuit, watch: Stopwatch) -> None:
    for bits in (20, 30):
        kappa = 2.0**bits
        slope, offset = line(kappa)
        counts = np.full(circuit.profile.slots, slope * 0.01)
        (x,) = await circuit.input([lambda counts=counts: [counts]], 1)  # type: ignore[misc]
        await watch.time(partial(inverse, circuit, await circuit.add(x, offset), kappa))
