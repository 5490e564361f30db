"""Damaged messages of every kind, from a participant and from a coordinator: typed errors, and daemons that go on.

`make test` sends a few of them; `make test-fuzz` (COMMONSCALE_FUZZ=2000) half of so many from either side.
"""

import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.client import Client, Job
from commonscale.errors import leaf_errors
from commonscale.localnet import ENCRYPTION, LocalFederation
from commonscale.pipeline import Pipeline
from tests.e2e.conftest import job, run, write_csv

pytestmark = pytest.mark.long

COUNT = int(os.environ.get("COMMONSCALE_FUZZ", "60")) // 2
AT_ONCE = 8
# Four times what the longest of these jobs takes beside seven others on two cores.
DEADLINE_S = 60
SITES = ["a", "b", "c"]
ENTRY = [sys.executable, "-m", "tests.misbehaving.mutating"]
TYPED = {error.__name__ for error in leaf_errors()}
TEST = {"ckks": {"profile": "test"}}
# Each with how often it is taken: what computes long under encryption less often.
PIPELINES: dict[str, tuple[int, dict[str, Any]]] = {
    "zscore-masks": (6, {"transform": "zscore"}),
    "zscore-shares": (6, {"transform": "zscore", "method": "shares"}),
    "zscore-ckks": (2, {"transform": "zscore", "method": "ckks", "max_rows": 4096, **TEST}),
    "minmax-search": (6, {"transform": "minmax", "method": "search"}),
    "minmax-tree": (1, {"transform": "minmax", "method": "tree", **TEST}),
    "robust-masks": (5, {"transform": "robust"}),
    "robust-shares": (3, {"transform": "robust", "method": "shares"}),
    "robust-ckks": (3, {"transform": "robust", "method": "ckks", **TEST}),
    "quantiles-private": (1, {"transform": "quantiles", "method": "private", "quantiles": (0.5,), **TEST}),
    "onehot-oprf": (6, {"transform": "onehot"}),
    "onehot-apsi": (6, {"transform": "onehot", "method": "apsi"}),
    "onehot-otmppsi": (4, {"transform": "onehot", "method": "otmppsi"}),
    "onehot-otmppsi-3": (6, {"transform": "onehot", "method": "otmppsi", "threshold": 3}),
    "onehot-ring": (3, {"transform": "onehot", "method": "ring", "padding": 0}),
    "ordinal-rare": (2, {"transform": "ordinal", "min_frequency": 3}),
    "target": (3, {"transform": "target", "target": "x"}),
    "bytes-norm": (2, {"transform": "bytes-norm"}),
    "mod-norm": (2, {"transform": "mod-norm"}),
}
# COMMONSCALE_FUZZ_ONLY=onehot,target takes pipelines whose names begin so.
ONLY = tuple(filter(None, os.environ.get("COMMONSCALE_FUZZ_ONLY", "").split(",")))
PIPELINES = {name: step for name, step in PIPELINES.items() if not ONLY or name.startswith((*ONLY, "zscore-masks"))}
# Other well-formed numbers in these are another addend, key share or ciphertext: no protocol can tell them from the
# right ones, and the job may end in a wrong number. (A site may lie about its data; a coordinator that asks for other
# polynomials to be opened or refreshed, or shows all sites the same wrong key, gets noise.)
UNNOTICED = {
    "participant": {
        "MaskedVector", "PartialSum", "KeyShare", "RelinShare", "RelinProduct", "RotationShare", "EncryptedInput",
        "RefreshShare", "DecryptShare", "Tokens", "EvaluatedItems", "Unblinding",
    },
    "coordinator": {"JointKey", "RelinJoint", "RefreshRequest", "DecryptRequest", "TokenPositions", "OwnShares"},
}  # fmt: skip


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, marks: Path) -> Iterator[LocalFederation]:
    """Three sites, of which b damages messages, as does the coordinator; each only in the jobs that are named so."""
    directory = tmp_path_factory.mktemp("fuzz")
    generator = np.random.default_rng(8)
    data = {}
    for number, site in enumerate(SITES):
        # Categories: some at all sites, some at two, some at one.
        words = generator.integers(2 * number, 2 * number + 7, (21, 1))
        rows = np.hstack([generator.normal(3, 2, (21, 2)), words])
        data[site] = write_csv(directory / f"{site}.csv", ["x", "y", "word"], rows)
    entry = {"coordinator": [*ENTRY, "coordinator"], "b": [*ENTRY, "participant"]}
    before = os.environ.get("FUZZ_MARKS")
    os.environ["FUZZ_MARKS"] = str(marks)
    try:
        transforms = sorted({step["transform"] for _, step in PIPELINES.values()})
        policies = {site: {**ENCRYPTION, "transforms": transforms} for site in SITES}
        with LocalFederation(directory, data, policies=policies, entry=entry) as running:
            yield running
    finally:
        os.environ.pop("FUZZ_MARKS") if before is None else os.environ.update(FUZZ_MARKS=before)


def columns_of(name: str) -> list[str]:
    if name.startswith(("onehot", "ordinal", "target", "bytes", "mod")):
        return ["word"]
    return ["x"] if name == "quantiles-private" else ["x", "y"]


def end(federation: LocalFederation, jobs: dict[str, str], deadline_s: int = DEADLINE_S) -> dict[str, Job]:
    """Submit jobs together, ids with names of pipelines, and wait for their ends."""
    ended: dict[str, Job] = {}

    async def work() -> None:
        async with Client(federation.analyst()) as client, anyio.create_task_group() as tasks:

            async def one(job_id: str, name: str) -> None:
                pipeline = job(SITES, columns_of(name), deadline_s=deadline_s, **PIPELINES[name][1])
                await client.submit(Pipeline.model_validate(pipeline), job_id)
                ended[job_id] = await client.wait(job_id)

            for job_id, name in jobs.items():
                tasks.start_soon(one, job_id, name)

    # Whatever happens to a message, nobody waits longer than the deadline (and a busy machine).
    run(work, deadline_s + 40)
    return ended


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def crashes(federation: LocalFederation) -> Counter[str]:
    """Exceptions that a daemon had no word for, by daemon and their last lines."""
    found: Counter[str] = Counter()
    for process in (federation.coordinator, *federation.participants.values()):
        for entry in map(json.loads, process.log_path.read_text().splitlines()):
            if "exception" in entry:
                found[f"{process.name} {entry['event']}:\n{entry['exception'][-1500:]}"] += 1
    return found


@pytest.fixture(scope="module")
def honest(federation: LocalFederation, marks: Path) -> dict[str, Job]:
    """What every pipeline ends with when nobody misbehaves."""
    ended = end(federation, {f"count-{name}": name for name in PIPELINES}, deadline_s=240)
    assert {job_id: done.wire.error for job_id, done in ended.items() if done.state != "done"} == {}
    return {name: ended[f"count-{name}"] for name in PIPELINES}


def same(found: Job, expected: Job) -> bool:
    """Up to the noise of encryption."""

    def numbers(value: Any) -> list[float]:
        if isinstance(value, (list, dict)):
            inner = value.values() if isinstance(value, dict) else value
            return [number for one in inner for number in numbers(one)]
        return [float(value)] if isinstance(value, (int, float)) else []

    return bool(np.allclose(numbers(found.result), numbers(expected.result), rtol=1e-4, atol=1e-4))


def fault(ended: Job, expected: Job, mark: dict[str, Any] | None, role: str) -> str:
    """What is wrong with the end of a job in which one message was damaged (or, without a mark, none); or nothing."""
    kind = mark["kind"].rpartition(".")[2] if mark else ""
    if ended.state == "done":
        return "" if kind in UNNOTICED[role] or same(ended, expected) else "a wrong result"
    if ended.state not in {"failed", "refused"}:
        return "not over"
    if "log says more" in ended.wire.error:
        return "an error without a type"
    named = re.search(r"\w failed with (\w*): ", ended.wire.error)
    # What a site calls its own failure, in a damaged last word, is its own choice; it must call it something.
    if named and named[1] not in TYPED and not (named[1] and kind == "Outcome" and role == "participant"):
        return "an error of an unknown type"
    return "" if mark else "an error without a reason"


@pytest.mark.parametrize("role", ["participant", "coordinator"])
def test_damaged_messages(federation: LocalFederation, honest: dict[str, Job], marks: Path, role: str) -> None:
    """Every job ends in time with a typed error or the right result, the daemons serve on, and clean jobs succeed."""
    processes = [federation.coordinator, *federation.participants.values()]
    pids = [process.process.pid for process in processes if process.process]
    sizes = Counter(mark["job"].removeprefix("count-") for mark in lines(marks / f"{role}.noted"))
    assert set(sizes) == set(PIPELINES)
    names = [name for name, (times, _) in PIPELINES.items() for _ in range(times)]
    choice = random.Random(role)
    faults: list[tuple[str, str, str, Any]] = []
    ends: Counter[str] = Counter()
    delivered: dict[str, Any] = {}
    # A few jobs end before the message that they would damage.
    for first in range(0, 2 * COUNT, AT_ONCE):
        jobs = {f"clean-{role}-{first}": "zscore-masks"}
        for seed in range(first, first + AT_ONCE):
            name = choice.choice(names)
            jobs[f"mutate-{role}-{seed}-{choice.randrange(sizes[name])}"] = name
        ended = end(federation, jobs)
        delivered = {mark["job"]: mark for mark in lines(marks / f"{role}.delivered")}
        for job_id, name in jobs.items():
            mark = delivered.get(job_id)
            late = " late" if "deadline passed" in ended[job_id].wire.error else ""
            ends[f"{ended[job_id].state} {'damaged' if mark else 'clean'}{late}"] += 1
            if wrong := fault(ended[job_id], honest[name], mark, role):
                faults.append((wrong, job_id, ended[job_id].wire.error, mark))
        assert [p.process.pid for p in processes if p.process and p.process.poll() is None] == pids
        record = {"role": role, "delivered": len(delivered), "ends": ends, "faults": faults}
        (marks / f"{role}.json").write_text(json.dumps(record, indent=1))
        if len(delivered) >= COUNT:
            break
    # Every batch had a clean job; the last one comes after everything.
    assert same(end(federation, {f"clean-{role}": "zscore-masks"})[f"clean-{role}"], honest["zscore-masks"])
    assert faults == [], crashes(federation)
    assert crashes(federation) == {}
    assert len(delivered) >= COUNT
    assert len({mark["kind"].rpartition(".")[2] for mark in delivered.values()}) > 8
