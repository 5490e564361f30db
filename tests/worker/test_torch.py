"""Networks of torch, and BatchNorm over sites against torch's own on pooled batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commonscale_worker.batches import batches
from commonscale_worker.errors import Diverged, ModelError, Unsuitable, WorkerError
from commonscale_worker.jobs import Job
from commonscale_worker.settings import Settings
from commonscale_worker.v1 import worker_pb2 as pb

from tests.worker.jobs import Rows, initial, job_of, trained
from tests.worker.participants import Array, made_up

torch = pytest.importorskip("torch")
nn: Any = torch.nn

import commonscale_worker as cw  # noqa: E402
from commonscale_worker.batchnorm import Norms  # noqa: E402


def network(build: Callable[[int, int], Any]) -> type[cw.TorchModel]:
    class Built(cw.TorchModel):
        def build(self, features: int, classes: int) -> Any:
            return build(features, classes)

    return Built


LINEAR = network(nn.Linear)
PLAIN = network(lambda features, classes: nn.Sequential(nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, classes)))
NORMED = network(
    lambda features, classes: nn.Sequential(
        nn.Linear(features, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, classes)
    )
)
FULL_STEP = {"batchnorm": "fbn", "batch_rows": 0, "steps": 1}
KINDS = ("fbn", "fixbn", "naive", "local")


class Convolution(nn.Module):  # type: ignore[misc]
    """BatchNorm of two dimensions, the same layer at two places, inside another module."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(3)
        self.first = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 2), norm)
        self.second = nn.ModuleDict({"inner": nn.Sequential(nn.Conv2d(3, 3, 2), norm, nn.Flatten())})
        self.last = nn.Linear(12, classes)

    def forward(self, rows: Any) -> Any:
        return self.last(self.second["inner"](self.first(rows)))


def split(rows: Rows, sites: int) -> list[Rows]:
    """By the first feature: every site sees other values."""
    x, y, _ = rows
    parts = np.array_split(np.argsort(x[:, 0]), sites)
    return [(x[part], y[part], np.zeros(len(part), bool)) for part in parts]


def pooled_statistics(jobs: list[Job], before: dict[str, Array], results: list[dict[str, Array]]) -> dict[str, Array]:
    """The formula of the sites: m += β·mean, v = (1 - β)·v + β·N/(N-1)·var."""
    widths = [layer.channels for layer in jobs[0].layers]
    beta = np.repeat([layer.momentum for layer in jobs[0].layers], widths)
    first, second, count = (np.sum([result[name] for result in results], axis=0) for name in ("sum", "square", "count"))
    n = np.repeat(count, widths)
    mean = first / n
    variance = second / n - mean**2
    return {
        "mean": before["mean"] + beta * mean,
        "variance": (1 - beta) * before["variance"] + beta * n / (n - 1) * variance,
    }


@pytest.mark.parametrize("around", [0.0, 100.0, 1e4])
def test_fbn_has_the_running_statistics_of_a_pooled_batch(folder: Path, around: float) -> None:
    """Three sites of 20, 20 and 19 rows, each with other values, 30 rounds, against torch in doubles: 1e-9."""
    x, y, evaluation = made_up(59, 4)
    rows = (x * 3 + around, y, evaluation)
    model = network(lambda features, classes: nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes)))
    jobs = [job_of(folder, model, 2, part, **FULL_STEP) for part in split(rows, 3)]
    statistics = initial(jobs[0])
    oracle = nn.BatchNorm1d(4, dtype=torch.float64)
    for number in range(1, 31):
        results = [trained(job, {**jobs[0].first, **statistics}, number) for job in jobs]
        statistics = pooled_statistics(jobs, statistics, results)
        oracle(torch.from_numpy(rows[0]))
    assert np.allclose(statistics["mean"], oracle.running_mean.numpy(), rtol=1e-9, atol=0)
    assert np.allclose(statistics["variance"], oracle.running_var.numpy(), rtol=1e-9, atol=0)


def test_fbn_in_single_precision_far_from_zero(folder: Path) -> None:
    """Values around 10,000 in float32: sums of differences keep the variance to 1e-4."""
    x, y, evaluation = made_up(90, 4)
    rows = (x * 3 + 1e4, y, evaluation)
    model = network(lambda features, classes: nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes)))
    jobs = [job_of(folder, model, 2, part, precision="float32", **FULL_STEP) for part in split(rows, 3)]
    statistics = initial(jobs[0])
    oracle = nn.BatchNorm1d(4, dtype=torch.float64)
    for number in range(1, 301):
        results = [jobs_result(job, statistics, number) for job in jobs]
        statistics = pooled_statistics(jobs, statistics, results)
        oracle(torch.from_numpy(rows[0]))
    assert np.allclose(statistics["variance"], oracle.running_var.numpy(), rtol=1e-4, atol=0)


def jobs_result(job: Job, statistics: dict[str, Array], number: int) -> dict[str, Array]:
    return trained(job, {**job.first, **statistics}, number)


def test_averages_of_fbn_are_the_gradient_step_of_the_pooled_rows(folder: Path) -> None:
    """With statistics as constants, the weighted mean of the sites' steps is the step on all rows: 1e-12."""
    rows = (*made_up(60)[:2], np.zeros(60, bool))
    jobs = [job_of(folder, NORMED, 2, part, **FULL_STEP) for part in split(rows, 3)]
    together = job_of(folder, NORMED, 2, rows, **FULL_STEP)
    given = {**together.first, "mean": np.linspace(-1, 1, 11), "variance": np.linspace(0.5, 2, 11)}
    results = [trained(job, given) for job in jobs]
    whole = trained(together, given)
    average = np.mean([result["weights"] for result in results], axis=0)
    assert np.allclose(average, whole["weights"], rtol=0, atol=1e-12)
    for name in ("sum", "square", "count"):
        assert np.allclose(np.sum([result[name] for result in results], axis=0), whole[name], rtol=1e-12)


def test_sums_of_several_batches_are_added(folder: Path) -> None:
    """Against numpy; the statistics stay as they are within the round."""
    rows = made_up(40)
    model = network(lambda features, classes: nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes)))
    job = job_of(folder, model, 2, rows, batchnorm="fbn", epochs=3, batch_rows=7)
    mean = np.linspace(-2, 2, 4)
    found = trained(job, {**job.first, "mean": mean, "variance": np.full(4, 2.0)})
    difference = rows[0][~rows[2]] - mean
    assert np.allclose(found["sum"], 3 * difference.sum(axis=0), rtol=1e-12)
    assert np.allclose(found["square"], 3 * (difference**2).sum(axis=0), rtol=1e-12)
    assert found["count"].tolist() == [3 * 32]


def test_convolutions_count_every_pixel(folder: Path) -> None:
    """A layer at two places is one layer, with the values of both."""
    job = job_of(folder, network(Convolution), 3, made_up(50, 16, 3), batchnorm="fbn", batch_rows=0)
    assert [(layer.name, layer.channels) for layer in job.layers] == [("first.2", 3)]
    found = trained(job, {**job.first, **initial(job)})
    assert found["count"].tolist() == [40 * (9 + 4)]


def test_a_layer_twice_in_one_sequence(folder: Path) -> None:
    """Is replaced at both places."""
    norm = nn.BatchNorm1d(4)
    job = job_of(folder, network(lambda *_: nn.Sequential(norm, nn.Linear(4, 4), norm, nn.Linear(4, 2))), **FULL_STEP)
    assert len(job.layers) == 1
    assert trained(job, {**job.first, **initial(job)})["count"].tolist() == [2 * 160]


def test_naive_is_torchs_own_batchnorm(folder: Path) -> None:
    """The same weights and running statistics as a loop in plain torch, from shared statistics: to the last digit."""
    rows = made_up(60)
    job = job_of(folder, NORMED, 2, rows, batchnorm="naive", epochs=2, batch_rows=8, momentum=0.9, weight_decay=0.01)
    given = {**job.first, "mean": np.linspace(-1, 1, 11), "variance": np.linspace(0.5, 2, 11)}
    found = trained(job, given)
    torch.manual_seed(1)
    plain = NORMED().build(4, 2).double()
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(torch.from_numpy(job.first["weights"].copy()), plain.parameters())
        for layer, part in ((plain[1], slice(0, 6)), (plain[4], slice(6, 11))):
            layer.running_mean.copy_(torch.from_numpy(given["mean"][part]))
            layer.running_var.copy_(torch.from_numpy(given["variance"][part]))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    x, y = torch.from_numpy(rows[0][~rows[2]]), torch.from_numpy(rows[1][~rows[2]].astype(np.int64))
    for taken in batches(Settings(seed=1, epochs=2, batch_rows=8), 1, len(x)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x[taken]), y[taken]).backward()
        optimizer.step()
    assert np.array_equal(found["weights"], torch.nn.utils.parameters_to_vector(plain.parameters()).detach().numpy())
    assert np.array_equal(found["mean"], np.concatenate([plain[1].running_mean, plain[4].running_mean]))
    assert np.array_equal(found["variance"], np.concatenate([plain[1].running_var, plain[4].running_var]))


def test_fixbn_is_naive_first_and_constant_then(folder: Path) -> None:
    """In 5 rounds: 1 and 2 move the statistics, from 3 on they are what they were, and weights are those of fbn."""
    jobs = {kind: job_of(folder, NORMED, 2, batchnorm=kind) for kind in ("fixbn", "naive", "fbn")}
    given = {**jobs["naive"].first, "mean": np.linspace(-1, 1, 11), "variance": np.linspace(0.5, 2, 11)}
    for number in range(1, 6):
        found = {kind: trained(job, given, number, 5) for kind, job in jobs.items()}
        moved = not np.array_equal(found["fixbn"]["mean"], given["mean"])
        assert moved == (number <= 2)
        other = found["naive" if number <= 2 else "fbn"]
        assert np.array_equal(found["fixbn"]["weights"], other["weights"])


def test_local_statistics_stay_and_survive(folder: Path) -> None:
    """No layer is announced, no statistic leaves, and a later evaluation uses what the rounds have found."""
    job = job_of(folder, NORMED, 2, batchnorm="local")
    assert not job.prepared.layers
    found = trained(job, job.first, 1)
    assert list(found) == ["weights"]
    first = job._model.get_memory().statistics  # type: ignore[attr-defined]
    assert np.abs(first[0]).max() > 0
    trained(job, found, 2)
    second = job._model.get_memory().statistics  # type: ignore[attr-defined]
    assert not np.array_equal(first[0], second[0])
    job.evaluate(found)
    assert np.array_equal(job._model.get_memory().statistics[0], second[0])  # type: ignore[attr-defined]


def test_a_worker_without_local_statistics_finds_some(folder: Path) -> None:
    """After a crash, before round 7: those of its own rows."""
    model = network(lambda features, classes: nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes)))
    rows = made_up(100)
    job = job_of(folder, model, 2, rows, batchnorm="local")
    job.evaluate(job.first)
    mean, variance = job._model.get_memory().statistics  # type: ignore[attr-defined]
    x = rows[0][~rows[2]]
    assert np.allclose(mean, x.mean(axis=0))
    assert np.allclose(variance, x.var(axis=0, ddof=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 1])
def test_a_repeated_round_gives_the_same(folder: Path, kind: str, steps: int) -> None:
    """Also with momentum between rounds, local statistics and dropout."""
    model = network(lambda f, c: nn.Sequential(nn.Linear(f, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, c)))
    job = job_of(folder, model, 2, batchnorm=kind, momentum=0.9, steps=steps)
    weights = job.first
    for number in range(1, 5):
        once, again = (trained(job, {**weights, **initial(job)}, number) for _ in range(2))
        assert all(np.array_equal(once[name], again[name]) for name in once)
        weights = {"weights": once["weights"]}


@pytest.mark.parametrize(("steps", "kept"), [(1, True), (2, False), (0, False)])
def test_momentum_is_kept_with_one_step_only(folder: Path, steps: int, kept: bool) -> None:
    """Distributed gradient descent has its momentum at the sites."""
    job = job_of(folder, PLAIN, 2, momentum=0.9, steps=steps)
    trained(job, job.first, 1)
    fresh = job_of(folder, PLAIN, 2, momentum=0.9, steps=steps)
    same = np.array_equal(trained(job, job.first, 2)["weights"], trained(fresh, job.first, 2)["weights"])
    assert same != kept


def test_single_steps_are_one_long_training(folder: Path) -> None:
    """12 rounds of one step with momentum are 12 steps of torch's SGD."""
    rows = made_up(60)
    job = job_of(folder, PLAIN, 2, rows, momentum=0.9, steps=1, batch_rows=7)
    weights = job.first
    for number in range(1, 13):
        weights = trained(job, weights, number)
    long = job_of(folder, PLAIN, 2, rows, momentum=0.9, steps=12, batch_rows=7)
    assert np.allclose(weights["weights"], trained(long, long.first)["weights"], rtol=0, atol=1e-12)


def test_a_cancelled_round_leaves_nothing_behind(folder: Path) -> None:
    """The round that follows begins with the momentum of the one before."""
    job, other = (job_of(folder, PLAIN, 2, momentum=0.9, steps=1) for _ in range(2))
    trained(job, job.first, 1)
    trained(other, other.first, 1)
    with pytest.raises(KeyError):
        job.train(task_of(2), job.first, {}.__getitem__)  # type: ignore[arg-type]
    assert np.array_equal(trained(job, job.first, 2)["weights"], trained(other, job.first, 2)["weights"])


def task_of(number: int) -> Any:
    from commonscale_worker.v1 import worker_pb2 as pb

    return pb.Task(id="t", kind=pb.Task.KIND_TRAIN, round=number, rounds=10)


def test_proximal_is_fedprox(folder: Path) -> None:
    """Two full steps of a linear regression against numpy: the second has the gradient mu·(w - w0) added."""
    rows = made_up(30, 3, 0)
    mu, rate = 0.7, 0.1
    job = job_of(folder, LINEAR, 0, rows, proximal=mu, batch_rows=0, epochs=2)
    x = np.column_stack([rows[0], np.ones(30)])[~rows[2]]
    y = rows[1][~rows[2]]
    start = job.first["weights"]
    weights = start.copy()
    for _ in range(2):
        weights = weights - rate * (2 * x.T @ (x @ weights - y) / len(y) + mu * (weights - start))
    assert np.allclose(trained(job, job.first)["weights"], weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_networks_learn(folder: Path, optimizer: str, precision: str, classes: int) -> None:
    """The loss of rows that were kept apart falls."""
    rate = {"sgd": 0.1, "adam": 0.02}[optimizer]
    job = job_of(folder, PLAIN, classes, optimizer=optimizer, precision=precision, learning_rate=rate, epochs=5)
    weights = job.first
    before = job.evaluate(weights)["loss"][0]
    for number in range(1, 6):
        weights = trained(job, weights, number)
    assert weights["weights"].dtype == precision
    assert job.evaluate(weights)["loss"][0] < 0.6 * before


def test_first_weights_come_from_the_seed(folder: Path) -> None:
    """Not from the rows, and not from what was drawn before."""
    first = job_of(folder, PLAIN, seed=5).first["weights"]
    torch.rand(3)
    assert np.array_equal(first, job_of(folder, PLAIN, 2, made_up(seed=9), seed=5).first["weights"])
    assert not np.array_equal(first, job_of(folder, PLAIN, seed=6).first["weights"])
    assert job_of(folder, PLAIN, seed=2**64 - 1).first["weights"].any()


def test_one_output_for_two_classes(folder: Path) -> None:
    """By a sigmoid; the loss is that of the same probabilities."""
    job = job_of(folder, network(lambda features, _: nn.Linear(features, 1)))
    after = trained(job, job.first)
    found = job.evaluate(after)
    assert found["confusion"].sum() == found["scores"].sum() == 40
    x, y, evaluation = made_up()
    second = 1 / (1 + np.exp(-(x @ after["weights"][:4] + after["weights"][4])))[evaluation]
    expected = -np.log(np.where(y[evaluation] == 1, second, 1 - second)).sum()
    assert found["loss"][0] == pytest.approx(expected, rel=1e-9)


def test_a_loss_of_its_own(folder: Path) -> None:
    """Is trained, and measured as a sum over rows."""

    class Absolute(LINEAR):  # type: ignore[misc, valid-type]
        def loss(self, outputs: Any, target: Any) -> Any:
            return (outputs[:, 0] - target).abs().mean()

    job = job_of(folder, Absolute, 0)
    x, y, evaluation = made_up(classes=0)
    predicted = x @ job.first["weights"][:4] + job.first["weights"][4]
    assert job.evaluate(job.first)["loss"][0] == pytest.approx(np.abs(predicted - y)[evaluation].sum())


def test_batchnorm_must_be_chosen(folder: Path) -> None:
    """A job that does not say it is told where."""
    with pytest.raises(ModelError, match=r"choose batchnorm .* in \[train\]"):
        job_of(folder, NORMED)


def test_without_batchnorm_layers_the_setting_means_nothing(folder: Path) -> None:
    """The same weights under every kind."""
    found = []
    for kind in ("", *KINDS):
        job = job_of(folder, PLAIN, batchnorm=kind)
        assert not job.layers
        found.append(trained(job, job.first)["weights"].tobytes())
    assert len(set(found)) == 1


class Keeping(nn.Module):  # type: ignore[misc]
    def __init__(self, buffer: Any, persistent: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("kept", buffer, persistent)

    def forward(self, rows: Any) -> Any:
        return self.linear(rows)


def test_buffers(folder: Path) -> None:
    """Numbers that are kept are refused; counters and constants stay at the site."""
    with pytest.raises(ModelError, match=r"no weights \(kept\)"):
        job_of(folder, network(lambda *_: Keeping(torch.ones(3))))
    for module in (Keeping(torch.ones(3, dtype=torch.int64)), Keeping(torch.ones(3), persistent=False)):
        assert job_of(folder, network(lambda *_, module=module: module)).parameters == 10


@pytest.mark.parametrize("options", [{"momentum": None}, {"track_running_stats": False}, {"momentum": 0.0}])
def test_layers_without_running_statistics(folder: Path, options: dict[str, Any]) -> None:
    """Are refused by name."""
    model = network(lambda features, classes: nn.Sequential(nn.BatchNorm1d(4, **options), nn.Linear(4, classes)))
    with pytest.raises(ModelError, match="BatchNorm layer 0"):
        job_of(folder, model, batchnorm="fbn")


def test_layers_without_weight_and_bias(folder: Path) -> None:
    """Are replaced like others."""
    model = network(lambda features, c: nn.Sequential(nn.BatchNorm1d(features, affine=False), nn.Linear(features, c)))
    job = job_of(folder, model, batchnorm="fbn")
    assert job.parameters == 10
    assert trained(job, {**job.first, **initial(job)})["count"].tolist() == [160]


def test_a_batchnorm_that_is_the_whole_network() -> None:
    """Is replaced too, in evaluation as torch does it."""
    layer = nn.BatchNorm3d(2).double().eval()
    values = torch.randn(3, 2, 2, 2, 2, dtype=torch.float64)
    norms = Norms(layer, "fbn")
    norms.set_statistics(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    layer.running_mean[:], layer.running_var[:] = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert torch.allclose(norms.network.eval()(values), layer(values), rtol=1e-12)


def test_outputs_that_do_not_fit(folder: Path) -> None:
    """The shapes are told."""
    with pytest.raises(Unsuitable, match=r"shape \(2, 5\) for 2 rows, not 3 outputs"):
        job_of(folder, network(lambda features, _: nn.Linear(features, 5)), 3)


def test_what_build_gives_must_be_a_module(folder: Path) -> None:
    """And there must be a build."""
    with pytest.raises(ModelError, match=r"not a torch\.nn\.Module"):
        job_of(folder, network(lambda *_: 3))
    with pytest.raises(NotImplementedError, match="method build"):
        job_of(folder, cw.TorchModel)


def test_a_network_that_diverges(folder: Path) -> None:
    """Nothing that is no number leaves the model."""
    job = job_of(folder, PLAIN, 0, learning_rate=1e30, epochs=5)
    with pytest.raises(Diverged):
        trained(job, job.first)


def test_statistics_of_another_length(folder: Path) -> None:
    """Are refused."""
    job = job_of(folder, NORMED, batchnorm="fbn")
    for wrong in ({}, {"mean": np.zeros(3), "variance": np.ones(3)}):
        with pytest.raises(Exception, match=r"statistics|without its array"):
            trained(job, {**job.first, **wrong})


def test_momentum_that_was_lost_is_an_error(folder: Path) -> None:
    """A worker that was started again would train on with other weights; without momentum nothing is missed."""
    for momentum in (0.0, 0.9):
        wanted = {"steps": 1, "momentum": momentum}
        first = job_of(folder, PLAIN, **wanted)
        after = trained(first, first.first, 1)
        task = pb.Task(id="2", kind=pb.Task.KIND_TRAIN, round=2, rounds=10, previous=1)
        expected = first.train(task, after, lambda _share: None)["weights"]
        again = job_of(folder, PLAIN, **wanted)
        if momentum:
            with pytest.raises(WorkerError, match="its momentum"):
                again.train(task, after, lambda _share: None)
        else:
            assert np.array_equal(again.train(task, after, lambda _share: None)["weights"], expected)
