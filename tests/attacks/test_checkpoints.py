"""Two coordinators against sessions: one guesses what the sites go on from, the other waits for a restart.

A state may hold what only the sites know: here a number below a thousand. The first coordinator has seen every message,
knows how states are written and how hashes are made, and everything announced: only the number and the key are missing.

The second lets a site restart in mid-session, and shows it another mean than it had announced before the session: if
the site answered around that one, the next total would show its own number.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.channel.channel import Channel
from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import concurrently
from commonscale.errors import Disagreement
from commonscale.pipeline import Pipeline
from commonscale.protocols import session
from commonscale.reveal import Reveal
from commonscale.running import CoordinatorPool, RunningPool, SitePool
from commonscale.v1.protocols_pb2 import Checkpoint, Confirmation, Total
from crypto.rings import FIELD61, Vector
from tests.federation import JOB, Federation, NumpySource
from tests.sessions import TOTAL, vector

SITES = ("east", "north", "west")
PIPELINE = Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": ["x"]}]})
HIDDEN_NUMBER = 742


async def two_rounds(pool: RunningPool) -> set[bytes]:
    """The sites go on from a number that the coordinator does not have. Returns what a role knows was announced."""
    transcripts = set()
    going = await pool.session()
    for number, here in going.rounds(2):

        def mine(number: int = number) -> Vector:
            return vector(pool.me, number, 3)

        await here.add(TOTAL, FIELD61, 3, mine)
        await going.checkpoint(str(HIDDEN_NUMBER).encode() if pool.me else b"")
        transcripts.add(pool.transcript.digest)
    return transcripts


def recorded(directory: Path) -> tuple[set[bytes], set[bytes]]:
    """What the sites confirmed, and everything announced until then, as the coordinator has them."""
    federation = Federation(directory, SITES)
    transcripts: set[bytes] = set()
    source: Any = NumpySource(["x"], [[1.0]])

    async def site(name: str) -> None:
        await two_rounds(SitePool(await federation.admitted_site(name, PIPELINE), source, source))

    async def coordinator() -> None:
        transcripts.update(await two_rounds(CoordinatorPool(await federation.admitted_coordinator())))

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(coordinator)
            for name in SITES:
                tasks.start_soon(site, name)

    anyio.run(work)
    confirmed = {
        Confirmation.FromString(payload).digest
        for slot, payload in federation.mailbox.slots.items()
        if slot.kind == "checkpoint.Confirmation" and slot.receiver == COORDINATOR
    }
    return confirmed, transcripts


def guessed(confirmed: set[bytes], transcripts: set[bytes]) -> set[int]:
    """The numbers that fit, for a coordinator that has no key."""
    return {
        guess
        for guess in range(1000)
        for number in (1, 2)
        for transcript in transcripts
        if _plain(f"{JOB}/0/{number}", transcript, guess) in confirmed
    }


def _plain(run: str, transcript: bytes, guess: int) -> bytes:
    return hashlib.sha256(session.keyed_hash(b"", run, transcript, str(guess).encode())).digest()


def test_what_the_sites_confirm_cannot_be_guessed(tmp_path: Path) -> None:
    """Not even a number below a thousand."""
    confirmed, transcripts = recorded(tmp_path)
    # All sites confirm the same; what they confirmed in the first round has been dropped by then.
    assert len(confirmed) == 1
    assert guessed(confirmed, transcripts) == set()


def test_the_attack_finds_the_number_where_the_hash_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above could fail."""
    keyed = session.keyed_hash

    def without_key(_: bytes, run: str, transcript: bytes, state: bytes) -> bytes:
        return keyed(b"", run, transcript, state)

    monkeypatch.setattr(session, "keyed_hash", without_key)
    assert guessed(*recorded(tmp_path)) == {HIDDEN_NUMBER}


OWN = {"east": 10, "north": 777, "west": 30}
FALSE_MEAN = 1_000_000
MEAN = Reveal("mean", "a pooled number that the rounds work with")
AROUND = Reveal("around", "a sum around it")


class ShowsAnotherMean(MemoryMailbox):
    """What a site gets from a coordinator that changes its mind about one total."""

    def __init__(self, inner: MemoryMailbox) -> None:
        self.inner = inner

    async def put(self, slot: Slot, payload: bytes) -> None:
        await self.inner.put(slot, payload)

    async def get(self, slot: Slot) -> bytes:
        payload = await self.inner.get(slot)
        if slot.kind != "mean.Total":
            return payload
        return Total(elements=FIELD61.to_bytes(np.array([FALSE_MEAN], np.uint64))).SerializeToString()


async def around_a_mean(pool: RunningPool, totals: list[int], stop_after: int = 2) -> None:
    """A pooled number, then a session of sums that depend on it."""
    mean = await pool.add(MEAN, FIELD61, 1, lambda: np.array([OWN[pool.me]], np.uint64))
    going = await pool.session()
    for _, here in going.rounds(stop_after):
        total = await here.add(AROUND, FIELD61, 1, lambda: np.array([OWN[pool.me]], np.uint64) * mean)
        totals.append(int(total[0]))
        await going.checkpoint(b"state")


def restarted(directory: Path) -> list[int]:
    """The totals of two rounds; between them a site restarts, and is shown another mean."""
    federation = Federation(directory, SITES)
    source: Any = NumpySource(["x"], [[1.0]])
    totals: list[int] = []

    async def site(name: str) -> None:
        await around_a_mean(SitePool(await federation.admitted_site(name, PIPELINE), source, source), [])

    async def victim() -> None:
        ch = await federation.admitted_site("north", PIPELINE)
        await around_a_mean(SitePool(ch, source, source), [], stop_after=1)
        ch = await federation.admitted_site("north", PIPELINE, ShowsAnotherMean(federation.mailbox))
        await around_a_mean(SitePool(ch, source, source), [])

    async def coordinator() -> None:
        await around_a_mean(CoordinatorPool(await federation.admitted_coordinator()), totals)

    work = [coordinator, partial(site, "east"), partial(site, "west"), victim]
    anyio.run(concurrently, work)
    return totals


def own_number(totals: list[int]) -> float:
    """What the coordinator solves for: only one site has another mean in the second round."""
    first, second = totals
    return (second - first) / (FALSE_MEAN - sum(OWN.values()))


def test_a_restarted_site_takes_nothing_else_than_before(tmp_path: Path) -> None:
    """It ends instead of answering around another mean."""
    with pytest.raises(Disagreement, match="north was shown something else before the session"):
        restarted(tmp_path)


def test_the_attack_reads_a_number_where_the_beginning_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above stops something real: exactly the site's own number."""
    checked = session.resume

    async def unchecked(ch: Channel, announced: bytes) -> session.Progress:
        try:
            return await checked(ch, announced)
        except Disagreement:
            assert ch.checkpoints is not None
            kept = Checkpoint.FromString(await ch.checkpoints.last(ch.run, ch.me) or b"")
            return session.Progress(kept.number, kept.began, kept.transcript, kept.state, kept.number)

    monkeypatch.setattr(session, "resume", unchecked)
    assert own_number(restarted(tmp_path)) == OWN["north"]
