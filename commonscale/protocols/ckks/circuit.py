"""A circuit that every role runs: the coordinator on ciphertexts, a site on bare level counts.

Because a site follows the same function step by step, it knows at every moment which refresh or decryption comes
next, and for how many ciphertexts; it answers that and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import SiteLost
from commonscale.protocols import agreement
from commonscale.protocols.ckks import decryption, refresh
from commonscale.protocols.ckks.gathering import gather_sum, message, parse
from commonscale.protocols.ckks.key_set import PartyKeys, crs_seed
from commonscale.protocols.ckks.recovery import LossAwareMailbox, open_share
from commonscale.protocols.transcript import Transcript
from commonscale.slot import ALL, HUB
from commonscale.v1.protocols_pb2 import Confirmation, EncryptedInput, Lost
from crypto.ckks.arithmetic import Plain
from crypto.ckks.context import Context, context_of
from crypto.ckks.evaluator import Evaluator, Numbers, PublicKeys, TooFewLevelsError
from crypto.ckks.keys import SecretShare
from crypto.ckks.profiles import Profile

# Numbers for one ciphertext each; where there are more than fit into one, several are computed with alike.
Chunks = Sequence[NDArray[np.float64]]
Make = Callable[[], Chunks]
Finish = Callable[[Numbers], Numbers]
# Answers a request with a share, on a channel.
Answer = Callable[[SecretShare, Channel], Awaitable[None]]


@dataclass(frozen=True)
class Handle:
    """Some ciphertexts of the same height; a site holds none of them, only their number."""

    chunks: int
    used: int = 0
    ciphertexts: tuple[Any, ...] = ()


class Circuit(ABC):
    """What both sides share: levels, and the numbering of rounds."""

    def __init__(self, ch: Channel, profile: Profile) -> None:
        self._ch = ch
        self._seed = crs_seed(ch)
        self.profile = profile
        # One site, the same for all: what must be added once, it adds.
        self.first = float(bool(ch.parties) and ch.me == ch.parties[0])
        self._round = 0
        self._transcript = Transcript()

    def _told(self, opened: Sequence[Numbers]) -> None:
        for numbers in opened:
            self._transcript.add(numbers.astype("<f8").tobytes())

    def levels(self, a: Handle) -> int:
        """Multiplications left before a refresh."""
        return self.profile.levels - a.used

    def _next(self, name: str = "") -> Channel:
        self._round += 1
        return self._ch.scope(name or str(self._round))

    def _sum(self, a: Handle, b: Handle | Plain) -> Handle:
        return Handle(a.chunks, max(a.used, b.used) if isinstance(b, Handle) else a.used)

    def _product(self, a: Handle, b: Handle | Plain) -> Handle:
        made = replace(self._sum(a, b), used=self._sum(a, b).used + 1)
        if self.levels(made) < 0:
            raise TooFewLevelsError("a ciphertext must be refreshed before another multiplication")
        return made

    @abstractmethod
    async def input(self, makes: Sequence[Make | None], chunks: int) -> list[Handle]:
        """Sums of all sites' numbers, all in one message; a site makes its own."""

    @abstractmethod
    async def inputs(self, make: Make | None, chunks: int) -> list[Handle]:
        """All sites' numbers, one handle a site in ring order; a site makes its own."""

    @abstractmethod
    async def refresh(self, handles: Sequence[Handle]) -> list[Handle]:
        """The same at full height, all in one round."""

    @abstractmethod
    async def open(
        self, handle: Handle, lengths: Sequence[int], name: str = "", towers: int = 1, finish: Finish = np.asarray
    ) -> list[Numbers]:
        """Open ciphertexts to everyone: so many numbers of each. Its messages are named after it."""

    @abstractmethod
    async def finish(self) -> None:
        """Agree on everything that was opened."""

    # What a site does in place of arithmetic; the coordinator's class computes.

    async def add(self, a: Handle, b: Handle | Plain) -> Handle:
        """A + b."""
        return self._sum(a, b)

    async def sub(self, a: Handle, b: Handle | Plain) -> Handle:
        """A - b."""
        return self._sum(a, b)

    async def mul(self, a: Handle, b: Handle | Plain) -> Handle:
        """A · b."""
        return self._product(a, b)

    async def mul_all(self, pairs: Sequence[tuple[Handle, Handle | Plain]]) -> list[Handle]:
        """Independent products."""
        return await concurrently([partial(self.mul, a, b) for a, b in pairs])

    async def rotate(self, a: Handle, steps: int) -> Handle:
        """Slot i takes what was in slot i + steps."""
        return Handle(a.chunks, a.used)


class PartyCircuit(Circuit):
    """A site's side."""

    def __init__(self, ch: Channel, keys: PartyKeys, *, recovery: bool = False) -> None:
        self._plain = ch
        if recovery:
            kind = ch.scope("lost").slot(Lost, HUB, ALL).kind
            ch = replace(ch, mailbox=LossAwareMailbox(ch.mailbox, ch.run, kind, self._heard))
        super().__init__(ch, keys.ctx.profile)
        self._keys = keys
        self._survivors = tuple(ch.parties)
        # The last answer, which may have to be given for a lost site too; and whose share we hold, since which round.
        self._given: tuple[int, Answer, Channel] | None = None
        self._standing_in: tuple[str, SecretShare, int] | None = None
        # The last input, and what had been opened before it.
        self._asked_in, self._asked_after = ch, b""

    async def input(self, makes: Sequence[Make | None], chunks: int) -> list[Handle]:
        """Put my numbers into the sums of everyone's."""
        await self._contribute(makes, chunks)
        return [Handle(chunks) for _ in makes]

    async def inputs(self, make: Make | None, chunks: int) -> list[Handle]:
        """Put my numbers beside everyone's: one handle a site, in ring order."""
        await self._contribute([make], chunks)
        return [Handle(chunks) for _ in self._ch.parties]

    async def _contribute(self, makes: Sequence[Make | None], chunks: int) -> None:
        ctx, key, ch = self._keys.ctx, self._keys.public_key, self._next()
        self._asked_after = self._transcript.digest

        def encrypted() -> EncryptedInput:
            numbers = [chunk for make in makes if make is not None for chunk in make()]
            assert len(numbers) == chunks * len(makes)
            made = message(EncryptedInput, [ctx.encrypt(key, chunk) for chunk in numbers])
            made.transcript.CopyFrom(agreement.confirm(ch, self._asked_after))
            return made

        async def make() -> EncryptedInput:
            return await offload(encrypted)

        self._asked_in = ch
        await ch.send(HUB, EncryptedInput, make)

    async def refresh(self, handles: Sequence[Handle]) -> list[Handle]:
        """Help to bring ciphertexts back to full height."""
        count, ch = sum(handle.chunks for handle in handles), self._next()

        async def answer(share: SecretShare, reply: Channel) -> None:
            await refresh.party(ch, self._keys.ctx, share, self._seed, count, reply)

        await self._give(answer, ch)
        return [Handle(handle.chunks) for handle in handles]

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
        self._survivors = tuple(party for party in self._plain.parties if party != lost.site)
        share = await open_share(self._plain.scope("keys"), self._plain.scope("lost"), lost)
        if share is not None:
            self._standing_in = lost.site, share, lost.since
            await self._give_for_lost()

    async def open(
        self, handle: Handle, lengths: Sequence[int], name: str = "", towers: int = 1, finish: Finish = np.asarray
    ) -> list[Numbers]:
        """Help to open ciphertexts, and learn what is in them."""
        ch = self._next(name)
        words = (self._asked_in, self._asked_after)

        async def answer(share: SecretShare, reply: Channel) -> None:
            await decryption.answer(ch, self._keys.ctx, share, towers, lengths, words, reply)

        await self._give(answer, ch)
        opened = await decryption.opened(ch, lengths)
        self._told(opened)
        return opened

    async def finish(self) -> None:
        """Agree on everything that was opened."""
        ch = self._next("finish")
        await agreement.party(replace(ch, parties=self._survivors), self._transcript.digest)


@dataclass(frozen=True)
class Escrows:
    """Every site's locked key share, and how long a site may be silent."""

    locked: dict[str, bytes]
    patience_s: float


class CoordinatorCircuit(Circuit):
    """The coordinator's side: ciphertexts, and nothing that opens them."""

    def __init__(self, ch: Channel, profile: Profile, evaluator: Evaluator, escrow: Escrows | None = None) -> None:
        super().__init__(ch, profile)
        self._evaluator = evaluator
        self._escrow = escrow
        # The sites' words on what had been opened before their last inputs.
        self._words: list[Confirmation] = []

    @classmethod
    async def create(
        cls, ch: Channel, profile: Profile, keys: PublicKeys, escrow: Escrows | None = None
    ) -> CoordinatorCircuit:
        """With its keys in place."""
        ctx: Context = await offload(context_of, profile)
        return cls(ch, profile, await offload(Evaluator, ctx, keys, f"{ch.run}/{ch.prefix}"), escrow)

    async def _receive(self, ch: Channel, kind: type[Message], sender: str) -> Any:
        """A site's answer; if it is silent for too long and its share is in escrow, its stand-in's."""
        losses = self._ch.losses
        if sender not in losses.stand_ins:
            if self._escrow is None:
                return await ch.recv(kind, sender)
            with anyio.move_on_after(self._escrow.patience_s):
                return await ch.recv(kind, sender)
            await self._lose(sender, self._escrow)
        return await ch.scope(f"for-{sender}").recv(kind, losses.stand_ins[sender])

    async def _lose(self, site: str, escrow: Escrows) -> None:
        """Step 2 of recovery: say once which site is lost, and who stands in."""
        losses = self._ch.losses
        if losses.stand_ins:
            raise SiteLost(f"{site} is lost too, after {', '.join(losses.stand_ins)}.", "Submit the job again.")
        stand_in = next(party for party in self._ch.parties if party != site)
        losses.note(site, stand_in)
        said = Lost(site=site, stand_in=stand_in, since=self._round, locked=escrow.locked[site])
        await self._ch.scope("lost").broadcast(said)

    def close(self) -> None:
        """Give back the memory of the keys."""
        self._evaluator.close()

    async def input(self, makes: Sequence[Make | None], chunks: int) -> list[Handle]:
        """The sums of all sites' numbers."""
        shape = self._evaluator.ctx.fresh_shape
        total, received = await gather_sum(self._next(), EncryptedInput, shape, chunks * len(makes))
        self._words = [received[site].transcript for site in self._ch.parties]
        loaded = [await offload(self._evaluator.load, one) for one in total]
        return [Handle(chunks, 0, tuple(loaded[at : at + chunks])) for at in range(0, len(loaded), chunks)]

    async def inputs(self, make: Make | None, chunks: int) -> list[Handle]:
        """All sites' numbers, one handle a site."""
        ch = self._next()
        shape = self._evaluator.ctx.fresh_shape

        def load(site: str, message: EncryptedInput) -> Handle:
            parts = parse(ch, site, message, shape, chunks)
            return Handle(chunks, 0, tuple(self._evaluator.load(part) for part in parts))

        found = await ch.gather(EncryptedInput)
        self._words = [message.transcript for message in found.values()]
        return [await offload(load, site, message) for site, message in found.items()]

    async def add(self, a: Handle, b: Handle | Plain) -> Handle:
        """A + b."""
        return await self._compute(self._evaluator.add, self._sum(a, b), a, b)

    async def sub(self, a: Handle, b: Handle | Plain) -> Handle:
        """A - b."""
        return await self._compute(self._evaluator.sub, self._sum(a, b), a, b)

    async def mul(self, a: Handle, b: Handle | Plain) -> Handle:
        """A · b."""
        return await self._compute(self._evaluator.mul, self._product(a, b), a, b)

    async def rotate(self, a: Handle, steps: int) -> Handle:
        """Slot i takes what was in slot i + steps."""
        rotated = [await offload(self._evaluator.rotate, one, steps) for one in a.ciphertexts]
        return replace(a, ciphertexts=tuple(rotated))

    async def refresh(self, handles: Sequence[Handle]) -> list[Handle]:
        """Bring ciphertexts back to full height, all in one round."""
        flat = [one for handle in handles for one in handle.ciphertexts]
        fresh = iter(await refresh.coordinator(self._next(), self._evaluator, self._seed, flat, self._receive))
        return [Handle(handle.chunks, 0, tuple(next(fresh) for _ in handle.ciphertexts)) for handle in handles]

    async def open(
        self, handle: Handle, lengths: Sequence[int], name: str = "", towers: int = 1, finish: Finish = np.asarray
    ) -> list[Numbers]:
        """Open ciphertexts to everyone; `finish` leaves out what nobody needs."""
        opened = await decryption.coordinator(
            self._next(name), self._evaluator, towers, handle.ciphertexts, lengths, self._words, finish, self._receive
        )
        self._told(opened)
        return opened

    async def finish(self) -> None:
        """Let the sites agree on everything that was opened."""
        ch = self._next("finish")
        survivors = tuple(party for party in ch.parties if party not in ch.losses.stand_ins)
        await agreement.coordinator(replace(ch, parties=survivors))

    async def _compute(
        self, operation: Callable[[Any, Any], Any], made: Handle, a: Handle, b: Handle | Plain
    ) -> Handle:
        others: Sequence[Any] = b.ciphertexts if isinstance(b, Handle) else [b] * a.chunks
        work = [partial(offload, operation, x, y) for x, y in zip(a.ciphertexts, others, strict=True)]
        return replace(made, ciphertexts=tuple(await concurrently(work)))
