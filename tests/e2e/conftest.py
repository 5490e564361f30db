"""Federations of real processes, shared by the tests of a module."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import anyio
import numpy as np
import pytest

from commonscale.client import Client, Job
from commonscale.localnet import ENCRYPTION, LocalFederation
from commonscale.pipeline import Pipeline
from tests.patience import PATIENCE_S

T = TypeVar("T")

# Nothing in these tests takes longer unless it hangs.


def write_csv(path: Path, columns: list[str], rows: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, rows, fmt="%.17g", delimiter=",", header=",".join(columns), comments="")
    return path


def run(work: Callable[[], Awaitable[T]], limit_s: float = PATIENCE_S) -> T:
    async def limited() -> T:
        with anyio.fail_after(limit_s):
            return await work()

    return anyio.run(limited)


def submit(federation: LocalFederation, pipeline: dict[str, Any], job_id: str | None = None) -> Job:
    """Submit a job and wait for its end."""

    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            job = await client.submit(Pipeline.model_validate(pipeline), job_id)
            return await client.wait(job.id)

    return run(work)


def job(sites: list[str], columns: list[str], **step: Any) -> dict[str, Any]:
    """A pipeline with one z-score step."""
    top = {key: step.pop(key) for key in ("dataset", "deadline_s", "name") if key in step}
    return {"sites": sites, "deadline_s": 120, "steps": [{"columns": columns, **step}], **top}


GOOD = ["a", "b", "c"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Three plain sites, one whose jobs wait for a person, one with a narrow policy; and an odd data set."""
    directory = tmp_path_factory.mktemp("federation")
    generator = np.random.default_rng(11)
    data = {}
    for index, site in enumerate(["a", "b", "c", "manual", "narrow"]):
        rows = generator.normal([40 + 5 * index, 200.0], [9.0, 30.0], (30 + 10 * index, 2))
        data[site] = {"main": write_csv(directory / f"{site}.csv", ["age", "chol"], rows)}
    odd = {
        "a": "shared,unlike,infinite,constant,empty,extra\n1,2,3,7,,1\n2,3,inf,7,,2\n",
        "b": "shared,unlike,infinite,constant,empty\n3,text,3,7,\n4,other,4,7,\n",
        "c": "shared,unlike,infinite,constant,empty\n5,6,1,7,\n",
    }
    for site, text in odd.items():
        data[site]["odd"] = directory / f"{site}-odd.csv"
        data[site]["odd"].write_text(text)
    policies: dict[str, dict[str, Any]] = {site: {"min_rows": 0, **ENCRYPTION} for site in GOOD}
    policies["manual"] = {"approval": "manual"}
    policies["narrow"] = {"columns": ["age"], "min_rows": 10}
    with LocalFederation(directory, data, policies=policies) as running:
        yield running


def pooled_rows(federation: LocalFederation, sites: list[str]) -> np.ndarray:
    """The sites' main tables in one."""
    tables = [np.loadtxt(federation.directory / f"{site}.csv", delimiter=",", skiprows=1) for site in sites]
    return np.vstack(tables)
