"""Every micro-operation of Table IV between real daemons: the roles of a job that measures itself.

A daemon that is started through bench.ckks_daemon runs them in place of the `quantiles` step. Before each operation all
sites wait at a barrier; its time is from the coordinator's go to the operation's end at the coordinator, with
everything that a job's message goes through: journal, audit log, TLS, relay.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols import agreement
from commonscale.protocols.ckks import public_key, relinearization_key, rotation_keys
from commonscale.protocols.ckks.circuit import Circuit, CoordinatorCircuit, PartyCircuit
from commonscale.protocols.ckks.key_set import PartyKeys, crs_seed
from commonscale.protocols.ckks.minmax import larger
from commonscale.stepspec import QuantilesStep
from commonscale.transforms.ordering import Floats
from commonscale.transforms.results import FittedQuantiles
from commonscale.v1.protocols_pb2 import Opened
from crypto.ckks.arithmetic import with_levels
from crypto.ckks.context import Context, context_of
from crypto.ckks.evaluator import PublicKeys
from crypto.ckks.inverse import inverse, line
from crypto.ckks.keys import gen_key_share
from crypto.ckks.profiles import PROFILES, Profile

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
_RINGS = {"standard": ("comparison", "inverse"), "high-latency": ("high-latency", "high-latency-inverse"),
          "test": ("test", "test-inverse")}  # fmt: skip
_STEPS = (1,)


def protocol(*_: Any) -> str:
    """Its name in the disclosure report."""
    return "bench/ckks"


def reveals(*_: Any) -> dict[str, str]:
    """Random numbers only."""
    return {}


def _profiles(step: QuantilesStep) -> tuple[Profile, Profile]:
    compare, invert = _RINGS[step.ckks.profile]
    return PROFILES[compare], PROFILES[invert]


async def party(ch: Channel, step: QuantilesStep, _: Any) -> FittedQuantiles:
    """A site's role."""
    compare, invert = _profiles(step)
    go = _Barrier(ch)
    ctx = await offload(context_of, compare)
    keys = await _party_keys(ch.scope("compare"), ctx, go)
    await _operations(PartyCircuit(ch.scope("c"), keys), go.wait, go.done)
    inverse_keys = await _party_keys(ch.scope("invert"), await offload(context_of, invert), None)
    await _inverses(PartyCircuit(ch.scope("i"), inverse_keys), go.wait, go.done)
    times = np.frombuffer((await ch.scope("times").recv_broadcast(Opened)).numbers, "<f8")
    return FittedQuantiles(tuple(step.columns), (0,), (0.0,), times.reshape(1, -1))


async def coordinator(ch: Channel, step: QuantilesStep) -> FittedQuantiles:
    """The coordinator's role, with a clock: this job is not replayed."""
    compare, invert = _profiles(step)
    go = _Clock(ch)
    ctx = await offload(context_of, compare)
    start = time.perf_counter()
    await offload(gen_key_share, ctx, b"local")
    go.times.append(time.perf_counter() - start)
    keys = await _hub_keys(ch.scope("compare"), ctx, go)
    circuit = await CoordinatorCircuit.create(ch.scope("c"), compare, keys)
    await _operations(circuit, go.wait, go.done)
    inverse_keys = await _hub_keys(ch.scope("invert"), await offload(context_of, invert), None)
    second = await CoordinatorCircuit.create(ch.scope("i"), invert, inverse_keys)
    await _inverses(second, go.wait, go.done)
    circuit.close()
    second.close()
    times = np.array(go.times)
    await ch.scope("times").broadcast(Opened(numbers=times.tobytes()))
    return FittedQuantiles(tuple(step.columns), (0,), (0.0,), times.reshape(1, -1))


class _Barrier:
    """A site's end: every site says that it is ready, and waits for the go."""

    def __init__(self, ch: Channel) -> None:
        self._ch, self._number = ch, 0

    async def wait(self) -> None:
        self._number += 1
        ch = self._ch.scope(f"go{self._number}")
        await agreement.party(ch, b"ready")

    def done(self) -> None:
        """A site has no clock."""


class _Clock:
    """The coordinator's end."""

    def __init__(self, ch: Channel) -> None:
        self._ch, self._number, self._start = ch, 0, 0.0
        self.times: list[float] = []

    async def wait(self) -> None:
        self._number += 1
        await agreement.coordinator(self._ch.scope(f"go{self._number}"))
        self._start = time.perf_counter()

    def done(self) -> None:
        self.times.append(time.perf_counter() - self._start)


async def _party_keys(ch: Channel, ctx: Context, go: _Barrier | None) -> PartyKeys:
    seed = crs_seed(ch)
    share, mine = await public_key.secret(ch, ctx, seed)
    # Templates and the like are made once a process; the barrier comes after them.
    await offload(lambda: (ctx.switch_key, ctx.rotation_key(ctx.automorphism(1))))
    if go:
        await go.wait()
    joint = await public_key.party(ch, ctx, mine)
    if go:
        await go.wait()
    await relinearization_key.party(ch, ctx, share, seed)
    if go:
        await go.wait()
    await rotation_keys.party(ch, ctx, share, seed, _STEPS)
    return PartyKeys(ctx, share, await offload(ctx.public_key, joint, seed))


async def _hub_keys(ch: Channel, ctx: Context, go: _Clock | None) -> PublicKeys:
    work: list[Callable[[], Awaitable[Any]]] = [
        lambda: public_key.coordinator(ch, ctx),
        lambda: relinearization_key.coordinator(ch, ctx),
        lambda: rotation_keys.coordinator(ch, ctx, _STEPS),
    ]
    found = []
    for one in work:
        if go:
            await go.wait()
        found.append(await one())
        if go:
            go.done()
    return PublicKeys(crs_seed(ch), found[0], found[1][1], found[2])


Wait = Callable[[], Awaitable[None]]
Done = Callable[[], None]


async def _operations(circuit: Circuit, wait: Wait, done: Done) -> None:
    slots = circuit.profile.slots

    def numbers() -> list[Floats]:
        return [np.random.default_rng(1).uniform(-0.04, 0.04, slots)]

    make = numbers if isinstance(circuit, PartyCircuit) else None
    await circuit.input([make], 1)
    await wait()
    (a,) = await circuit.input([make], 1)
    done()
    await wait()
    await circuit.add(a, a)
    done()
    await wait()
    b = await circuit.mul(a, a)
    done()
    await circuit.refresh([a])
    await wait()
    await circuit.refresh([b])
    done()
    await wait()
    await circuit.open(b, [slots])
    done()
    await wait()
    best = await larger(circuit, a, await circuit.sub(b, a))
    await with_levels(circuit, 1, [best])
    done()


async def _inverses(circuit: Circuit, wait: Wait, done: Done) -> None:
    slots = circuit.profile.slots
    for bits in (20, 30):
        kappa = 2.0**bits
        slope, offset = line(kappa)

        def counts(slope: float = slope) -> list[Floats]:
            return [np.full(slots, slope * 0.01)]

        (x,) = await circuit.input([counts if isinstance(circuit, PartyCircuit) else None], 1)
        u = await circuit.add(x, offset)
        await wait()
        await inverse(circuit, u, kappa)
        done()
