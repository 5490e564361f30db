"""Data, batches, digests, plain models and those of scikit-learn."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import commonscale_worker as cw
import numpy as np
import pytest
from commonscale_worker import registry
from commonscale_worker.batches import batches, batches_per_round
from commonscale_worker.data import Data
from commonscale_worker.errors import DataError, Diverged, ModelError, Unsuitable, code_of
from commonscale_worker.models import class_metrics
from commonscale_worker.settings import Settings
from commonscale_worker.v1 import worker_pb2 as pb
from commonscale_worker.vectors import pack, shapes, unpack
from commonscale_worker.version import __version__

from tests.worker.jobs import job_of, trained
from tests.worker.participants import made_up, write_rows

pytest.importorskip("sklearn")
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier, MLPRegressor


def sklearn_model(wrapped: Any) -> type[cw.SklearnModel]:
    class Wrapping(cw.SklearnModel):
        estimator = wrapped

    return Wrapping


SGD = sklearn_model(SGDClassifier(loss="log_loss", alpha=0.0))
MLP = sklearn_model(MLPClassifier((6,)))


def test_the_digest_is_that_of_the_file_the_name_and_the_release(empty_registry: None) -> None:
    """Another byte, name or release is another digest."""
    cw.model("a-1")(SGD)
    prefix = f"commonscale-worker\0{__version__}\0a-1\0".encode()
    assert registry.offers()[0].digest == hashlib.sha256(prefix + Path(__file__).read_bytes()).hexdigest()
    assert registry.digest("b", SGD) != registry.digest("a-1", SGD)


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "x" * 64, "-a", "a-", "ä"])
def test_names_that_are_none(empty_registry: None, name: str) -> None:
    """Lower-case letters, digits and hyphens, up to 63 of them."""
    with pytest.raises(ModelError, match="no name of a model"):
        cw.model(name)(SGD)


def test_two_models_of_one_name(empty_registry: None) -> None:
    """Are an error, not the last one."""
    cw.model("x" * 63)(SGD)
    with pytest.raises(ModelError, match="two models are named"):
        cw.model("x" * 63)(MLP)


def test_a_class_without_a_file_has_no_digest(empty_registry: None) -> None:
    """A site could not pin it."""
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec("class Nowhere: pass", space)
    with pytest.raises(ModelError, match="no file"):
        cw.model("nowhere")(space["Nowhere"])


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_rows_are_split_as_the_file_says(folder: Path, precision: str) -> None:
    """In the order of the job's features, classes as whole numbers."""
    x, y, evaluation = made_up(classes=3)
    names = write_rows(folder / "rows", x, y, evaluation)
    data = Data.open(folder / "rows", names[::-1], 3, precision)
    assert np.array_equal(data.x, x[~evaluation, ::-1].astype(precision))
    assert np.array_equal(data.y_evaluation, y[evaluation])
    assert (data.x.dtype, data.y.dtype) == (precision, np.int64)
    assert (data.rows, data.evaluation_rows) == (160, 40)


@pytest.mark.parametrize(("value", "classes"), [(2.0, 2), (-1.0, 2), (0.5, 2), (np.nan, 0), (np.inf, 0)])
def test_targets_that_are_refused(folder: Path, value: float, classes: int) -> None:
    """No class of that number, or no number."""
    x, y, evaluation = made_up()
    y[17] = value
    names = write_rows(folder / "rows", x, y, evaluation)
    with pytest.raises(DataError):
        Data.open(folder / "rows", names, classes, "float64")


def test_files_that_are_refused(folder: Path) -> None:
    """None, no Arrow, and without a feature."""
    (folder / "text").write_text("not arrow")
    names = write_rows(folder / "rows", *made_up())
    for path, features in (("nowhere", names), ("text", names), ("rows", [*names, "age"])):
        with pytest.raises(DataError):
            Data.open(folder / path, features, 2, "float64")


@pytest.mark.parametrize(("rows", "batch_rows"), [(10, 3), (10, 0), (9, 4), (1, 4), (7, 7), (5, 100)])
def test_an_epoch_has_every_row_once(rows: int, batch_rows: int) -> None:
    """In another order in every epoch and round; no batch of one row where there are more."""
    settings = Settings(seed=3, epochs=2, batch_rows=batch_rows)
    found = list(batches(settings, 1, rows))
    assert len(found) == batches_per_round(settings, rows)
    assert np.bincount(np.concatenate(found), minlength=rows).tolist() == [2] * rows
    assert rows == 1 or all(len(batch) > 1 for batch in found)
    assert all(np.array_equal(a, b) for a, b in zip(found, batches(settings, 1, rows)))


def test_steps_go_on_over_rounds() -> None:
    """35 rounds of 2 steps of 3 rows see each of 10 rows 21 times."""
    settings = Settings(seed=3, steps=2, batch_rows=3)
    found = [batch for number in range(1, 36) for batch in batches(settings, number, 10)]
    assert {len(batch) for batch in found} == {3}
    assert np.bincount(np.concatenate(found)).tolist() == [21] * 10


def test_vectors_are_unpacked_into_what_was_packed() -> None:
    """In order, as copies that may be changed."""
    tensors = {"b": np.arange(6.0).reshape(2, 3), "a": np.array(7.0), "c": np.zeros((0, 2))}
    vector = pack(tensors, "<f4")
    vector.flags.writeable = False
    found = unpack(vector, shapes(tensors))
    assert list(found) == ["b", "a", "c"]
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
    found["b"][0, 0] = 1
    with pytest.raises(ValueError, match="does not hold"):
        unpack(vector[1:], shapes(tensors))


def test_metrics_of_classes() -> None:
    """Against numbers by hand; 1.0 falls into the last bin."""
    loss, confusion, scores = class_metrics(np.array([[0.75, 0.25], [0.0, 1.0], [0.5, 0.5]]), np.array([0, 1, 1]))
    assert confusion is not None
    assert scores is not None
    assert loss == pytest.approx(-np.log(0.75) - np.log(0.5))
    assert confusion.tolist() == [[1, 0], [1, 1]]
    assert [row.nonzero()[0].tolist() for row in scores] == [[25], [50, 99]]


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("estimator", "classes"),
    [
        (SGDClassifier(loss="log_loss"), 2),
        (SGDClassifier(loss="log_loss"), 3),
        (SGDClassifier(loss="hinge"), 3),
        (MLPClassifier((6, 5)), 2),
        (MLPClassifier((6, 5)), 3),
        (SGDRegressor(), 0),
        (MLPRegressor(hidden_layer_sizes=(6, 5)), 0),
    ],
)
def test_estimators_learn(folder: Path, estimator: Any, classes: int, precision: str) -> None:
    """The loss of rows that were kept apart falls over rounds, and a round that is repeated gives the same weights."""
    settings = {"learning_rate": 0.02, "epochs": 3, "momentum": 0.9 if hasattr(estimator, "momentum") else 0.0}
    job = job_of(folder, sklearn_model(estimator), classes, precision=precision, **settings)
    weights, losses = job.first, []
    for number in range(1, 7):
        losses.append(job.evaluate(weights)["loss"][0])
        after = trained(job, weights, number)
        assert np.array_equal(trained(job, weights, number)["weights"], after["weights"])
        weights = after
    assert losses[-1] < 0.6 * losses[0]
    assert weights["weights"].dtype == precision


def test_first_weights(folder: Path) -> None:
    """Zeros of linear models; of networks from the seed, whatever the rows are."""
    assert not job_of(folder, SGD, 3).first["weights"].any()
    first = [job_of(folder, MLP, rows=made_up(seed=seed)).first["weights"] for seed in (1, 2)]
    assert np.array_equal(*first)
    assert not np.array_equal(first[0], job_of(folder, MLP, seed=2).first["weights"])


def test_a_site_may_lack_a_class(folder: Path) -> None:
    """Its weights have the shape of everybody's."""
    x, y, evaluation = made_up(classes=3)
    rows = (x, np.minimum(y, 1), evaluation)
    for model in (SGD, MLP):
        job = job_of(folder, model, 3, rows)
        after = trained(job, job.first)
        assert len(after["weights"]) == len(job_of(folder, model, 3).first["weights"])
        assert job.evaluate(after)["confusion"].shape == (3, 3)


def test_averaging_sgd_over_sites_comes_near_the_pooled_model(folder: Path) -> None:
    """Three sites, 15 rounds: as many evaluation rows right as by training on all rows, within 3 of 100."""
    rows = [made_up(200, seed=seed) for seed in (1, 2, 3)]
    jobs = [job_of(folder, SGD, 2, part) for part in rows]
    together = job_of(folder, SGD, 2, tuple(np.concatenate(parts) for parts in zip(*rows)))  # type: ignore[arg-type]
    weights = pooled = jobs[0].first
    for number in range(1, 16):
        weights = {"weights": np.mean([trained(job, weights, number)["weights"] for job in jobs], axis=0)}
        pooled = trained(together, pooled, number)
    right = [np.trace(together.evaluate(found)["confusion"]) for found in (weights, pooled)]
    assert right[0] >= right[1] - 3.6
    assert right[0] > 108


@pytest.mark.parametrize(
    ("estimator", "sentence"),
    [
        (RandomForestClassifier(), "trees of different sites"),
        (LogisticRegression(), "no partial_fit"),
        (GaussianNB(), "no coefficients"),
        (SGDClassifier(average=True), "average=True"),
    ],
)
def test_estimators_that_cannot_be_averaged(folder: Path, estimator: Any, sentence: str) -> None:
    """Each with its reason."""
    with pytest.raises(ModelError, match=sentence) as caught:
        job_of(folder, sklearn_model(estimator))
    assert caught.value.code == "model"


@pytest.mark.parametrize(
    ("setting", "value"), [("proximal", 0.1), ("batchnorm", "fbn"), ("momentum", 0.9), ("optimizer", "adam")]
)
def test_settings_that_an_estimator_does_not_know(folder: Path, setting: str, value: Any) -> None:
    """Are refused by name, never left out in silence."""
    with pytest.raises(ModelError, match=setting):
        job_of(folder, SGD, **{setting: value})


def test_a_classifier_is_no_regressor(folder: Path) -> None:
    """And the other way round."""
    with pytest.raises(Unsuitable, match="predicts classes"):
        job_of(folder, SGD, 0)
    with pytest.raises(Unsuitable, match="predicts numbers"):
        job_of(folder, sklearn_model(SGDRegressor()), 2)


def test_settings_reach_the_estimator(folder: Path) -> None:
    """By its own names."""
    job = job_of(folder, MLP, learning_rate=0.3, momentum=0.5, weight_decay=0.25, optimizer="adam")
    found = job._model._estimator.get_params()  # type: ignore[attr-defined]
    assert (found["learning_rate_init"], found["momentum"], found["alpha"], found["solver"]) == (0.3, 0.5, 0.25, "adam")
    job = job_of(folder, SGD, learning_rate=0.3, weight_decay=0.25)
    found = job._model._estimator.get_params()  # type: ignore[attr-defined]
    assert (found["eta0"], found["learning_rate"], found["alpha"], found["penalty"]) == (0.3, "constant", 0.25, "l2")


def test_a_learning_rate_that_is_too_large(folder: Path) -> None:
    """Ends with "diverged", before anything leaves the model."""
    job = job_of(folder, sklearn_model(MLPRegressor(hidden_layer_sizes=(6,))), 0, learning_rate=1e6, epochs=20)
    with pytest.raises(Diverged), np.errstate(all="ignore"):
        trained(job, job.first)


@pytest.mark.parametrize(("name", "value"), [("precision", "float16"), ("batchnorm", "group"), ("optimizer", "lbfgs")])
def test_words_of_settings_that_are_not_known(name: str, value: str) -> None:
    """Are refused, since to train on without them would be another training."""
    with pytest.raises(ModelError, match=name):
        Settings.of(pb.Settings(**{name: value}))  # type: ignore[arg-type]


def test_weights_that_are_not_finite_are_not_trained(folder: Path) -> None:
    """They come from a model that diverged elsewhere."""
    job = job_of(folder, SGD)
    with pytest.raises(Diverged):
        trained(job, {"weights": np.full(5, np.nan)})


def test_a_class_that_lacks_a_method(folder: Path) -> None:
    """Is told which."""
    with pytest.raises(ModelError, match=r"prepare\(\), get_weights\(\)"):
        job_of(folder, dict)


def test_no_rows_to_train_on(folder: Path) -> None:
    """Fails with "data"."""
    x, y, _ = made_up(5)
    with pytest.raises(DataError, match="no row"):
        job_of(folder, SGD, 2, (x, y, np.ones(5, bool)))


def test_no_rows_to_evaluate_on(folder: Path) -> None:
    """Give sums of 0."""
    x, y, _ = made_up(50)
    for model, classes in ((SGD, 2), (sklearn_model(SGDRegressor()), 0)):
        found = job_of(folder, model, classes, (x, y, np.zeros(50, bool)))
        assert all(not part.any() for part in found.evaluate(found.first).values())


def test_codes_of_errors() -> None:
    """Memory, also as torch says it."""
    assert code_of(MemoryError()) == "memory"
    assert code_of(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 byte")) == "memory"
    assert code_of(KeyError("x")) == "model"
