"""Sums on their own, all roles in memory: every method and ring against plain integers, and a crash anywhere."""

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonscale.channel.channel import Channel
from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import COORDINATOR
from commonscale.channel.transcript import Transcript
from commonscale.concurrency import first_error
from commonscale.errors import TooFewSites
from commonscale.pipeline import Pipeline
from commonscale.protocols import sums
from commonscale.protocols.psi import group_key
from commonscale.reveal import Reveal
from crypto import field61
from crypto.rings import FIELD61, Z256, Ring, Vector, Wide
from tests.categories import names
from tests.federation import JOB, Federation
from tests.patience import PATIENCE_S
from tests.protocol.test_crash import QUICK, Crash, CrashingObserver

RINGS: dict[str, Ring] = {
    "prime": FIELD61,
    "fixed point": Z256,
    "narrow": Wide(1),
    "odd": Wide(13),
    "wide": Wide(264),
}
# Proportional shares are of fixed point only.
WAYS = [(method, ring) for method in ("masks", "shares") for ring in RINGS] + [("sac-proportional", "fixed point")]
REVEAL = Reveal("sum", "a sum of this test")
# By site, several vectors of integers, one per round.
Rounds = dict[str, list[list[int]]]
Work = Callable[[Channel, Transcript], Awaitable[Any]]


def modulus(ring: Ring) -> int:
    return field61.PRIME if ring is FIELD61 else 1 << (8 * ring.element_bytes)


def to_vector(ring: Ring, numbers: Sequence[int]) -> Vector:
    if isinstance(ring, Wide):
        return ring.from_integers(numbers)
    return np.array(numbers, dtype=np.uint64)


def to_integers(ring: Ring, vector: Vector) -> list[int]:
    return ring.to_integers(vector) if isinstance(ring, Wide) else [int(number) for number in vector]


def added(ring: Ring, rounds: Rounds) -> list[list[int]]:
    """The oracle: integers, added and reduced."""
    by_round = zip(*rounds.values(), strict=True)
    return [[sum(column) % modulus(ring) for column in zip(*vectors, strict=True)] for vectors in by_round]


@st.composite
def some_rounds(draw: st.DrawFn, ring: Ring) -> Rounds:
    """Two vectors of each of three to six sites; small numbers, large ones, and those at the modulus."""
    top = modulus(ring) - 1
    number = st.one_of(st.integers(0, top), st.sampled_from([0, 1, top, top // 2, top // 2 + 1]))
    lengths = [draw(st.integers(0, 7)) for _ in range(2)]
    return {
        site: [draw(st.lists(number, min_size=length, max_size=length)) for length in lengths]
        for site in names(draw(st.integers(3, 6)))
    }


@dataclass(frozen=True)
class Ended:
    """What a role ends with: what it found, and everything announced as one hash."""

    found: Any
    digest: bytes


async def all_roles(
    federation: Federation, work: Work, victim: str = "", after: int = 0
) -> tuple[dict[str, Ended], int]:
    """Work of all roles after admission; a victim crashes once and is started again."""
    sites = list(federation.members)
    pipeline = Pipeline.model_validate({"sites": sites, "steps": [{"columns": ["x"]}]})
    ended: dict[str, Ended] = {}
    observer = CrashingObserver(after or None)

    async def start(name: str, observer: CrashingObserver) -> None:
        if name == COORDINATOR:
            ch = await federation.admitted_coordinator(observer=observer)
        else:
            ch = await federation.admitted_site(name, pipeline, observer=observer)
        transcript = Transcript()
        ended[name] = Ended(await work(ch, transcript), transcript.digest)

    async def role(name: str) -> None:
        try:
            await start(name, observer if name == victim else CrashingObserver())
        except BaseException as error:
            if not isinstance(first_error(error), Crash):
                raise
            await start(name, CrashingObserver())

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for name in (COORDINATOR, *sites):
                tasks.start_soon(role, name)
    return ended, observer.seen


def run(work: Work, sites: Sequence[str]) -> dict[str, Ended]:
    with tempfile.TemporaryDirectory() as directory:
        return anyio.run(all_roles, Federation(Path(directory), sites), work)[0]


def adding(method: str, ring: Ring, rounds: Rounds) -> Work:
    """Every round's sum, one after the other."""

    async def work(ch: Channel, transcript: Transcript) -> list[list[int]]:
        found = []
        lengths = [len(vector) for vector in next(iter(rounds.values()))]
        for number, length in enumerate(lengths):

            def mine(number: int = number) -> Vector:
                return to_vector(ring, rounds[ch.me][number])

            scoped = ch.under(REVEAL, number + 1)
            found.append(to_integers(ring, await sums.add(scoped, ring, length, mine, transcript, method)))
        return found

    return work


def adding_hidden(ring: Ring, rounds: Rounds) -> Work:
    """The same for the sites alone, under a key of theirs."""

    async def work(ch: Channel, transcript: Transcript) -> list[list[int] | None]:
        found: list[list[int] | None] = []
        key = await group_key.share(ch)
        lengths = [len(vector) for vector in next(iter(rounds.values()))]
        for number, length in enumerate(lengths):

            def mine(number: int = number) -> Vector:
                return to_vector(ring, rounds[ch.me][number])

            scoped = ch.under(REVEAL, number + 1)
            total = await sums.add_hidden(scoped, ring, length, mine, transcript, key)
            found.append(None if total is None else to_integers(ring, total))
        return found

    return work


def asking(rounds: Rounds) -> Work:
    """Whether any site says yes: an odd number."""

    async def work(ch: Channel, transcript: Transcript) -> list[list[bool]]:
        found = []
        lengths = [len(vector) for vector in next(iter(rounds.values()))]
        for number, length in enumerate(lengths):

            def mine(number: int = number) -> sums.Yes:
                return np.array([answer % 2 == 1 for answer in rounds[ch.me][number]], dtype=bool)

            answers = await sums.any_says(ch.under(REVEAL, number + 1), length, mine, transcript)
            found.append(answers.tolist())
        return found

    return work


def anyone(rounds: Rounds) -> list[list[bool]]:
    """The oracle of questions."""
    by_round = zip(*rounds.values(), strict=True)
    return [[any(n % 2 for n in column) for column in zip(*vectors, strict=True)] for vectors in by_round]


def assert_all_found(ended: dict[str, Ended], expected: Any, *, hidden: bool = False) -> None:
    """All roles with the same, but for a coordinator that must not know; and one transcript."""
    for role, one in ended.items():
        assert one.found == ([None] * len(expected) if hidden and role == COORDINATOR else expected), role
    assert len({one.digest for one in ended.values()}) == 1


@pytest.mark.parametrize(("method", "name"), WAYS)
def test_sums_are_those_of_plain_integers(method: str, name: str) -> None:
    """Whatever the vectors, the ring and the number of sites; two sums in a row."""
    ring = RINGS[name]

    @settings(max_examples=15)
    @given(rounds=some_rounds(ring))
    def check(rounds: Rounds) -> None:
        assert_all_found(run(adding(method, ring, rounds), list(rounds)), added(ring, rounds))

    check()


@pytest.mark.parametrize("name", RINGS)
def test_hidden_sums_are_those_of_plain_integers_at_the_sites(name: str) -> None:
    """The coordinator ends with nothing."""
    ring = RINGS[name]

    @settings(max_examples=15)
    @given(rounds=some_rounds(ring))
    def check(rounds: Rounds) -> None:
        assert_all_found(run(adding_hidden(ring, rounds), list(rounds)), added(ring, rounds), hidden=True)

    check()


@settings(max_examples=20)
@given(rounds=some_rounds(Wide(1)))
def test_any_says_is_a_logical_or(rounds: Rounds) -> None:
    """Of nobody, somebody and everybody."""
    assert_all_found(run(asking(rounds), list(rounds)), anyone(rounds))


FIXED: Rounds = {"s0": [[1, 2, 0], [4]], "s1": [[10, 250, 0], [6]], "s2": [[100, 7, 0], [0]], "s3": [[0, 0, 0], [8]]}
CRASHING: dict[str, tuple[Work, Any, bool]] = {
    **{
        f"{method} {name}": (adding(method, RINGS[name], FIXED), added(RINGS[name], FIXED), False)
        for method, name in WAYS
    },
    **{
        f"hidden {name}": (adding_hidden(RINGS[name], FIXED), added(RINGS[name], FIXED), True)
        for name in ("prime", "fixed point", "odd")
    },
    "any_says": (asking(FIXED), anyone(FIXED), False),
}


@pytest.mark.crash
@pytest.mark.parametrize("victim", [COORDINATOR, "s0", "s2"], ids=["coordinator", "first", "another"])
@pytest.mark.parametrize("name", CRASHING)
def test_a_crash_after_any_operation_changes_no_sum(tmp_path: Path, name: str, victim: str) -> None:
    """One crash point after the other, until the role has no more operations; no vector is made twice."""
    work, expected, hidden = CRASHING[name]
    stride = 9 if QUICK else 1
    after, seen = 1 - stride, 1
    while seen >= after:
        after += stride
        federation = Federation(tmp_path / str(after), list(FIXED))
        ended, seen = anyio.run(all_roles, federation, work, victim, after)
        assert_all_found(ended, expected, hidden=hidden)
        assert {n for member in federation.members.values() for n in member.journal.made.values()} == {1}
    assert after > 10, "the matrix covered the whole role"


@pytest.mark.parametrize("kind", ["add", "add_hidden", "any_says"])
def test_two_sites_are_too_few_for_a_sum(tmp_path: Path, kind: str) -> None:
    """Each would learn the other's numbers: nothing is sent."""
    rounds = {site: [[1]] for site in names(3)}
    works = {
        "add": adding("masks", FIELD61, rounds),
        "add_hidden": adding_hidden(FIELD61, rounds),
        "any_says": asking(rounds),
    }

    async def with_two(ch: Channel, transcript: Transcript) -> Any:
        return await works[kind](replace(ch, sites=ch.sites[:2]), transcript)

    federation = Federation(tmp_path, names(3))
    with pytest.raises(BaseException) as caught:
        anyio.run(all_roles, federation, with_two)
    assert isinstance(first_error(caught.value), TooFewSites)
    assert not any("MaskedVector" in slot.kind for slot in federation.mailbox.slots)


def test_masks_of_an_equal_vector_differ_with_what_was_announced_before(tmp_path: Path) -> None:
    """With the same keys, the same numbers in the same slot look unrelated after another total; else they are equal."""
    federation, sent = Federation(tmp_path, names(3)), []
    for start in (b"", b"", b"another total"):

        async def work(ch: Channel, _: Transcript, start: bytes = start) -> Any:
            zeros = FIELD61.zeros(50)
            return (await sums.add(ch.under(REVEAL), FIELD61, 50, lambda: zeros, Transcript(start))).tolist()

        ended, _ = anyio.run(all_roles, federation, work)
        assert all(one.found == [0] * 50 for one in ended.values())
        sent.append({p[-400:] for s, p in federation.mailbox.slots.items() if s.kind == "sum.MaskedVector"})
        # Keys and answers of admission stay, and so does the roster.
        federation.mailbox = MemoryMailbox()
        for member in federation.members.values():
            member.journal.kept = {slot: raw for slot, raw in member.journal.kept.items() if slot.run == JOB}
    assert sent[0] == sent[1]
    assert len(sent[0]) == 3
    assert not sent[0] & sent[2]
