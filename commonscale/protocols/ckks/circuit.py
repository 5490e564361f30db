"""The two ends of a circuit (levels): the coordinator's on ciphertexts, a site's on bare level counts."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import numpy as np
from google.protobuf.message import Message

from commonscale.channel.channel import Channel
from commonscale.channel.slot import ALL, COORDINATOR
from commonscale.channel.transcript import Transcript
from commonscale.concurrency import concurrently, offload
from commonscale.errors import SiteLost
from commonscale.options import CkksOptions
from commonscale.protocols import agreement
from commonscale.protocols.ckks import decryption, key_set, recovery, refresh
from commonscale.protocols.ckks.gathering import gather_sum, message, parse
from commonscale.protocols.ckks.key_set import Needs, SiteKeys
from commonscale.protocols.ckks.levels import STAND_IN, Circuit, Handle, Make, Numbers, Opening, Operation
from commonscale.v1.protocols_pb2 import Confirmation, EncryptedInput, Escrow, Lost
from crypto.ckks.arithmetic import Plain
from crypto.ckks.context import context_of
from crypto.ckks.evaluator import Evaluator
from crypto.ckks.keys import SecretShare
from crypto.ckks.profiles import Profile, profile_for
from crypto.ckks.skeleton import Coefficients

# Answers a request with a share, on a channel.
Answer = Callable[[SecretShare, Channel], Awaitable[None]]


class RunningCircuit(Circuit):
    """What both ends share: channel, reference string, transcript."""

    def __init__(self, ch: Channel, profile: Profile, transcript: Transcript) -> None:
        super().__init__(profile, ch.sites, ch.me)
        self._ch = ch
        self._seed = key_set.crs_seed(ch)
        self._transcript = transcript
        self._round = 0

    def _next(self) -> Channel:
        self._round += 1
        return self._ch.scope(str(self._round))

    async def input(self, makes: Sequence[Make], chunks: int) -> list[Handle]:
        """The sums of all sites' numbers."""
        return await self._input(self._next(), makes, chunks)

    async def open(self, handle: Handle, opening: Opening) -> Numbers:
        """Open ciphertexts to everyone."""
        self._round += 1
        opened = await self._open(self._ch.under(opening.reveal, opening.number), handle, opening)
        for numbers in np.split(opened, np.cumsum(opening.lengths)[:-1]):
            self._transcript.add(numbers.astype("<f8").tobytes())
        return opened

    async def open_sum(self, make: Make, opening: Opening) -> Numbers:
        """The sum of all sites' numbers, opened at once: input and opening stand in one scope."""
        ch = self._ch.under(opening.reveal, opening.number)
        (total,) = await self._input(ch, [make], len(opening.lengths))
        return await self.open(total, opening)

    @abstractmethod
    async def _input(self, ch: Channel, makes: Sequence[Make], chunks: int) -> list[Handle]: ...

    @abstractmethod
    async def _open(self, ch: Channel, handle: Handle, opening: Opening) -> Numbers: ...


class SiteCircuit(RunningCircuit):
    """A site's side."""

    def __init__(self, ch: Channel, keys: SiteKeys, transcript: Transcript, *, may_lose: bool) -> None:
        self._plain = ch
        if may_lose:
            lost = ch.scope("lost").slot(Lost, COORDINATOR, ALL)
            ch = replace(ch, mailbox=recovery.LossAwareMailbox(ch.mailbox, lost, self._heard))
        super().__init__(ch, keys.ctx.profile, transcript)
        self._keys = keys
        # The last answer, which may have to be given for a lost site too; and whose share we hold, since which round.
        self._given: tuple[int, Answer, Channel] | None = None
        self._standing_in: tuple[str, SecretShare, int] | None = None
        # The last input, and what had been opened before it.
        self._asked = ch, b""

    async def _input(self, ch: Channel, makes: Sequence[Make], chunks: int) -> list[Handle]:
        """Put my numbers into the sums of everyone's."""
        before = self._transcript.digest

        def encrypted() -> EncryptedInput:
            numbers = [chunk for make in makes for chunk in make()]
            assert len(numbers) == chunks * len(makes)
            made = message(EncryptedInput, [self._keys.ctx.encrypt(self._keys.public_key, chunk) for chunk in numbers])
            made.transcript.CopyFrom(agreement.confirm(ch, before))
            return made

        self._asked = ch, before
        await ch.send(COORDINATOR, EncryptedInput, partial(offload, encrypted))
        return [Handle(chunks) for _ in makes]

    async def inputs(self, make: Make, chunks: int) -> list[Handle]:
        """Put my numbers beside everyone's: one handle per site, in ring order."""
        await self._input(self._next(), [make], chunks)
        return await super().inputs(make, chunks)

    async def refresh(self, handles: Sequence[Handle]) -> list[Handle]:
        """Help to bring ciphertexts back to full height."""
        count, ch = sum(handle.chunks for handle in handles), self._next()
        await self._give(partial(refresh.site, ch, self._keys.ctx, self._seed, count), ch)
        return await super().refresh(handles)

    async def _open(self, ch: Channel, handle: Handle, opening: Opening) -> Numbers:
        """Help to open ciphertexts, and learn what is in them."""
        await self._give(partial(decryption.answer, ch, self._keys.ctx, opening, self._asked), ch)
        return await decryption.opened(ch, opening)

    async def _give(self, answer: Answer, ch: Channel) -> None:
        """My answer, and that of a site that I stand in for."""
        number = self._round
        await answer(self._keys.share, ch)
        self._given = number, answer, ch
        await self._give_for_lost()

    async def _give_for_lost(self) -> None:
        """The last answer that I gave, once more with the share of the site that I stand in for."""
        if self._standing_in is None or self._given is None:
            return
        site, share, since = self._standing_in
        (number, answer, ch), self._given = self._given, None
        if number >= since:
            await answer(share, ch.scope(f"for-{site}"))

    async def _heard(self, lost: Lost) -> None:
        """A site is lost: help to open its share; if it is me who stands in, answer for it from here on."""
        self._ch.losses.note(lost.site, lost.stand_in)
        self._plain.under(STAND_IN).opens()
        share = await recovery.open_share(self._plain.scope("keys"), self._plain.scope("lost"), lost)
        if share is not None:
            self._standing_in = lost.site, share, lost.since
            await self._give_for_lost()


class CoordinatorCircuit(RunningCircuit):
    """The coordinator's side: ciphertexts, and nothing that opens them."""

    def __init__(self, ch: Channel, evaluator: Evaluator, transcript: Transcript, patience_s: float | None) -> None:
        super().__init__(ch, evaluator.ctx.profile, transcript)
        self._evaluator = evaluator
        # How long a site may be silent, where the others can stand in for it.
        self._patience_s = patience_s
        # The sites' words on what had been opened before their last inputs.
        self._words: list[Confirmation] = []

    async def _receive(self, ch: Channel, kind: type[Message], sender: str) -> Any:
        """A site's answer; if it is silent for too long and its share is in escrow, its stand-in's."""
        stand_ins = self._ch.losses.stand_ins
        if sender not in stand_ins:
            with anyio.move_on_after(self._patience_s):
                return await ch.recv(kind, sender)
            await self._lose(sender)
        return await ch.scope(f"for-{sender}").recv(kind, stand_ins[sender])

    async def _lose(self, site: str) -> None:
        """Step 2 of recovery: say once which site is lost, and who stands in."""
        losses = self._ch.losses
        if losses.stand_ins:
            raise SiteLost(f"{site} is lost too, after {', '.join(losses.stand_ins)}.", "Submit the job again.")
        stand_in = next(other for other in self._ch.sites if other != site)
        losses.note(site, stand_in)
        locked = (await self._ch.scope("keys").recv(Escrow, site)).locked
        said = Lost(site=site, stand_in=stand_in, since=self._round, locked=locked)
        await self._ch.under(STAND_IN).broadcast(said)

    async def _input(self, ch: Channel, makes: Sequence[Make], chunks: int) -> list[Handle]:
        shape = self._evaluator.ctx.fresh_shape
        total, received = await gather_sum(ch, EncryptedInput, shape, chunks * len(makes))
        self._words = [received[site].transcript for site in self._ch.sites]
        return [await offload(self._load, total[at : at + chunks]) for at in range(0, len(total), chunks)]

    async def inputs(self, make: Make, chunks: int) -> list[Handle]:
        """All sites' numbers, one handle per site."""
        ch, shape = self._next(), self._evaluator.ctx.fresh_shape
        found = await ch.gather(EncryptedInput)
        self._words = [message.transcript for message in found.values()]
        parts = [await offload(parse, ch, site, message, shape, chunks) for site, message in found.items()]
        return [await offload(self._load, part) for part in parts]

    def _load(self, polynomials: Sequence[Coefficients]) -> Handle:
        return Handle(len(polynomials), 0, tuple(map(self._evaluator.load, polynomials)))

    async def refresh(self, handles: Sequence[Handle]) -> list[Handle]:
        """Bring ciphertexts back to full height, all in one round."""
        flat = [one for handle in handles for one in handle.ciphertexts]
        fresh = iter(await refresh.coordinator(self._next(), self._evaluator, self._seed, flat, self._receive))
        return [Handle(handle.chunks, 0, tuple(next(fresh) for _ in handle.ciphertexts)) for handle in handles]

    async def _open(self, ch: Channel, handle: Handle, opening: Opening) -> Numbers:
        return await decryption.coordinator(
            ch, self._evaluator, handle.ciphertexts, opening, self._words, self._receive
        )

    async def mul_all(self, pairs: Sequence[tuple[Handle, Handle | Plain]]) -> list[Handle]:
        """Independent products, at once."""
        return await concurrently([partial(self.mul, a, b) for a, b in pairs])

    async def rotate(self, a: Handle, steps: int) -> Handle:
        """Slot i takes what was in slot i + steps."""
        rotated = [await offload(self._evaluator.rotate, one, steps) for one in a.ciphertexts]
        return replace(a, ciphertexts=tuple(rotated))

    async def _compute(self, operation: Operation, a: Handle, b: Handle | Plain) -> Handle:
        made, compute = await super()._compute(operation, a, b), getattr(self._evaluator, operation)
        others: Sequence[Any] = b.ciphertexts if isinstance(b, Handle) else [b] * a.chunks
        work = [partial(offload, compute, x, y) for x, y in zip(a.ciphertexts, others, strict=True)]
        return replace(made, ciphertexts=tuple(await concurrently(work)))


@asynccontextmanager
async def with_keys(
    ch: Channel, transcript: Transcript, options: CkksOptions, purpose: str, rotations: tuple[int, ...] = ()
) -> AsyncIterator[RunningCircuit]:
    """All roles: an end of a circuit while the keys are in place, which are made or found.

    Counts are added, never multiplied. They have no escrow: what a lost site had still to count is missing anyhow.
    """
    adds_only = purpose == "counts"
    needs = Needs(profile_for(options.profile, purpose), not adds_only, rotations, options.keys == "reuse")
    may_lose = options.recovery and not adds_only
    keys_ch = ch.scope("keys")
    found = await key_set.obtain(keys_ch, needs)
    keys = await offload(key_set.site_keys, needs, found) if ch.is_site else None
    if may_lose:
        await recovery.deposit(keys_ch, keys.share if keys else None)
    if keys:
        yield SiteCircuit(ch, keys, transcript, may_lose=may_lose)
        return
    joint = await offload(key_set.public_keys, needs, found)
    # Its keys stand in OpenFHE's tables until it is closed.
    with closing(await offload(Evaluator, context_of(needs.profile), joint, f"{ch.run}/{ch.prefix}")) as evaluator:
        yield CoordinatorCircuit(ch, evaluator, transcript, options.recovery_after_s if may_lose else None)
