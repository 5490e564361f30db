"""Clients written for Flower: a NumPyClient, or a ClientApp of either kind, called as Flower calls them.

Such a client brings its own rows; the job's columns are not read for it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from commonscale_worker.data import Data
from commonscale_worker.errors import ModelError, Unsuitable, WorkerError
from commonscale_worker.flower_messages import MessageClient, arrays_of, train_function
from commonscale_worker.models import Metrics, Round
from commonscale_worker.registry import register
from commonscale_worker.settings import Settings
from commonscale_worker.vectors import Array, Tensors

# Where clients of Flower's examples have their rows.
TRAINING_ROWS = ("trainloader", "train_loader", "trainset", "x_train", "X_train")


class FlowerModel:
    """A NumPyClient, or whatever has its methods, as a model."""

    def __init__(self, client: Callable[[], Any], rows: int | None = None, evaluation_rows: int | None = None) -> None:
        self._make = client
        self._given = rows, evaluation_rows
        self.rows = rows or 0
        self.evaluation_rows = evaluation_rows or 0

    def prepare(self, data: Data, settings: Settings, features: Sequence[str], classes: Sequence[str]) -> None:
        """First weights are the client's own: alike at all sites if its network is built from a seed."""
        if classes:
            raise Unsuitable("a Flower client measures its loss only: leave classes out of [train]")
        for name in ("proximal", "batchnorm"):
            if getattr(settings, name):
                raise ModelError(f"a Flower client trains in its own way: it does not know the setting {name}")
        self._settings = settings
        _seed(settings.seed)
        self._client = self._make()
        self._parameters: list[Array] = [np.array(part) for part in self._client.get_parameters(config={})]
        if not self._parameters:
            raise ModelError("this Flower client gives no first weights: give parameters= to cw.run()")
        self._names = getattr(self._client, "names", None) or [str(number) for number in range(len(self._parameters))]
        rows, evaluation_rows = self._given
        self.rows = self._counted() if rows is None else rows
        # Without being told, the client's own evaluation is asked.
        self.evaluation_rows = self._evaluated()[1] if evaluation_rows is None else evaluation_rows

    def get_weights(self) -> Tensors:
        """The client's parameters, in its order."""
        return dict(zip(self._names, self._parameters))

    def set_weights(self, weights: Tensors) -> None:
        """Counters among them become whole numbers again."""
        found = []
        for part, before in zip(weights.values(), self._parameters):
            whole = np.issubdtype(before.dtype, np.integer)
            found.append((np.rint(part) if whole else part).astype(before.dtype))
        self._parameters = found

    def fit(self, round: Round) -> None:  # noqa: A002
        """One call of the client's fit; what it draws by chance comes from the seed and the round's number."""
        _seed(self._settings.seed + round.number)
        parameters, examples, _ = self._client.fit(self._copies(), self._config(round))
        if examples != self.rows:
            raise ModelError(f"fit says that it used {examples} examples, but this site has announced {self.rows}")
        self._parameters = [np.array(part) for part in parameters]
        round.progress(1.0)

    def evaluate(self) -> Metrics:
        """One call of the client's evaluate, whose loss is a mean."""
        loss, examples = self._evaluated()
        if examples != self.evaluation_rows:
            raise ModelError(f"evaluate says {examples} examples, but this site has announced {self.evaluation_rows}")
        return Metrics(loss * examples)

    def _evaluated(self) -> tuple[float, int]:
        loss, examples, _ = self._client.evaluate(self._copies(), self._config(Round(0, 0, lambda _: None)))
        return float(loss), int(examples)

    def _counted(self) -> int:
        if isinstance(self._client, MessageClient):
            return self._client.count_rows(self._config(Round(1, 1, lambda _: None)))
        return _rows(self._client)

    def _copies(self) -> list[Array]:
        return [part.copy() for part in self._parameters]

    def _config(self, round: Round) -> dict[str, Any]:  # noqa: A002
        """What the job says, also by the names of Flower's examples."""
        rate = self._settings.learning_rate_in(round.number)
        settings = {**asdict(self._settings), "learning_rate": rate}
        del settings["learning_rate_steps"]
        usual: dict[str, Any] = {"local_epochs": self._settings.epochs, "batch_size": self._settings.batch_rows}
        usual |= {"lr": rate, "server_round": round.number, "server-round": round.number}
        return {**settings, **usual, "rounds": round.rounds}


def offer(
    name: str,
    client: Any = None,
    app: Any = None,
    *,
    rows: int | None = None,
    evaluation_rows: int | None = None,
    parameters: Any = None,
    node_config: dict[str, Any] | None = None,
    run_config: dict[str, Any] | None = None,
) -> None:
    """Offer a NumPyClient, or a ClientApp: made from a client_fn, or with @app.train() and @app.evaluate()."""
    if (client is None) == (app is None):
        raise WorkerError("give either flower_client or flower_app")
    context = partial(_context, node_config or {}, run_config or {})
    source, make = _of_client(client, parameters) if app is None else _of_app(app, parameters, context)
    register(name, lambda: FlowerModel(make, rows, evaluation_rows), source)


def _of_client(client: Any, parameters: Any) -> tuple[Any, Callable[[], Any]]:
    client = _numpy_client(client)
    kept: list[list[Array]] = []

    def make() -> Any:
        # A later job begins where the client began, not where an earlier job has left it.
        if not kept:
            kept.append(_first(client, parameters))
        return _Beginning(client, kept[0])

    return type(client), make


def _of_app(app: Any, parameters: Any, context: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
    if (train := train_function(app)) is not None:
        if parameters is None:
            raise WorkerError("the first weights of this ClientApp are its server's: give parameters= to cw.run()")
        return train, lambda: MessageClient(app, context, arrays_of(parameters))
    client_fn = _client_fn(app)
    if client_fn is None:
        raise WorkerError("this ClientApp has neither a client_fn nor @app.train(): give the client as flower_client=")
    if getattr(app, "_mods", None):
        raise WorkerError("mods of a ClientApp are not applied here: make it without them")

    def make() -> Any:
        client = _numpy_client(client_fn(context()))
        return _Beginning(client, _first(client, parameters))

    return client_fn, make


def _first(client: Any, parameters: Any) -> list[Array]:
    """What was given, or the client's own."""
    if parameters is not None:
        return list(arrays_of(parameters).values())
    return [np.array(part) for part in client.get_parameters(config={})]


class _Beginning:
    """A client with the parameters that it had at first."""

    def __init__(self, client: Any, parameters: list[Array]) -> None:
        self.client, self._parameters = client, parameters
        self.fit, self.evaluate = client.fit, client.evaluate

    def get_parameters(self, config: dict[str, Any]) -> list[Array]:
        return self._parameters


def _numpy_client(client: Any) -> Any:
    """Also out of what NumPyClient.to_client() gives."""
    client = getattr(client, "numpy_client", client)
    lacking = [name for name in ("get_parameters", "fit", "evaluate") if not callable(getattr(client, name, None))]
    if lacking:
        raise WorkerError(f"{type(client).__name__} is no NumPyClient: it has no {lacking[0]}")
    if any(base.__name__ == "Client" and base.__module__.startswith("flwr.") for base in type(client).__mro__):
        raise WorkerError(f"{type(client).__name__} is a Client with serialised parameters: make it a NumPyClient")
    return client


def _client_fn(app: Any) -> Callable[[Any], Any] | None:
    """Flower keeps it in the function that an app calls."""
    found = getattr(app, "client_fn", None)
    waiting = [getattr(app, "_call", None)]
    while found is None and waiting:
        function = waiting.pop()
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, getattr(function, "__closure__", None) or ()):
            if name == "client_fn":
                found = cell.cell_contents
            elif callable(cell.cell_contents):
                waiting.append(cell.cell_contents)
    return found if callable(found) else None


def _context(node_config: dict[str, Any], run_config: dict[str, Any]) -> Any:
    from flwr.common import Context, RecordDict

    return Context(run_id=0, node_id=0, node_config=node_config, state=RecordDict(), run_config=run_config)


def _rows(client: Any) -> int:
    client = getattr(client, "client", client)
    examples = getattr(client, "num_examples", None)
    if isinstance(examples, dict):
        examples = examples.get("trainset")
    if isinstance(examples, int):
        return examples
    for name in TRAINING_ROWS:
        rows: Any = getattr(client, name, None)
        rows = getattr(rows, "dataset", rows)
        if hasattr(rows, "__len__"):
            return len(rows)
    raise ModelError("the number of training rows of this Flower client is not known: give rows= to cw.run()")


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed % 2**63)
