"""A crash after the operations of encodings, then a restart over the same mailbox and journal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from commonscale.categories import text_integer
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import first_error
from commonscale.pipeline import Pipeline
from commonscale.results import canonical_json
from tests.categories import METHODS, SITES, assert_equals_pooled, job, means_of, run
from tests.federation import CategorySource, Federation
from tests.patience import PATIENCE_S
from tests.protocol.test_crash import QUICK, Crash, CrashingObserver

pytestmark = pytest.mark.crash

CELLS = {"east": ["x", "y", "e"], "north": ["x", None], "south": ["x", "y", "s"], "west": ["x", "y", "w"]}
TABLES = {site: CategorySource({"a": cells, "t": [1.0] * len(cells)}) for site, cells in CELLS.items()}
# Every n-th operation is a crash point.
STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "oprf": (1, METHODS["oprf"]),
    "oprf-counts": (3, {"min_frequency": 2}),
    "oprf-extends": (2, {"extends": "first"}),
    "apsi": (2, METHODS["apsi"]),
    "otmppsi-2": (2, METHODS["otmppsi-2"]),
    "otmppsi-3": (1, METHODS["otmppsi-3"]),
    "ring": (2, {"method": "ring", "padding": 0}),
    "target": (3, {"transform": "target", "target": "t"}),
    "bytes-norm": (2, {"transform": "bytes-norm"}),
    "mod-norm": (3, {"transform": "mod-norm"}),
}


async def all_roles(
    federation: Federation, pipeline: Pipeline, tables: Mapping[str, CategorySource], victim: str, after: int
) -> tuple[dict[str, Any], int]:
    """All roles; the victim crashes once and is started again."""
    results: dict[str, Any] = {}
    observer = CrashingObserver(after)

    async def start(name: str, observer: CrashingObserver) -> None:
        if name == COORDINATOR:
            results[name] = await federation.coordinator(pipeline, observer=observer)
        else:
            results[name] = await federation.site(name, pipeline, tables[name], observer=observer)

    async def role(name: str) -> None:
        try:
            await start(name, observer if name == victim else CrashingObserver())
        except BaseException as error:
            if not isinstance(first_error(error), Crash):
                raise
            await start(name, CrashingObserver())

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for name in (COORDINATOR, *SITES):
                tasks.start_soon(role, name)
    return results, observer.seen


def assert_right(name: str, results: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1
    if name == "target":
        # Sums are spread over their last digit.
        assert all(
            list(means_of(results[site]).tables[0].values()) == pytest.approx([1.0] * len(CELLS[site]))
            for site in SITES
        )
    elif name == "bytes-norm":
        numbers = [text_integer(cell) for cells in CELLS.values() for cell in cells if cell]
        for site in SITES:
            (moments,) = results[site].fitted
            assert moments.mean * len(numbers) == sum(numbers)
    elif name == "mod-norm":
        assert results[COORDINATOR].parameters()["values"] == [sum(map(len, CELLS.values()))]
    elif name == "ring":
        taken = [number for site in SITES for number in results[site].dictionaries[0].identifiers]
        assert sorted(taken) == list(range(sum(map(len, CELLS.values()))))
    else:
        assert_equals_pooled(results, TABLES, ["a"], threshold=3 if name == "otmppsi-3" else 2)
    if name == "oprf-extends":
        assert all(results[site].dictionaries == first[site].dictionaries for site in SITES)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "victim", [COORDINATOR, SITES[0], SITES[-1]], ids=["coordinator", "keyholder", "reconstructor"]
)
def test_every_crash_ends_with_the_right_identifiers_and_nothing_made_twice(
    tmp_path: Path, victim: str, name: str
) -> None:
    """One crash point after the other, until the role has no more operations."""
    stride, step = STEPS[name]
    if QUICK:
        stride = 8 * stride + 3
    first = run(tmp_path / "first", TABLES, ["a"]) if name == "oprf-extends" else {}
    memories = {site: {"first": first[site]} for site in SITES} if first else {}
    tables = {site: CategorySource(table.cells, memories.get(site, {})) for site, table in TABLES.items()}
    pipeline, after = job(SITES, ["a"], **step), 1 - stride
    while True:
        after += stride
        federation = Federation(tmp_path / f"{after}", SITES)
        results, seen = anyio.run(all_roles, federation, pipeline, tables, victim, after)
        assert_right(name, results, first)
        made = {slot: n for member in federation.members.values() for slot, n in member.journal.made.items()}
        assert set(made.values()) == {1}
        if seen < after:
            break
    assert after > 10, "the matrix covered the whole role"
