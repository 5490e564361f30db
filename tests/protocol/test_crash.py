"""A crash after every single operation of every role, then a restart over the same mailbox and journal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import anyio
import numpy as np
import pytest

from commonscale.channel import Event
from commonscale.concurrency import first_error
from commonscale.pipeline import Pipeline
from commonscale.slot import HUB, Slot
from commonscale.transforms.moments import Moments
from tests.federation import Federation, NumpyTable

SITES = ("east", "north", "west")
COLUMNS = ["a", "b"]


class Crash(Exception):
    """The process ends here."""


class CrashingObserver:
    """Ends its role after the n-th operation; counts them otherwise."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.seen = 0

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        self.seen += 1
        if self.seen == self.after:
            raise Crash(f"{event} {slot}")

    @contextlib.contextmanager
    def waiting(self, slot: Slot) -> Iterator[None]:
        yield


def pipeline(sums: str) -> Pipeline:
    return Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": COLUMNS, "sums": sums}]})


TABLES = {
    site: NumpyTable(COLUMNS, np.random.default_rng(index).normal(5, 2, (9, 2))) for index, site in enumerate(SITES)
}


async def run_role(federation: Federation, role: str, job: Pipeline, observer: CrashingObserver) -> Moments:
    if role == HUB:
        return await federation.hub(job, observer=observer)
    return await federation.site(role, job, TABLES[role], observer=observer)


async def run_all(federation: Federation, job: Pipeline, victim: str, after: int) -> tuple[dict[str, Moments], int]:
    """All roles; the victim crashes once and is started again."""
    results: dict[str, Moments] = {}
    observer = CrashingObserver(after)

    async def role(name: str) -> None:
        if name != victim:
            results[name] = await run_role(federation, name, job, CrashingObserver())
            return
        try:
            results[name] = await run_role(federation, name, job, observer)
        except BaseException as error:
            if not isinstance(first_error(error), Crash):
                raise
            results[name] = await run_role(federation, name, job, CrashingObserver())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for name in (HUB, *SITES):
                tasks.start_soon(role, name)
    return results, observer.seen


@pytest.mark.parametrize("sums", ["masks", "shares"])
@pytest.mark.parametrize("victim", [HUB, "north"])
def test_every_crash_ends_with_the_right_numbers_and_no_share_made_twice(
    tmp_path: Path, victim: str, sums: str
) -> None:
    """One crash point after the other, until the role has no more operations."""
    job = pipeline(sums)
    pooled = np.vstack([TABLES[site].rows for site in SITES])
    after = 0
    while True:
        after += 1
        federation = Federation(tmp_path / f"{after}", SITES)
        results, seen = anyio.run(run_all, federation, job, victim, after)
        np.testing.assert_allclose(results[HUB].mean, pooled.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(results[HUB].variance, pooled.var(axis=0), rtol=1e-12)
        assert len({repr(moments) for moments in results.values()}) == 1
        made = {slot: n for member in federation.members.values() for slot, n in member.journal.made.items()}
        assert set(made.values()) == {1}
        if seen < after:
            break
    assert after > 15, "the matrix covered the whole role"
