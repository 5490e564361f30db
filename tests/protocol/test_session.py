"""Sessions, all roles in memory: a crash anywhere, what is kept, and a coordinator that shows two sites two totals."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import ALL, COORDINATOR, Slot, step_run
from commonscale.concurrency import first_error
from commonscale.errors import CommonscaleError, Disagreement, Equivocation, StateLost
from commonscale.pipeline import Pipeline
from commonscale.running import CoordinatorPool, SitePool
from commonscale.v1.protocols_pb2 import Total
from crypto.rings import FIELD61
from tests.federation import JOB, Federation, MemoryJournal, NumpySource
from tests.patience import PATIENCE_S
from tests.protocol.test_crash import QUICK, Crash, CrashingObserver
from tests.sessions import MORE, TOTAL, expected, sums_in_rounds

SITES = ("east", "north", "west")
PIPELINE = Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": ["x"]}]})
LENGTH = 3


class Roles:
    """A federation whose roles run a session instead of their step; one may crash and start again."""

    def __init__(self, directory: Path, rounds: int = 7, every: int = 1, *, finally_too: bool = False) -> None:
        self.federation = Federation(directory, SITES)
        self.rounds = rounds
        self.every = every
        self.finally_too = finally_too
        self.ended: dict[str, bytes] = {}

    async def start(self, name: str, observer: CrashingObserver, mailbox: MemoryMailbox | None = None) -> None:
        """One role from its beginning, as after a start of its process."""
        pool: CoordinatorPool | SitePool
        if name == COORDINATOR:
            ch = await self.federation.admitted_coordinator(mailbox, observer)
            pool = CoordinatorPool(ch)
        else:
            ch = await self.federation.admitted_site(name, PIPELINE, mailbox, observer)
            source: Any = NumpySource(["x"], [[1.0]])
            pool = SitePool(ch, source, source)
        self.ended[name] = await sums_in_rounds(pool, self.rounds, LENGTH, self.every, finally_too=self.finally_too)
        await pool.finish()

    async def all(self, victim: str = "", after: int = 0) -> int:
        """Everyone to the end; how many operations the victim saw."""
        observer = CrashingObserver(after or None)

        async def role(name: str) -> None:
            try:
                await self.start(name, observer if name == victim else CrashingObserver())
            except BaseException as error:
                if not isinstance(first_error(error), Crash):
                    raise
                await self.start(name, CrashingObserver())

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for name in (COORDINATOR, *SITES):
                    tasks.start_soon(role, name)
        return observer.seen

    def rounds_kept(self, slots: Any) -> set[int]:
        """Of which rounds something is left."""
        return {int(slot.run.rpartition("/")[2]) for slot in slots if step_run(slot.run) != slot.run}


@pytest.mark.parametrize("every", [1, 3])
def test_every_total_is_right_and_little_is_kept(tmp_path: Path, every: int) -> None:
    """A site keeps its last checkpoint and what came since; the coordinator also what lies between the last two."""
    roles = Roles(tmp_path, rounds=8, every=every)
    anyio.run(roles.all)
    assert set(roles.ended.values()) == {expected(SITES, 8, LENGTH)}
    last = 8 // every * every
    for member in roles.federation.members.values():
        assert roles.rounds_kept(member.journal.kept) == set(range(last, 9))
    assert roles.rounds_kept(roles.federation.mailbox.slots) == set(range(last - every + 1, 9))


@pytest.mark.crash
@pytest.mark.parametrize(("every", "finally_too"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("victim", [COORDINATOR, "north"])
def test_a_crash_anywhere_ends_right(tmp_path: Path, victim: str, every: int, finally_too: bool) -> None:
    """After every operation: the same totals, no message made twice, and what was opened before is still reported."""
    after, stride = 1, 7 if QUICK else 1
    while True:
        roles = Roles(tmp_path / str(after), every=every, finally_too=finally_too)
        seen = anyio.run(roles.all, victim, after)
        assert set(roles.ended.values()) == {expected(SITES, 7, LENGTH)}, after
        for name, member in roles.federation.members.items():
            assert set(member.journal.made.values()) == {1}, (name, after)
            assert set(roles.federation.ledgers[name].of(f"{JOB}/0")) == {TOTAL, MORE}
        if seen < after:
            break
        after += stride
    assert after > 25


@pytest.mark.parametrize("who", [COORDINATOR, "north"])
def test_a_role_that_restarts_after_the_last_checkpoint_comes_to_the_same_end(tmp_path: Path, who: str) -> None:
    """Also where the last checkpoint is after all rounds: it is come to again, and not made again."""
    roles = Roles(tmp_path, every=3, finally_too=True)
    anyio.run(roles.all)

    async def again() -> None:
        await roles.start(who, CrashingObserver())

    anyio.run(again)
    assert set(roles.ended.values()) == {expected(SITES, 7, LENGTH)}


def test_a_step_has_one_session(tmp_path: Path) -> None:
    """Two would share their rounds and checkpoints."""

    async def two() -> None:
        pool = CoordinatorPool(Federation(tmp_path, SITES).channel(f"{JOB}/0", COORDINATOR))
        await pool.session()
        with pytest.raises(RuntimeError, match="has a session already"):
            await pool.session()
        with pytest.raises(RuntimeError, match="has a session already"):
            await pool.round(1).session()

    anyio.run(two)


@pytest.mark.crash
def test_what_was_opened_before_the_checkpoint_is_reported_after_a_restart(tmp_path: Path) -> None:
    """A new process knows it from its checkpoint alone: `more` is opened in the fifth round only."""
    roles = Roles(tmp_path)
    anyio.run(roles.all)
    federation = roles.federation
    federation.ledgers["north"].opened.clear()

    async def again() -> None:
        await roles.start("north", CrashingObserver())

    anyio.run(again)
    assert set(federation.ledgers["north"].of(f"{JOB}/0")) == {TOTAL, MORE}


class TwoFaced(MemoryMailbox):
    """A coordinator that shows one site another total in one round."""

    def __init__(self, inner: MemoryMailbox, victim_round: int) -> None:
        self.inner = inner
        self._slot = Slot(f"{JOB}/0/{victim_round}", "total.Total", COORDINATOR, ALL)

    async def put(self, slot: Slot, payload: bytes) -> None:
        await self.inner.put(slot, payload)

    async def get(self, slot: Slot) -> bytes:
        payload = await self.inner.get(slot)
        if slot == self._slot:
            return Total(elements=FIELD61.to_bytes(FIELD61.zeros(LENGTH + 1))).SerializeToString()
        return payload


def test_two_totals_are_noticed_before_anyone_goes_on(tmp_path: Path) -> None:
    """At the checkpoint of that round: no site has stored it, each has the one before."""
    roles = Roles(tmp_path)
    errors: dict[str, CommonscaleError] = {}

    async def work() -> None:
        async def role(name: str) -> None:
            mailbox = TwoFaced(roles.federation.mailbox, 3) if name == "north" else None
            try:
                await roles.start(name, CrashingObserver(), mailbox)
            except CommonscaleError as error:
                errors[name] = error
            if set(errors) == set(SITES):
                tasks.cancel_scope.cancel()

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for name in (COORDINATOR, *SITES):
                    tasks.start_soon(role, name)

    anyio.run(work)
    for name in SITES:
        assert isinstance(errors[name], Disagreement)
        assert "was shown another value" in str(errors[name])
        checkpoints = {slot.run for slot in roles.federation.members[name].journal.kept if slot.kind == "Checkpoint"}
        assert checkpoints == {f"{JOB}/0/2"}


def test_a_site_whose_state_is_an_old_copy_ends_instead_of_answering_twice(tmp_path: Path) -> None:
    """Restored from a backup, it would make round 3 again: the slot, though trimmed, takes no other bytes."""
    roles = Roles(tmp_path)
    anyio.run(roles.all)
    federation = roles.federation
    member = federation.members["north"]
    keys = {slot: kept for slot, kept in member.journal.kept.items() if slot.run == JOB}
    member.journal = MemoryJournal()
    member.journal.kept = keys

    async def again() -> None:
        await roles.start("north", CrashingObserver())

    with pytest.raises(Equivocation, match=r"total\.MaskedVector north"):
        anyio.run(again)
    announced = Slot(f"{JOB}/0/1", "total.Total", COORDINATOR, ALL)
    with pytest.raises(StateLost, match="behind the last checkpoint"):
        anyio.run(federation.mailbox.get, announced)
