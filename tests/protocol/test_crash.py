"""A crash after every single operation of every role, then a restart over the same mailbox and journal."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler

from commonscale.channel.channel import Event
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import first_error
from commonscale.pipeline import Pipeline
from commonscale.results import canonical_json
from tests.federation import Federation, NumpySource, Result
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.crash

# `make test` takes a few crashes; `make test-crash` takes the strides as they stand.
QUICK = int(os.environ.get("COMMONSCALE_CRASH_STRIDE", "1")) > 2

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


CKKS = {"ckks": {"profile": "test"}}
# Every operation is a crash point; under encryption there are hundreds, so every n-th is taken.
STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "zscore-masks": (1, {"transform": "zscore"}),
    "zscore-shares": (1, {"transform": "zscore", "method": "shares"}),
    "zscore-ckks": (9, {"transform": "zscore", "method": "ckks", "max_rows": 4096, **CKKS}),
    "minmax-search": (3, {"transform": "minmax", "method": "search"}),
    "minmax-tree": (13, {"transform": "minmax", "method": "tree", **CKKS}),
    "robust-masks": (5, {"transform": "robust"}),
    "robust-shares": (9, {"transform": "robust", "method": "shares"}),
    "robust-ckks": (17, {"transform": "robust", "method": "ckks", **CKKS}),
    "power": (9, {"transform": "power"}),
}


def pipeline(step: dict[str, Any]) -> Pipeline:
    return Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": COLUMNS, **step}]})


TABLES = {
    site: NumpySource(COLUMNS, np.random.default_rng(index).normal(5, 2, (9, 2))) for index, site in enumerate(SITES)
}


async def run_role(federation: Federation, role: str, job: Pipeline, observer: CrashingObserver) -> Result:
    if role == COORDINATOR:
        return await federation.coordinator(job, observer=observer)
    return await federation.site(role, job, TABLES[role], observer=observer)


async def run_all(federation: Federation, job: Pipeline, victim: str, after: int) -> tuple[dict[str, Result], int]:
    """All roles; the victim crashes once and is started again."""
    results: dict[str, Result] = {}
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

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for name in (COORDINATOR, *SITES):
                tasks.start_soon(role, name)
    return results, observer.seen


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("victim", [COORDINATOR, "north"])
def test_every_crash_ends_with_the_right_numbers_and_no_share_made_twice(
    tmp_path: Path, victim: str, name: str
) -> None:
    """One crash point after the other, until the role has no more operations."""
    stride, step = STEPS[name]
    if QUICK:
        stride = 6 * stride - 1
    job = pipeline(step)
    pooled = np.vstack([TABLES[site].rows for site in SITES])
    estimators = {"zscore": StandardScaler, "minmax": MinMaxScaler, "robust": RobustScaler}
    expected = estimators.get(step["transform"], PowerTransformer)().fit(pooled).transform(pooled)
    after = 1 - stride
    while True:
        after += stride
        federation = Federation(tmp_path / f"{after}", SITES)
        results, seen = anyio.run(run_all, federation, job, victim, after)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = results[COORDINATOR].estimator().transform(pooled)
        np.testing.assert_allclose(got, expected, atol=1e-4 if "ckks" in step or name == "power" else 1e-12)
        assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1
        made = {slot: n for member in federation.members.values() for slot, n in member.journal.made.items()}
        assert set(made.values()) == {1}
        if seen < after:
            break
    assert after > 15, "the matrix covered the whole role"
