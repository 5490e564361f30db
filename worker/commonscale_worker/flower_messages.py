"""A Flower ClientApp made of @app.train() and @app.evaluate(), with the methods of a NumPyClient.

Such an app gets a Message with the weights and answers with another. Its weights have names, which are those of the
record that it is first given; in Flower that record is the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from commonscale_worker.errors import ModelError, WorkerError
from commonscale_worker.vectors import Array, Tensors

# Where apps say how many rows they used, and how well they did.
EXAMPLES = "num-examples"
LOSSES = ("eval_loss", "eval-loss", "loss", "test_loss", "val_loss")


class MessageClient:
    """An app at one site: it keeps its context from round to round, as in Flower."""

    def __init__(self, app: Any, context: Callable[[], Any], first: Tensors) -> None:
        self._app, self._new_context = app, context
        self._context = context()
        self._first = first
        self.names = list(first)

    def get_parameters(self, config: dict[str, Any]) -> list[Array]:
        """As they were given."""
        return list(self._first.values())

    def fit(self, parameters: list[Array], config: dict[str, Any]) -> tuple[list[Array], int, dict[str, Any]]:
        """One Message to the app's train function."""
        return self._trained(parameters, config, self._context)

    def evaluate(self, parameters: list[Array], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """One Message to its evaluate function."""
        metrics = _metrics(self._asked("evaluate", parameters, config, self._context))
        losses = [metrics[name] for name in LOSSES if name in metrics]
        if not losses:
            raise ModelError(f"the app's evaluate says no loss: none of {', '.join(LOSSES)} is among its metrics")
        return float(losses[0]), _examples(metrics, "evaluate"), metrics

    def count_rows(self, config: dict[str, Any]) -> int:
        """It says so only when it trains: once for this, with a context that is thrown away."""
        return self._trained(self.get_parameters({}), config, self._new_context())[1]

    def _trained(
        self, parameters: list[Array], config: dict[str, Any], context: Any
    ) -> tuple[list[Array], int, dict[str, Any]]:
        content = self._asked("train", parameters, config, context)
        records = list(content.array_records.values())
        if len(records) != 1:
            raise ModelError(f"the app's train answers with {len(records)} records of arrays, not with one")
        if list(records[0]) != self.names:
            raise ModelError("the app's train answers with other arrays than it was given")
        metrics = _metrics(content)
        return [np.array(part.numpy()) for part in records[0].values()], _examples(metrics, "train"), metrics

    def _asked(self, kind: str, parameters: list[Array], config: dict[str, Any], context: Any) -> Any:
        from flwr.common import Array as FlowerArray
        from flwr.common import ArrayRecord, ConfigRecord, RecordDict

        arrays = ArrayRecord({name: FlowerArray(part) for name, part in zip(self.names, parameters)})
        content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
        answer = self._app(message(content, kind, context.node_id), context)
        if answer.has_error():
            raise ModelError(f"the app's {kind} answers with an error: {answer.error.reason}")
        return answer.content


def message(content: Any, kind: str, node_id: int) -> Any:
    """As a server would send it."""
    from flwr.common import Message

    try:
        return Message(content=content, dst_node_id=node_id, message_type=kind)
    except RuntimeError:
        # Newer releases of Flower want to know who this process is.
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 0
        return Message(content=content, dst_node_id=node_id, message_type=kind)


def arrays_of(first: Any) -> Tensors:
    """First weights by name: of a state_dict, a mapping of arrays or a list of them, or of what a function gives."""
    found = first() if callable(first) else first
    named = found if isinstance(found, Mapping) else {str(number): part for number, part in enumerate(found)}
    return {str(name): _array(part) for name, part in named.items()}


def train_function(app: Any) -> Callable[..., Any] | None:
    """The function that an app trains with, if it has one."""
    functions: Mapping[str, Callable[..., Any]] = getattr(app, "_registered_funcs", {})
    if "train.default" not in functions:
        return None
    if "evaluate.default" not in functions:
        raise WorkerError("this ClientApp has no @app.evaluate()")
    # A mod is wrapped around it by Flower.
    if any(function.__module__.startswith("flwr.") for function in functions.values()):
        raise WorkerError("mods of a ClientApp are not applied here: make it without them")
    return functions["train.default"]


def _array(part: Any) -> Array:
    return np.array(part.detach().cpu().numpy() if hasattr(part, "detach") else part)


def _metrics(content: Any) -> dict[str, Any]:
    return {name: value for record in content.metric_records.values() for name, value in record.items()}


def _examples(metrics: dict[str, Any], kind: str) -> int:
    if EXAMPLES not in metrics:
        raise ModelError(f"the app's {kind} does not say {EXAMPLES!r} among its metrics")
    return int(metrics[EXAMPLES])
