"""Flower's clients and apps over real daemons, with the real flwr package, compared with Flower's own averaging."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale import Client, Job, Pipeline
from commonscale.localnet import LocalFederation, Worker
from tests.e2e.test_training import MODELS, ROOT, model_of, torch_python

pytestmark = pytest.mark.long

SITES = ["east", "north", "west"]
ORACLE = ROOT / "tests" / "oracle_flower.py"
GUIDE = ROOT / "docs" / "training.md"
# What a site runs beside the app, which stays as it is.
SKLEARN = """
import commonscale_worker as cw
from flower_sklearn import app, first

cw.run(flower_app=app, parameters=first, node_config={{"partition-id": {site}, "num-partitions": 3}})
"""


@pytest.fixture(scope="module")
def python() -> str:
    """An environment with PyTorch and Flower."""
    found = torch_python()
    if subprocess.run([found, "-c", "import flwr"], check=False, capture_output=True).returncode:
        if os.environ.get("COMMONSCALE_REQUIRE_TORCH"):
            pytest.fail("flwr is required here and missing: make torch")
        pytest.skip("no flwr in the environment with PyTorch: make torch")
    return found


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The apps can be imported, Flower tells nobody, and sums are the same in all processes."""
    paths = [str(MODELS), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def from_the_guide() -> str:
    """What the documentation says to run beside a quickstart, for the app of this test."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (block,) = (block for block in blocks if "flower_app=app" in block)
    for before, after in (
        ("{", "{{"),
        ("}", "}}"),
        ('"partition-id": 0', '"partition-id": {site}'),
        ('"batch-size": 32', '"batch-size": 8'),
        ("pytorchexample.client_app", "flower_torch"),
        ("pytorchexample.task", "flower_torch"),
    ):
        assert before in block
        block = block.replace(before, after)
    return str(block)


def trained(directory: Path, python: str, script: str, train: dict[str, Any]) -> tuple[Job, list[np.ndarray]]:
    """A job over daemons, and the weights at each site."""
    data, workers = {}, {}
    for number, site in enumerate(SITES):
        # The job names columns of a table; an app has its own rows.
        data[site] = directory / f"{site}.csv"
        data[site].write_text("x,y\n" + "1,2\n" * 80)
        module = directory / f"flower_site_{site}.py"
        module.write_text(script.format(site=number))
        workers[site] = Worker.of(module, python)
    job = Pipeline.model_validate(
        {"sites": SITES, "train": {"model": "flower", "columns": ["x"], "target": "y", **train}}
    )

    async def work() -> Job:
        async with Client(net.analyst()) as client:
            return await client.wait((await client.submit(job)).id)

    with LocalFederation(directory / "net", data, workers=workers) as net:
        done = anyio.run(work)
        assert done.state == "done", done.wire.error
        tensors = [model_of(net, site, done) for site in SITES]
    return done, [np.concatenate([part.ravel() for part in named.values()]) for named in tensors]


def averaged(directory: Path, python: str, kind: str, rounds: int, learning_rate: float) -> np.ndarray:
    """The same by Flower itself."""
    command = [python, str(ORACLE), kind, str(rounds), str(len(SITES)), str(learning_rate), str(directory / "w.npy")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return np.asarray(np.load(directory / "w.npy"))


def test_an_app_of_messages_trains_as_in_flower(tmp_path: Path, python: str) -> None:
    """A network of convolutions, three rounds in float32: the weights that Flower's FedAvg has."""
    job, found = trained(tmp_path, python, from_the_guide(), {"rounds": 3, "local": {"learning_rate": 0.01}})
    oracle = averaged(tmp_path, python, "torch", 3, 0.01)
    assert len({weights.tobytes() for weights in found}) == 1
    np.testing.assert_allclose(found[0], oracle, atol=1e-6)
    assert job.result[-1]["rows"] == 32 + 48 + 64
    losses = [one["loss"] for one in job.result[-1]["metrics"]]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_a_numpy_client_trains_as_in_flower(tmp_path: Path, python: str) -> None:
    """Logistic regression of scikit-learn from a client_fn, five rounds in float64."""
    job, found = trained(tmp_path, python, SKLEARN, {"rounds": 5, "precision": "float64"})
    oracle = averaged(tmp_path, python, "sklearn", 5, 0.01)
    np.testing.assert_allclose(found[0], oracle, atol=1e-9)
    assert job.result[-1]["rows"] == 48 + 72 + 96
