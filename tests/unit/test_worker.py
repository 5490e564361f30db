"""Local training and averaging: the gradient is the derivative, the average is the mean, a seed is a result."""

import numpy as np
import pytest
from commonscale_worker.networks.averaging import federated_average
from commonscale_worker.networks.losses import FloatArray, Targets
from commonscale_worker.networks.model import Architecture, Task, Weights, gradients, init, loss, predict
from commonscale_worker.networks.training import SGD, Adam, Training, local_epoch
from hypothesis import given
from hypothesis import strategies as st

SMALL = {
    Task.BINARY: Architecture(inputs=4, hidden=(6, 5), outputs=1, task=Task.BINARY),
    Task.MULTICLASS: Architecture(inputs=4, hidden=(6, 5), outputs=3, task=Task.MULTICLASS),
    Task.REGRESSION: Architecture(inputs=4, hidden=(6, 5), outputs=1, task=Task.REGRESSION),
}


def rows(task: Task, count: int, rng: np.random.Generator) -> tuple[FloatArray, Targets]:
    x = rng.normal(size=(count, 4))
    if task is Task.REGRESSION:
        return x, x[:, 0] - 2.0 * np.abs(x[:, 1])
    if task is Task.BINARY:
        return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    return x, np.digitize(x[:, 0] + x[:, 1], [-0.7, 0.7])


def in_place(architecture: Architecture, weights: Weights, x: FloatArray, y: Targets, seed: int | None) -> Weights:
    out = [np.empty_like(w) for w in weights]
    gradients(architecture, weights, x, y, out, None if seed is None else np.random.default_rng(seed))
    return out


@pytest.mark.parametrize("dropout", [(), (0.4, 0.2)], ids=["plain", "dropout"])
@pytest.mark.parametrize("task", list(Task), ids=lambda task: task.value)
def test_gradient_is_the_derivative_of_the_loss(task: Task, dropout: tuple[float, ...]) -> None:
    """Against central differences, for every weight; dropout draws the same units from the same seed."""
    rng = np.random.default_rng(7)
    plain = SMALL[task]
    architecture = Architecture(plain.inputs, plain.hidden, plain.outputs, task, dropout)
    weights = [w + rng.normal(scale=0.1, size=w.shape) for w in init(architecture, rng, np.float64)]
    x, y = rows(task, 11, rng)
    seed = 3 if dropout else None
    found = in_place(architecture, weights, x, y, seed)

    def at(i: int, place: tuple[int, ...], step: float) -> float:
        moved = [w.copy() for w in weights]
        moved[i][place] += step
        spare = [np.empty_like(w) for w in weights]
        return gradients(architecture, moved, x, y, spare, None if seed is None else np.random.default_rng(seed))

    for i, w in enumerate(weights):
        for place in np.ndindex(*w.shape):
            numeric = (at(i, place, 1e-6) - at(i, place, -1e-6)) / 2e-6
            assert found[i][place] == pytest.approx(numeric, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("task", list(Task), ids=lambda task: task.value)
def test_loss_in_use_is_the_loss_in_training_without_dropout(task: Task) -> None:
    """One number, by both ways."""
    rng = np.random.default_rng(1)
    weights = init(SMALL[task], rng, np.float64)
    x, y = rows(task, 9, rng)
    spare = [np.empty_like(w) for w in weights]
    assert gradients(SMALL[task], weights, x, y, spare) == pytest.approx(loss(SMALL[task], weights, x, y), rel=1e-12)


def test_losses_of_huge_outputs_are_finite() -> None:
    """A row far outside the training range costs much, and is no overflow."""
    for task in (Task.BINARY, Task.MULTICLASS):
        weights = init(SMALL[task], np.random.default_rng(0))
        with np.errstate(over="raise", invalid="raise"):
            assert np.isfinite(loss(SMALL[task], weights, np.full((2, 4), 1e6, np.float32), np.array([0, 1])))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any), st.integers(0, 1000))
def test_average_is_the_mean_weighted_by_rows(counts: list[int], seed: int) -> None:
    """FedAvg: sum of n_i/n · W_i, array by array."""
    rng = np.random.default_rng(seed)
    updates = [(init(SMALL[Task.BINARY], rng, np.float64), n) for n in counts]
    for i, mean in enumerate(federated_average(updates)):
        expected = np.average([weights[i] for weights, _ in updates], axis=0, weights=counts)
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-15)


def test_average_of_nothing_or_of_different_networks_is_refused() -> None:
    """What cannot be averaged raises."""
    rng = np.random.default_rng(0)
    one, other = init(SMALL[Task.BINARY], rng), init(SMALL[Task.MULTICLASS], rng)
    for updates in ([], [(one, 0)], [(one, 1), (one, -1)], [(one, 1), (other, 1)]):
        with pytest.raises(ValueError):
            federated_average(updates)


@pytest.mark.parametrize("optimizer", [Adam(1e-2), SGD(0.1)], ids=["adam", "sgd"])
@pytest.mark.parametrize("task", list(Task), ids=lambda task: task.value)
def test_federated_rounds_learn(task: Task, optimizer: Adam | SGD) -> None:
    """Three sites with a toy problem: the loss over all rows falls below half of where it began."""
    rng = np.random.default_rng(5)
    sites = [rows(task, 60, rng) for _ in range(3)]
    x, y = np.vstack([s[0] for s in sites]), np.concatenate([s[1] for s in sites])
    weights = init(SMALL[task], rng)
    before = loss(SMALL[task], weights, x, y)
    for _ in range(120):
        updates = [(local_epoch(SMALL[task], weights, *s, Training(16, optimizer), rng), len(s[0])) for s in sites]
        weights = federated_average(updates)
    assert loss(SMALL[task], weights, x, y) < before / 2
    if task is not Task.REGRESSION:
        assert (predict(SMALL[task], weights, x) == y).mean() > 0.8


def test_a_seed_is_a_result() -> None:
    """The same generator gives the same weights to the bit, another one others; the given weights are not touched."""
    architecture = Architecture(4, (6, 5), 1, Task.REGRESSION, dropout=(0.2, 0.0))
    x, y = rows(Task.REGRESSION, 40, np.random.default_rng(0))
    start = init(architecture, np.random.default_rng(1))
    kept = [w.copy() for w in start]

    def epoch(seed: int) -> Weights:
        return local_epoch(architecture, start, x, y, Training(), np.random.default_rng(seed))

    assert all(np.array_equal(a, b) for a, b in zip(epoch(2), epoch(2), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(epoch(2), epoch(3), strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(start, kept, strict=True))


def test_training_keeps_the_precision_of_the_weights() -> None:
    """Float32 weights stay float32 through an epoch and an average."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        weights = init(SMALL[Task.BINARY], rng, dtype)
        x, y = rows(Task.BINARY, 20, rng)
        new = local_epoch(SMALL[Task.BINARY], weights, x.astype(dtype), y, Training(), rng)
        assert {w.dtype for w in federated_average([(new, 3), (weights, 1)])} == {np.dtype(dtype)}


def test_dropout_needs_a_share_for_every_hidden_layer() -> None:
    """A table with a missing entry is no architecture."""
    with pytest.raises(ValueError, match="one share"):
        Architecture(4, (6, 5), 1, Task.BINARY, dropout=(0.2,))
