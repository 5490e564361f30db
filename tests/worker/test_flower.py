"""Clients of Flower, as they are."""

from __future__ import annotations

from typing import Any

import commonscale_worker as cw
import numpy as np
import pytest
from commonscale_worker import flower, registry, running
from commonscale_worker.errors import ModelError, Unsuitable, WorkerError
from commonscale_worker.jobs import Job
from commonscale_worker.v1 import worker_pb2 as pb

from tests.worker.jobs import trained


class Client:
    """What a NumPyClient has, without Flower: one weight that goes half the way to a mean."""

    def __init__(self, rows: int = 8) -> None:
        self.x_train = np.arange(rows, dtype=float)
        self.parameters = [np.zeros(1, np.float32), np.array(3, np.int64)]
        self.configs: list[dict[str, Any]] = []

    def get_parameters(self, config: dict[str, Any]) -> list[Any]:
        return self.parameters

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        self.configs.append(config)
        assert parameters[1].dtype == np.int64
        self.parameters = [(parameters[0] + self.x_train.mean()) / 2, parameters[1] + 1]
        return self.parameters, len(self.x_train), {}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return float(abs(parameters[0][0] - 3.5)), 4, {"accuracy": 0.5}


def flower_job(**settings: Any) -> Job:
    return Job(registry.offered("flower"), pb.Prepare(id="job", model="flower", settings=pb.Settings(**settings)))


def test_a_client_is_called_unchanged(empty_registry: None) -> None:
    """Weights go round, counters stay whole numbers, the loss is a sum."""
    client = Client()
    flower.offer("flower", client)
    job = flower_job(epochs=3, batch_rows=5)
    assert (job.prepared.rows, job.prepared.evaluation_rows) == (8, 4)
    after = trained(job, job.first, 2)
    assert after["weights"].tolist() == [1.75, 4.0]
    assert job.evaluate(after)["loss"][0] == pytest.approx(4 * 1.75)
    config = client.configs[0]
    assert (config["server_round"], config["local_epochs"], config["batch_size"]) == (2, 3, 5)


def test_a_second_job_begins_where_the_client_began(empty_registry: None) -> None:
    """Not where the first job has left it."""
    flower.offer("flower", Client())
    job = flower_job()
    trained(job, job.first)
    assert flower_job().first["weights"].tolist() == [0.0, 3.0]


def test_rows_must_be_known(empty_registry: None) -> None:
    """From the argument, or from where clients have them; otherwise a sentence says what to give."""
    client = Client()
    del client.x_train
    flower.offer("flower", client)
    flower.offer("told", client, rows=8, evaluation_rows=4)
    with pytest.raises(ModelError, match="give rows="):
        flower_job()
    told = Job(registry.offered("told"), pb.Prepare(settings=pb.Settings()))
    assert (told.prepared.rows, told.prepared.evaluation_rows) == (8, 4)


def test_other_examples_than_announced(empty_registry: None) -> None:
    """Would be weighted wrongly: refused."""
    flower.offer("flower", Client(), rows=9)
    job = flower_job()
    with pytest.raises(ModelError, match="used 8 examples"):
        trained(job, job.first)


def test_what_a_client_cannot_do(empty_registry: None) -> None:
    """Classes, FedProx and BatchNorm over sites."""
    flower.offer("flower", Client())
    for name, value in (("proximal", 0.1), ("batchnorm", "fbn")):
        with pytest.raises(ModelError, match=name):
            flower_job(**{name: value})
    with pytest.raises(Unsuitable, match="leave classes out"):
        Job(registry.offered("flower"), pb.Prepare(classes=["a", "b"], settings=pb.Settings()))


def test_what_is_no_client(empty_registry: None) -> None:
    """Is refused when it is offered."""
    with pytest.raises(WorkerError, match="no get_parameters"):
        flower.offer("flower", object())
    with pytest.raises(WorkerError, match="either"):
        flower.offer("flower")


def test_first_weights_may_be_given(empty_registry: None) -> None:
    """Where a client has none of its own, as in Flower, whose server has them."""
    client = Client()
    client.parameters = []
    flower.offer("none", client)
    flower.offer("flower", client, parameters=lambda: [np.ones(1, np.float32), np.array(3, np.int64)])
    with pytest.raises(ModelError, match="give parameters="):
        Job(registry.offered("none"), pb.Prepare(settings=pb.Settings()))
    job = flower_job()
    assert job.first["weights"].tolist() == [1.0, 3.0]
    assert trained(job, job.first)["weights"].tolist() == [2.25, 4.0]


class App:
    """What a ClientApp of functions has, without Flower."""

    def __init__(self, *names: str, module: str = __name__) -> None:
        def function(message: Any, context: Any) -> Any:
            return message

        function.__module__ = module
        self._registered_funcs = dict.fromkeys(names, function)


def test_apps_that_cannot_be_offered(empty_registry: None) -> None:
    """Each with a sentence that says why."""
    both = ("train.default", "evaluate.default")
    for app, words in (
        (App("train.default"), "no @app.evaluate"),
        (App(*both, module="flwr.client.mod.utils"), "mods"),
        (App(*both), "give parameters="),
        (App("query.default"), "neither a client_fn nor @app.train"),
    ):
        with pytest.raises(WorkerError, match=words):
            flower.offer("flower", app=app)


def test_an_app_of_functions(empty_registry: None) -> None:
    """Gets weights by name and the job's settings; keeps its context from round to round, and says its rows."""
    common = pytest.importorskip("flwr.common")
    app = pytest.importorskip("flwr.clientapp").ClientApp()

    def answer(message: Any, **records: Any) -> Any:
        return common.Message(common.RecordDict(records), reply_to=message)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        rounds = int(context.state.config_records.get("kept", {"rounds": 0})["rounds"]) + 1
        context.state["kept"] = common.ConfigRecord({"rounds": rounds})
        weights = message.content["arrays"]["w"].numpy() + context.run_config["step"] * rounds
        arrays = common.ArrayRecord({"w": common.Array(weights.astype(np.float32))})
        return answer(message, arrays=arrays, metrics=common.MetricRecord({"num-examples": 8}))

    @app.evaluate()  # type: ignore[untyped-decorator]
    def evaluate(message: Any, context: Any) -> Any:
        loss = float(message.content["arrays"]["w"].numpy()[0]) * message.content["config"]["lr"]
        return answer(message, metrics=common.MetricRecord({"eval_loss": loss, "num-examples": 2}))

    flower.offer("flower", app=app, parameters={"w": np.zeros(1, np.float32)}, run_config={"step": 0.5})
    job = flower_job(learning_rate=2.0)
    assert (job.prepared.rows, job.prepared.evaluation_rows) == (8, 2)
    assert [tensor.name for tensor in job.prepared.tensors] == ["w"]
    after = trained(job, job.first, 1)
    assert after["weights"].tolist() == [0.5]
    after = trained(job, after, 2)
    assert after["weights"].tolist() == [1.5]
    assert job.evaluate(after)["loss"][0] == pytest.approx(2 * 1.5 * 2.0)


def test_run_only_offers_while_a_command_imports(empty_registry: None) -> None:
    """The command attaches."""
    with running.importing():
        cw.run(flower_client=Client(), name="mine")
    assert [offer.name for offer in registry.offers()] == ["mine"]


def test_flowers_own_classes(empty_registry: None) -> None:
    """A NumPyClient, what its to_client gives, and a ClientApp with a client_fn."""
    numpy_client = pytest.importorskip("flwr.client").NumPyClient
    app_of = pytest.importorskip("flwr.clientapp").ClientApp

    class Numpy(Client, numpy_client):  # type: ignore[misc]
        pass

    def client_fn(context: Any) -> Any:
        return Numpy().to_client()

    flower.offer("client", Numpy())
    flower.offer("wrapped", Numpy().to_client())
    flower.offer("app", app=app_of(client_fn=client_fn))
    for offer in registry.offers():
        job = Job(offer, pb.Prepare(settings=pb.Settings()))
        assert trained(job, job.first)["weights"].tolist() == [1.75, 4.0]
    with pytest.raises(WorkerError, match="neither a client_fn"):
        flower.offer("none", app=app_of())
