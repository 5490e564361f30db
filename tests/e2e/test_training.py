"""Training over real daemons and real workers, compared with one process that has all rows."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale import Client, Job, Pipeline
from commonscale.localnet import LocalFederation, Worker
from tests.patience import eventually

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "models"
ORACLE = ROOT / "tests" / "oracle_fedavg.py"
POOLED = ROOT / "tests" / "oracle_pooled.py"
BATCHNORM = ROOT / "tests" / "oracle_batchnorm.py"
SITES = ["east", "north", "west"]
COLUMNS = [f"f{number}" for number in range(16)]


def torch_python() -> str:
    """The Python of an environment with PyTorch and the worker's package; `make torch` makes one."""
    found = os.environ.get("COMMONSCALE_TORCH_PYTHON", str(ROOT / ".venv" / "torch" / "bin" / "python"))
    if not Path(found).exists():
        if os.environ.get("COMMONSCALE_REQUIRE_TORCH"):
            pytest.fail("an environment with PyTorch is required here and missing: make torch")
        pytest.skip("no environment with PyTorch: make torch")
    return found


def tables(
    directory: Path, classes: int, seed: int = 1, more: int = 20, apart: float = 1.0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sites whose rows are apart from each other; each has so many more than the one before it."""
    rng = np.random.default_rng(seed)
    found = {}
    for number, site in enumerate(SITES):
        size = 80 + (number - 1) * more, len(COLUMNS)
        x = rng.normal(apart * (number - 1), 1.0 + 0.5 * number, size)
        scores = x[:, :3] @ rng.normal(0, 1, (3, max(classes, 1))) if site == SITES[0] else x[:, : max(classes, 1)]
        y = scores.argmax(axis=1).astype(float) if classes else scores[:, 0]
        found[site] = x, y
        rows = [",".join([*COLUMNS, "outcome"])]
        rows += [
            ",".join([*map(repr, line.tolist()), str(int(t)) if classes else repr(float(t))])
            for line, t in zip(x, y, strict=True)
        ]
        (directory / f"{site}.csv").write_text("\n".join(rows) + "\n")
    return found


def oracle(
    directory: Path, python: str, module: str, train: dict[str, Any], rows: dict[str, Any],
    start: np.ndarray | None = None,
) -> Any:  # fmt: skip
    """The same training in one process of the worker's Python; from these weights only the last round."""
    local = {"epochs": 1, "batch_rows": 32, "learning_rate": 0.01, "optimizer": "sgd", **train["local"]}
    settings = {**local, "seed": train.get("seed", 0), "precision": train["precision"]}
    settings |= {"classes": len(train.get("classes", [])), "batchnorm": train.get("batchnorm", "")}
    (directory / "settings.json").write_text(json.dumps(settings))
    numbered = {
        f"{name}{at}": part for at, site in enumerate(SITES) for name, part in zip("xy", rows[site], strict=True)
    }
    np.savez(directory / "rows.npz", **numbered)
    (directory / "start.npy").unlink(missing_ok=True)
    if start is not None:
        np.save(directory / "start.npy", start)
    files = [str(directory / name) for name in ("settings.json", "rows.npz", "found.npz")]
    command = [python, str(ORACLE), str(MODELS / module), train["model"], str(train["rounds"]), *files]
    quiet = {name: value for name, value in os.environ.items() if name != "COMMONSCALE_TEST_ACTIVATIONS"}
    subprocess.run(command, check=True, capture_output=True, text=True, env=quiet)
    return np.load(directory / "found.npz")


def submit(net: LocalFederation, train: dict[str, Any], steps: list[dict[str, Any]] | None = None) -> Job:
    return submit_pipeline(net, Pipeline.model_validate({"sites": SITES, "steps": steps or [], "train": train}))


def submit_pipeline(net: LocalFederation, pipeline: Pipeline) -> Job:
    async def work() -> Job:
        async with Client(net.analyst()) as client:
            return await client.wait((await client.submit(pipeline)).id)

    return anyio.run(work)


def model_of(net: LocalFederation, site: str, job: Job) -> dict[str, np.ndarray]:
    """The file that a site keeps, read as its format says."""
    raw = (net.directory / site / "state" / "results" / job.id / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    found = {}
    for name, about in header.items():
        if name != "__metadata__":
            start, end = about["data_offsets"]
            dtype = {"F32": "<f4", "F64": "<f8"}[about["dtype"]]
            found[name] = np.frombuffer(raw[8 + length + start : 8 + length + end], dtype).reshape(about["shape"])
    return found


def weights_of(tensors: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([part.ravel() for name, part in tensors.items() if "running_" not in name])


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalFederation, dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("linear")
    rows = tables(directory, classes=2)
    worker = Worker.of(MODELS / "linear.py")
    data = {site: directory / f"{site}.csv" for site in SITES}
    with LocalFederation(directory / "net", data, workers=dict.fromkeys(SITES, worker)) as net:
        yield net, rows


RISK: dict[str, Any] = {
    "model": "risk", "columns": COLUMNS, "target": "outcome", "classes": ["0", "1"], "precision": "float64",
    "rounds": 20, "local": {"batch_rows": 16}, "evaluation": {"every": 0},
}  # fmt: skip


def test_scikit_learn_over_daemons_is_one_process(
    linear: tuple[LocalFederation, dict[str, Any]], tmp_path: Path
) -> None:
    """In float64 for 20 rounds, to 1e-6 in the weights (in fact to 1e-9), the same file at every site."""
    net, rows = linear
    job = submit(net, RISK)
    assert job.state == "done", job.to_dict()
    found = oracle(tmp_path, sys.executable, "linear.py", RISK, rows)
    files = {
        site: (net.directory / site / "state" / "results" / job.id / "model.safetensors").read_bytes() for site in SITES
    }
    assert len(set(files.values())) == 1
    np.testing.assert_allclose(weights_of(model_of(net, "east", job)), found["history"][-1], atol=1e-9)
    card = json.loads((net.directory / "east" / "state" / "results" / job.id / "model-card.json").read_text())
    assert card["rounds"] == 20
    assert card["rows"] == 240
    assert card["sites"] == SITES
    assert card["job"] == job.id
    assert card["lost"] == []
    assert len(card["model_digest"]) == len(card["sha256"]) == 64


def test_training_goes_on_after_steps_and_measures_itself(linear: tuple[LocalFederation, dict[str, Any]]) -> None:
    """Standardized first, in the same job: loss falls; rows given to the worker are gone afterwards."""
    net, _ = linear
    steps = [{"transform": "zscore", "columns": COLUMNS}]
    job = submit(net, {**RISK, "rounds": 5, "evaluation": {"every": 1, "share": 0.25}}, steps)
    assert job.state == "done", job.to_dict()
    figures = job.result[-1]["metrics"]
    assert [one["round"] for one in figures] == [1, 2, 3, 4, 5]
    assert figures[-1]["loss"] < figures[0]["loss"]
    assert sum(figures[-1]["actual"]) == job.result[-1]["evaluation_rows"]
    for site in SITES:
        # After the site's last word.
        eventually(lambda: not list((net.directory / site / "state" / "scratch").rglob("*")))  # noqa: B023


def test_training_may_come_after_an_earlier_job(linear: tuple[LocalFederation, dict[str, Any]]) -> None:
    """On that job's result: the same weights as in one job. Another site's word for it is compared."""
    net, _ = linear
    steps = [{"transform": "zscore", "columns": COLUMNS[:8]}, {"transform": "minmax", "columns": COLUMNS[8:12]}]
    train = {**RISK, "rounds": 3}
    together = submit(net, train, steps)
    pipeline = Pipeline.model_validate({"sites": SITES, "steps": steps})
    scaled = submit_pipeline(net, pipeline)
    after = submit(net, {**train, "after": scaled.id})
    assert after.state == "done", after.to_dict()
    np.testing.assert_allclose(
        weights_of(model_of(net, "east", after)), weights_of(model_of(net, "east", together)), atol=1e-9
    )
    parameters = net.directory / "north" / "state" / "results" / scaled.id / "parameters.json"
    parameters.write_text(parameters.read_text().replace("zscore", "zscare"))
    assert "result of the job" in submit(net, {**train, "after": scaled.id}).to_dict()["error"]
    unknown = submit(net, {**train, "after": "job-0"})
    assert "has no result of job job-0" in unknown.to_dict()["error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "unknown"}, "does not allow to train the model 'unknown'"),
        ({"rounds": 2000}, "allows to train 1000 rounds"),
        ({"model_for": "everyone"}, "does not allow to show the model"),
        ({"classes": ["0", "7"]}, "is not among the job's classes"),
        ({"batchnorm": "fbn", "robust": "median"}, "does not allow the method 'clear'"),
        ({"local": {"proximal": 1.0}}, "its worker could not go on (model)"),
        # None at all would leave the figures to the other sites.
        ({"evaluation": {"every": 1, "share": 1e-6}}, "asks for more rows to evaluate on"),
    ],
)
def test_what_cannot_be_trained_is_said(
    linear: tuple[LocalFederation, dict[str, Any]], change: dict[str, Any], words: str
) -> None:
    """At admission where it can be known, and the daemons go on serving."""
    net, _ = linear
    job = submit(net, {**RISK, **change})
    assert job.state in ("refused", "failed")
    assert words in job.to_dict()["error"]


@pytest.mark.long
def test_a_site_that_is_gone_is_gone_without(tmp_path: Path) -> None:
    """Killed in mid-training: the other three end with the same model, and say who was lost.

    Also where that site comes back too late, and the coordinator is killed after it has heard so.
    """
    sites = [*SITES, "zone"]
    tables(tmp_path, classes=2)
    shutil.copy(tmp_path / "west.csv", tmp_path / "zone.csv")
    worker = Worker.of(MODELS / "linear.py", policy={"changing_sites": True})
    data = {site: tmp_path / f"{site}.csv" for site in sites}
    pipeline = Pipeline.model_validate({"sites": sites, "train": {**RISK, "rounds": 150, "patience_s": 15}})
    with LocalFederation(tmp_path / "net", data, workers=dict.fromkeys(sites, worker)) as net:
        audit = net.directory / "zone" / "state" / "audit.jsonl"

        async def work() -> Job:
            async with Client(net.analyst()) as client:
                job = await client.submit(pipeline)
                await anyio.to_thread.run_sync(eventually, lambda: audit.read_text().count("update.1.MaskedVector") > 3)
                await anyio.to_thread.run_sync(kill_in_training, net, "zone")
                async for now in client.watch(job.id):
                    if now.training and now.training["lost"]:
                        break
                await anyio.to_thread.run_sync(come_back_too_late, net, "zone")
                net.coordinator.kill()
                net.coordinator.start()
                net.coordinator.wait_ready()
                return await client.wait(job.id)

        job = anyio.run(work)
        assert job.state == "done", job.to_dict()
        assert job.result[-1]["lost"] == ["zone"]
        assert job.result[-1]["rounds"] == 150
        models = {weights_of(model_of(net, site, job)).tobytes() for site in SITES}
        assert len(models) == 1


def kill_in_training(net: LocalFederation, site: str) -> None:
    """While its worker is asked to train: at a checkpoint the others would wait for it."""
    audit, worker = net.directory / site / "state" / "audit.jsonl", net.workers[site]
    assert worker.process is not None
    worker.process.send_signal(signal.SIGSTOP)

    def is_stuck() -> bool:
        before = audit.stat().st_size
        time.sleep(2)
        return audit.stat().st_size == before

    eventually(is_stuck)
    net.participants[site].kill()
    worker.kill()


def come_back_too_late(net: LocalFederation, site: str) -> None:
    """Start a site again, and wait until it has said that it cannot go on."""
    audit = net.directory / site / "state" / "audit.jsonl"
    net.participants[site].start()
    net.participants[site].wait_ready()
    net.workers[site].start()
    eventually(lambda: '"kind": "Outcome"' in audit.read_text())


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalFederation, dict[str, Any], str]]:
    python = torch_python()
    directory = tmp_path_factory.mktemp("networks")
    # Of one size, so that the mean of the sites' gradients is that of the pooled batch; and far from each other.
    rows = tables(directory, classes=3, more=0, apart=4.0)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("COMMONSCALE_TEST_ACTIVATIONS", str(directory / "net" / "activations"))
    worker = Worker.of(MODELS / "networks.py", python, {"release_model": True})
    data = {site: directory / f"{site}.csv" for site in SITES}
    policies = {site: {"methods": ["masks", "clear"]} for site in SITES}
    workers = dict.fromkeys(SITES, worker)
    with LocalFederation(directory / "net", data, policies=policies, workers=workers) as net:
        yield net, rows, python
    monkeypatch.undo()


MLP: dict[str, Any] = {
    "model": "mlp", "columns": COLUMNS, "target": "outcome", "classes": ["0", "1", "2"], "precision": "float64",
    "rounds": 20, "local": {"batch_rows": 16, "learning_rate": 0.05}, "evaluation": {"every": 0},
}  # fmt: skip


def test_torch_over_daemons_is_one_process(
    networks: tuple[LocalFederation, dict[str, Any], str], tmp_path: Path
) -> None:
    """In float64 for 20 rounds to 1e-6 in the weights."""
    net, rows, python = networks
    job = submit(net, MLP)
    assert job.state == "done", job.to_dict()
    found = oracle(tmp_path, python, "networks.py", MLP, rows)
    np.testing.assert_allclose(weights_of(model_of(net, "west", job)), found["history"][-1], atol=1e-6)


@pytest.mark.parametrize(("seed", "rounds"), [(0, 1), pytest.param(1, 5, marks=pytest.mark.long)])
def test_torch_in_single_precision_is_one_process_round_by_round(
    networks: tuple[LocalFederation, dict[str, Any], str], tmp_path: Path, seed: int, rounds: int
) -> None:
    """Each round in float32 to 1e-6, from the same start: where a job over daemons had come to before."""
    net, rows, python = networks
    single = {**MLP, "precision": "float32", "seed": seed}
    start: np.ndarray | None = None
    for number in range(1, rounds + 1):
        job = submit(net, {**single, "rounds": number})
        after = weights_of(model_of(net, "west", job))
        found = oracle(tmp_path, python, "networks.py", {**single, "rounds": number}, rows, start)
        np.testing.assert_allclose(after, found["history"][-1], atol=1e-6)
        assert np.abs(after - found["history"][-2]).max() > 1e-3
        start = after


def test_the_analyst_gets_the_model_if_all_sites_agree(
    networks: tuple[LocalFederation, dict[str, Any], str], tmp_path: Path
) -> None:
    """The very file that every site keeps; the result for people does not hold it."""
    net, _, _ = networks
    job = submit(net, {**MLP, "rounds": 2, "model_for": "everyone"})
    assert job.state == "done", job.to_dict()
    for site in SITES:
        kept = net.directory / site / "state" / "results" / job.id / "model.safetensors"
        assert kept.read_bytes() == job.model
    assert "safetensors" not in job.result[-1]
    assert any(line["what"] == "the trained model" and "analyst" in line["to"] for line in job.disclosures)


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.long)])
def test_federated_batchnorm_over_daemons_is_one_process(
    networks: tuple[LocalFederation, dict[str, Any], str], tmp_path: Path, rounds: int
) -> None:
    """Three BatchNorm layers, sites far apart: weights and statistics to 1e-6 of one network on the pooled batches.

    Fed with the activations that the workers really had, pooled, torch's own BatchNorm has these statistics to 1e-9.
    """
    net, rows, python = networks
    normed = {**MLP, "model": "normed", "batchnorm": "fbn", "rounds": rounds, "local": {**MLP["local"], "steps": 1}}
    job = submit(net, normed)
    assert job.state == "done", job.to_dict()
    found = oracle(tmp_path, python, "networks.py", normed, rows)
    tensors = model_of(net, "north", job)
    np.testing.assert_allclose(weights_of(tensors), found["history"][-1], atol=1e-6)
    mean = np.concatenate([part for name, part in tensors.items() if name.endswith("running_mean")])
    variance = np.concatenate([part for name, part in tensors.items() if name.endswith("running_var")])
    np.testing.assert_allclose(mean, found["mean"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance, found["variance"], rtol=1e-6)
    files = [str(tmp_path / name) for name in ("settings.json", "rows.npz", "found.npz", "pooled.npz")]
    command = [python, str(POOLED), str(MODELS / "networks.py"), "normed", str(rounds), *files]
    subprocess.run(command, check=True, capture_output=True, text=True)
    with np.load(tmp_path / "pooled.npz") as pooled:
        np.testing.assert_allclose(weights_of(tensors), pooled["weights"], atol=1e-6)
        np.testing.assert_allclose(mean, pooled["mean"], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(variance, pooled["variance"], rtol=1e-6)
    command = [python, str(BATCHNORM), str(net.directory / "activations"), str(rounds), str(tmp_path / "torch.npz")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    with np.load(tmp_path / "torch.npz") as own:
        np.testing.assert_allclose(mean, own["mean"], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(variance, own["variance"], rtol=1e-9)
    shutil.rmtree(net.directory / "activations")


def test_robust_statistics_over_daemons_are_medians_of_the_sites(
    networks: tuple[LocalFederation, dict[str, Any], str],
) -> None:
    """In clear, of the activations that the workers really had."""
    net, _, _ = networks
    job = submit(net, {**MLP, "model": "normed", "batchnorm": "fbn", "robust": "median", "rounds": 1})
    assert job.state == "done", job.to_dict()
    tensors = model_of(net, "west", job)
    mean = np.concatenate([part for name, part in tensors.items() if name.endswith("running_mean")])
    means = [
        np.concatenate([_channel_means(worker, layer) for layer in "abc"])
        for worker in (net.directory / "activations").iterdir()
    ]
    assert len(means) == len(SITES)
    shutil.rmtree(net.directory / "activations")
    weight = 1 - 0.9 ** _steps_per_round()
    np.testing.assert_allclose(mean, weight * np.median(means, axis=0), rtol=1e-9)


def _channel_means(worker: Path, layer: str) -> np.ndarray:
    """Over all batches of the round."""
    batches = [np.load(path) for path in worker.glob(f"{layer}-*.npy")]
    return np.concatenate(batches).mean(axis=(0, 2, 3) if layer != "c" else 0)


def _steps_per_round() -> int:
    """Batches of 16 that an average site of 80 rows has."""
    return 5
