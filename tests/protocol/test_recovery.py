"""A site is lost after key generation: with its share in escrow the others end without it, otherwise the run stops."""

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.channel.channel import Event
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import first_error
from commonscale.errors import SiteLost
from commonscale.pipeline import Pipeline
from tests.federation import Federation, NumpySource, Result
from tests.patience import PATIENCE_S
from tests.protocol.test_crash import Crash, CrashingObserver

SITES = ("east", "north", "south", "west")
TABLES = {
    site: NumpySource(["x"], np.random.default_rng(index).normal(3 * index, 2, (12, 1)))
    for index, site in enumerate(SITES)
}
POOLED = np.vstack([table.rows for table in TABLES.values()])


class DiesBefore(CrashingObserver):
    """Dies when it would have sent its n-th refresh share: made, but never delivered."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__()
        self.kind, self.left = kind, number

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        if event == "made" and slot.kind.endswith(self.kind):
            self.left -= 1
            if self.left == 0:
                raise Crash(str(slot))


def job(transform: dict[str, Any], *, recovery: bool) -> Pipeline:
    step = {"columns": ["x"], "ckks": {"profile": "test", "recovery": recovery, "recovery_after_s": 3}, **transform}
    return Pipeline.model_validate({"sites": list(SITES), "steps": [step]})


def run(
    federation: Federation, pipeline: Pipeline, victim: str, observer: DiesBefore, limit_s: float = PATIENCE_S
) -> dict[str, Result]:
    """All roles; the victim dies and is not started again."""
    results: dict[str, Result] = {}

    async def role(name: str) -> None:
        if name == COORDINATOR:
            results[name] = await federation.coordinator(pipeline)
        elif name != victim:
            results[name] = await federation.site(name, pipeline, TABLES[name])
        else:
            try:
                await federation.site(name, pipeline, TABLES[name], observer=observer)
            except BaseException as error:
                if not isinstance(first_error(error), Crash):
                    raise

    async def work() -> None:
        with anyio.fail_after(limit_s):
            async with anyio.create_task_group() as tasks:
                for name in (COORDINATOR, *SITES):
                    tasks.start_soon(role, name)

    anyio.run(work)
    return results


MINMAX = {"transform": "minmax", "method": "tree"}


@pytest.mark.parametrize("victim", ["east", "west"])
@pytest.mark.parametrize(("kind", "number"), [("RefreshShare", 1), ("RefreshShare", 4), ("DecryptShare", 1)])
def test_the_others_end_without_a_lost_site(tmp_path: Path, victim: str, kind: str, number: int) -> None:
    """Its input counts, one of them answers for it, and nobody makes an answer twice."""
    federation = Federation(tmp_path, SITES)
    results = run(federation, job(MINMAX, recovery=True), victim, DiesBefore(kind, number))
    assert set(results) == {COORDINATOR, *SITES} - {victim}
    for fitted in results.values():
        np.testing.assert_allclose(fitted.parameters()["min"], POOLED.min(axis=0), atol=1e-3)
        np.testing.assert_allclose(fitted.parameters()["max"], POOLED.max(axis=0), atol=1e-3)
    stand_in = "north" if victim == "east" else "east"
    answered = [s for s in federation.mailbox.slots if f".for-{victim}." in s.kind]
    assert answered
    assert {slot.sender for slot in answered} == {stand_in}
    # No round has both the lost site's own answer and its stand-in's.
    own = {s.kind for s in federation.mailbox.slots if s.sender == victim}
    assert not own & {slot.kind.replace(f"for-{victim}.", "") for slot in answered}
    made = [n for member in federation.members.values() for n in member.journal.made.values()]
    assert set(made) == {1}


@pytest.mark.long
def test_without_escrow_the_run_waits_for_the_lost_site(tmp_path: Path) -> None:
    """Until the job's deadline, which names it; nothing is opened."""
    federation = Federation(tmp_path, SITES)
    with pytest.raises(TimeoutError):
        run(federation, job(MINMAX, recovery=False), "west", DiesBefore("RefreshShare", 2), limit_s=20)
    assert not any(slot.kind.endswith("Opened") for slot in federation.mailbox.slots)


def test_a_second_lost_site_ends_the_run(tmp_path: Path) -> None:
    """Two shares in one hand is as far as it goes."""
    federation = Federation(tmp_path, SITES)
    pipeline = job(MINMAX, recovery=True)

    async def doomed(name: str, number: int) -> None:
        try:
            await federation.site(name, pipeline, TABLES[name], observer=DiesBefore("RefreshShare", number))
        except BaseException as error:
            if not isinstance(first_error(error), Crash):
                raise

    async def work() -> None:
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(federation.coordinator, pipeline)
                tasks.start_soon(doomed, "west", 1)
                tasks.start_soon(doomed, "south", 3)
                for name in ("east", "north"):
                    tasks.start_soon(federation.site, name, pipeline, TABLES[name])

    with pytest.raises(BaseException) as caught:
        anyio.run(work)
    assert isinstance(first_error(caught.value), SiteLost)
