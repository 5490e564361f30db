"""Every transform and method in one federation: what is opened is what is reported, and a coordinator fits nothing."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale import disclosure
from commonscale.audit import verify
from commonscale.client import Client, Job
from commonscale.localnet import ENCRYPTION, LocalFederation, Worker
from commonscale.pipeline import Pipeline
from commonscale.transforms import TRANSFORMS
from commonscale.transforms.base import TextTransform
from tests.e2e.conftest import run
from tests.unit.test_fasttext import model_bytes

pytestmark = pytest.mark.long

SITES = ["a", "b", "c"]
LINEAR = Path(__file__).parents[1] / "models" / "linear.py"
ENTRY = [sys.executable, "-m", "tests.misbehaving.modules", "coordinator"]
# What fits, and what reads tables: none of a coordinator's business.
FOREIGN = {"duckdb", "pandas", "pyarrow", "scipy", "sklearn", "skops"}
NUMBERS, TEXTS = {"columns": ["age", "bmi"]}, {"columns": ["ward", "sex"]}
PLAIN: dict[str, dict[str, Any]] = {
    "zscore": {**NUMBERS},
    "zscore-shares": {**NUMBERS, "method": "shares", "rounds": "one"},
    "zscore-sac": {**NUMBERS, "method": "sac-proportional"},
    "minmax": {**NUMBERS, "transform": "minmax"},
    "maxabs": {**NUMBERS, "transform": "maxabs", "method": "search"},
    "robust": {**NUMBERS, "transform": "robust"},
    "quantiles": {**NUMBERS, "transform": "quantiles", "method": "shares"},
    "power": {**NUMBERS, "transform": "power"},
    "onehot": {**TEXTS, "transform": "onehot", "min_frequency": 5},
    "onehot-apsi": {**TEXTS, "transform": "onehot", "method": "apsi"},
    "onehot-apsi-both": {**TEXTS, "transform": "onehot", "method": "apsi", "both_directions": True},
    "ordinal": {**TEXTS, "transform": "ordinal", "method": "otmppsi"},
    "ordinal-3": {**TEXTS, "transform": "ordinal", "method": "otmppsi", "threshold": 3},
    "ordinal-ring": {**TEXTS, "transform": "ordinal", "method": "ring"},
    "target": {**TEXTS, "transform": "target", "target": "age"},
    "target-apsi": {**TEXTS, "transform": "target", "target": "age", "method": "apsi"},
    "target-local": {**TEXTS, "transform": "target", "target": "age", "means": "local"},
    "bytes-norm": {**TEXTS, "transform": "bytes-norm"},
    "mod-norm": {**TEXTS, "transform": "mod-norm"},
    "fasttext": {**TEXTS, "transform": "fasttext", "model": "tiny"},
    "rolling-hash": {**TEXTS, "transform": "rolling-hash", "buckets": 8},
    "train": {**NUMBERS, "transform": "train", "model": "risk", "target": "sex", "classes": ["f", "m"], "rounds": 2},
}
# A transform that is new runs too, with its defaults, without being written down here.
PLAIN |= {
    name: {**(TEXTS if issubclass(kind, TextTransform) else NUMBERS), "transform": name}
    for name, kind in TRANSFORMS.items()
    if name not in {step.get("transform", "zscore") for step in PLAIN.values()}
}
QUICK = {"ckks": {"profile": "test"}}
ENCRYPTED: dict[str, dict[str, Any]] = {
    "zscore-ckks": {**NUMBERS, "method": "ckks", "max_rows": 4096, **QUICK},
    "minmax-tree": {**NUMBERS, "transform": "minmax", "method": "tree", **QUICK},
    "maxabs-all-pairs": {**NUMBERS, "transform": "maxabs", "method": "all-pairs", **QUICK},
    "robust-ckks": {**NUMBERS, "transform": "robust", "method": "ckks", **QUICK},
    "quantiles-private": {
        "columns": ["bmi"],
        "transform": "quantiles",
        "method": "private",
        "quantiles": [0.5],
        **QUICK,
    },
}
LIMIT_S = 400


class Everything(LocalFederation):
    """A federation whose coordinator writes down what it has loaded."""

    ended: dict[str, Job]
    modules_plain: set[str]
    modules: set[str]

    def run_all(self, steps: dict[str, dict[str, Any]]) -> dict[str, Job]:
        """One job per step, all at once."""
        ended: dict[str, Job] = {}

        async def work() -> None:
            async with Client(self.analyst()) as client, anyio.create_task_group() as tasks:

                async def one(name: str, step: dict[str, Any]) -> None:
                    job = Pipeline.model_validate({"sites": SITES, "deadline_s": LIMIT_S, "steps": [step]})
                    ended[name] = await client.wait((await client.submit(job)).id)

                for name, step in steps.items():
                    tasks.start_soon(one, name, step)

        run(work, LIMIT_S + 40)
        return ended

    def loaded(self) -> set[str]:
        """What the coordinator had loaded when it ended; it ends for that."""
        assert self.coordinator.stop() == 0
        found: list[str] = json.loads((self.directory / "modules.json").read_text())
        return set(found)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """All jobs have run; the coordinator was restarted before those under encryption."""
    directory = tmp_path_factory.mktemp("everything")
    generator = np.random.default_rng(3)
    data = {}
    for site in SITES:
        rows = ["age,bmi,ward,sex"]
        for _ in range(150):
            ward = generator.choice(["icu", "er", "surgery", f"{site}-annex", ""])
            rows.append(
                f"{generator.normal(60, 9):.1f},{generator.normal(26, 4):.2f},{ward},{generator.choice(['f', 'm'])}"
            )
        data[site] = directory / f"{site}.csv"
        data[site].write_text("\n".join(rows) + "\n")
    model = directory / "tiny.bin"
    model.write_bytes(model_bytes(["icu", "er"]))
    methods = [*ENCRYPTION["methods"], "sac-proportional"]
    policy = {**ENCRYPTION, "methods": methods, "transforms": list(TRANSFORMS)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODULES_FILE", str(directory / "modules.json"))
        # A fork would have loaded what others need; and here no two daemons have the same seed for their hashes.
        patch.setattr(LocalFederation, "forks", False)
        with Everything(
            directory, data, policies=dict.fromkeys(SITES, policy), entry={"coordinator": ENTRY},
            models={"tiny": model}, workers=dict.fromkeys(SITES, Worker.of(LINEAR)),
        ) as federation:  # fmt: skip
            federation.ended = federation.run_all(PLAIN)
            federation.modules_plain = federation.loaded()
            federation.coordinator.start()
            federation.coordinator.wait_ready()
            federation.ended |= federation.run_all(ENCRYPTED)
            federation.modules = federation.loaded()
            yield federation


@pytest.mark.parametrize("name", [*PLAIN, *ENCRYPTED])
def test_the_sites_report_what_the_coordinator_reports(everything: Everything, name: str) -> None:
    """From what each of them saw opened: the same lines, none of which the plan had not named."""
    done = everything.ended[name]
    assert done.state == "done", done.wire.error
    pipeline = Pipeline.model_validate({"sites": SITES, "steps": [{**PLAIN, **ENCRYPTED}[name]]})
    planned = [{key: value for key, value in line.items() if key != "may"} for line in disclosure.planned(pipeline)]
    for site in SITES:
        entries = verify(everything.directory / site / "state" / "audit.jsonl")
        (found,) = [entry for entry in entries if entry["what"] == "revealed" and entry["job"] == done.id]
        assert sorted(map(json.dumps, found["disclosures"])) == sorted(map(json.dumps, done.disclosures))
    assert all(line in planned for line in done.disclosures)
    may = [line for line in disclosure.planned(pipeline) if line.get("may")]
    assert len(done.disclosures) >= len(planned) - len(may)


def test_a_coordinator_loads_nothing_that_fits_or_reads_tables(everything: Everything) -> None:
    """After every transform; and OpenFHE only once something is encrypted."""
    assert {"grpc", "commonscale.transforms.encoding"} <= everything.modules_plain
    assert not (FOREIGN | {"openfhe"}) & everything.modules_plain
    assert "openfhe" in everything.modules
    assert not FOREIGN & everything.modules
