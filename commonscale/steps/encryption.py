"""Circuits for steps: keys made or found, computation, keys given back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols.ckks import key_set, recovery
from commonscale.protocols.ckks.circuit import Circuit, CoordinatorCircuit, Escrows, PartyCircuit
from commonscale.protocols.ckks.counts import HubCkksSums, PartyCkksSums
from commonscale.protocols.ckks.key_set import Needs
from commonscale.stepspec import CkksOptions
from crypto.ckks.context import context_of
from crypto.ckks.evaluator import Evaluator
from crypto.ckks.profiles import PROFILES, Profile

T = TypeVar("T")

_PROFILES = {
    "standard": {"comparison": "comparison", "inverse": "inverse", "counts": "counts"},
    "high-latency": {"comparison": "high-latency", "inverse": "high-latency-inverse", "counts": "counts"},
    "test": {"comparison": "test", "inverse": "test-inverse", "counts": "test-counts"},
}


def profile(options: CkksOptions, purpose: str) -> Profile:
    """The parameters for a purpose: comparison, inverse or counts."""
    return PROFILES[_PROFILES[options.profile][purpose]]


def needs(options: CkksOptions, purpose: str, rotations: tuple[int, ...] = ()) -> Needs:
    """The keys for a circuit."""
    return Needs(profile(options, purpose), True, rotations, options.keys == "reuse")


async def party_circuit(ch: Channel, options: CkksOptions, needs: Needs) -> PartyCircuit:
    """A site's end of a circuit."""
    keys = await key_set.party(ch.scope("keys"), needs)
    if options.recovery:
        await recovery.deposit_party(ch.scope("keys"), keys.share)
    return PartyCircuit(ch, keys, recovery=options.recovery)


async def coordinator_circuit(
    ch: Channel, options: CkksOptions, needs: Needs, work: Callable[[Circuit], Awaitable[T]]
) -> T:
    """The coordinator's end of a circuit, while `work` runs on it."""
    keys, escrow = await key_set.coordinator(ch.scope("keys"), needs), None
    if options.recovery:
        escrow = Escrows(await recovery.deposit_coordinator(ch.scope("keys")), options.recovery_after_s)
    circuit = await CoordinatorCircuit.create(ch, needs.profile, keys, escrow)
    try:
        return await work(circuit)
    finally:
        circuit.close()


async def party_sums(ch: Channel, options: CkksOptions) -> PartyCkksSums:
    """A site's end of sums of counts."""
    return PartyCkksSums(await key_set.party(ch.scope("keys"), _counts(options)))


async def coordinator_sums(ch: Channel, options: CkksOptions, work: Callable[[HubCkksSums], Awaitable[T]]) -> T:
    """The coordinator's end of sums of counts, while `work` runs on it."""
    wanted = _counts(options)
    keys = await key_set.coordinator(ch.scope("keys"), wanted)
    evaluator = await offload(Evaluator, context_of(wanted.profile), keys, f"{ch.run}/{ch.prefix}")
    try:
        return await work(HubCkksSums(evaluator))
    finally:
        evaluator.close()


def _counts(options: CkksOptions) -> Needs:
    return Needs(profile(options, "counts"), relinearization=False, reuse=options.keys == "reuse")
