"""A job at the worker: messages of the protocol become calls of a model. No network in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from commonscale_worker.data import Data
from commonscale_worker.errors import DataError, Diverged, ModelError, WorkerError
from commonscale_worker.models import SCORE_BINS, Layer, Model, Normalized, OwnData, Remembering, Round
from commonscale_worker.registry import Offer
from commonscale_worker.settings import Settings
from commonscale_worker.v1 import worker_pb2 as pb
from commonscale_worker.vectors import Array, Shapes, Tensors, pack, shapes, unpack

DTYPES = {"float32": "<f4", "float64": "<f8"}


class Training(NamedTuple):
    """The round that was trained last, and what the model remembered before it."""

    round: int
    memory: object


class Job:
    """A model that is ready for the tasks of one job."""

    def __init__(self, offer: Offer, prepare: pb.Prepare, data: Data | None = None) -> None:
        self.id = prepare.id
        self.asked = prepare
        self.settings = Settings.of(prepare.settings)
        self._dtype = DTYPES[self.settings.precision]
        self._classes = len(prepare.classes)
        self._model = offer.make()
        if not isinstance(self._model, Model):
            raise ModelError(f"model {offer.name!r} lacks {_lacking(self._model)}")
        rows, evaluation_rows = self._prepare(prepare, data)
        tensors = self._model.get_weights()
        self._shapes: Shapes = shapes(tensors)
        self.layers = _layers(self._model)
        self._trained: Training | None = None
        self.prepared = pb.Prepared(
            id=self.id,
            rows=rows,
            evaluation_rows=evaluation_rows,
            tensors=[pb.Array(name=name, dtype=self._dtype, shape=shape) for name, shape in self._shapes.items()],
            layers=[pb.Layer(**layer._asdict()) for layer in self.layers],
        )
        self.first: Tensors = {"weights": _finite(tensors, pack(tensors, self._dtype))}

    @property
    def parameters(self) -> int:
        """How many numbers the model's vector has."""
        return len(self.first["weights"])

    def train(self, task: pb.Task, arrays: Mapping[str, Array], progress: Callable[[float], None]) -> Tensors:
        """The arrays of a Result of KIND_TRAIN; a round that comes again starts from what it started from before."""
        memory = self._memory(task)
        self._set(arrays)
        try:
            self._model.fit(Round(task.round, task.rounds, progress))
            result = self._trained_arrays()
        except BaseException:
            if isinstance(self._model, Remembering):
                self._model.set_memory(memory)
            raise
        self._trained = Training(task.round, memory)
        return result

    def evaluate(self, arrays: Mapping[str, Array]) -> Tensors:
        """The arrays of a Result of KIND_EVALUATE."""
        self._set(arrays)
        loss, confusion, scores = self._model.evaluate()
        if not np.isfinite(loss):
            raise Diverged("the loss of the evaluation rows is no finite number")
        result: Tensors = {"loss": np.array([loss], "<f8")}
        if self._classes:
            result["confusion"] = self._counts("confusion", confusion, (self._classes, self._classes))
        if self._classes == 2:
            result["scores"] = self._counts("scores", scores, (2, SCORE_BINS))
        return result

    def _counts(self, name: str, found: Array | None, shape: tuple[int, ...]) -> Array:
        """Of all evaluation rows."""
        counts = np.asarray(found)
        if counts.shape != shape or not np.issubdtype(counts.dtype, np.integer):
            raise ModelError(f"the model's evaluation has no {name} of shape {shape} in whole numbers")
        if (counts < 0).any() or counts.sum() != self.prepared.evaluation_rows:
            raise ModelError(f"the model's {name} does not count its {self.prepared.evaluation_rows} evaluation rows")
        return counts.astype("<i8")

    def _prepare(self, prepare: pb.Prepare, data: Data | None) -> tuple[int, int]:
        source: Data | OwnData
        if isinstance(self._model, OwnData):
            data = Data(np.zeros((0, 0)), np.zeros(0), np.zeros(0, bool), 0, self.settings.precision)
            self._model.prepare(data, self.settings, list(prepare.features), list(prepare.classes))
            source = self._model
        else:
            if data is None:
                data = Data.open(prepare.data_path, prepare.features, self._classes, self.settings.precision)
            if not data.rows:
                raise DataError("the data has no row to train on")
            self._model.prepare(data, self.settings, list(prepare.features), list(prepare.classes))
            source = data
        return source.rows, source.evaluation_rows

    def _memory(self, task: pb.Task) -> object:
        """What the model remembers before this round."""
        if not isinstance(self._model, Remembering):
            return None
        last = self._trained.round if self._trained else 0
        if last < task.previous and self._model.needs_memory():
            raise WorkerError(
                f"what the model kept from round {task.previous} (its momentum) is lost: the worker or its participant "
                "was started again. Submit the job again, or train without local momentum"
            )
        if self._trained and self._trained.round >= task.round:
            self._model.set_memory(self._trained.memory)
        return self._model.get_memory()

    def _set(self, arrays: Mapping[str, Array]) -> None:
        expected = {"weights", "mean", "variance"} if self.layers else {"weights"}
        missing = sorted(expected - set(arrays))
        if missing:
            raise WorkerError(f"the task came without its array {missing[0]!r}")
        vector = arrays["weights"]
        if len(vector) != self.parameters or vector.dtype.str != self._dtype:
            raise WorkerError(f"the task's weights are not {self.parameters} numbers of type {self._dtype}")
        if not all(np.isfinite(arrays[name]).all() for name in expected):
            raise Diverged("the task's numbers are not all finite")
        self._model.set_weights(unpack(vector, self._shapes))
        if self.layers:
            channels = sum(layer.channels for layer in self.layers)
            if any(arrays[name].shape != (channels,) for name in ("mean", "variance")):
                raise WorkerError(f"the task's statistics are not those of {channels} channels")
            assert isinstance(self._model, Normalized)
            self._model.set_statistics(np.array(arrays["mean"], "<f8"), np.array(arrays["variance"], "<f8"))

    def _trained_arrays(self) -> Tensors:
        tensors = self._model.get_weights()
        if shapes(tensors) != self._shapes:
            raise ModelError("after the round the model has other tensors than before it")
        result = {"weights": _finite(tensors, pack(tensors, self._dtype))}
        if self.layers and isinstance(self._model, Normalized):
            for name, values in self._model.get_statistics().items():
                result[name] = _finite({f"BatchNorm {name}": values}, np.asarray(values, "<f8"))
        return result


def _layers(model: Model) -> list[Layer]:
    return model.layers() if isinstance(model, Normalized) else []


def _lacking(model: object) -> str:
    methods = ("prepare", "get_weights", "set_weights", "fit", "evaluate")
    return ", ".join(f"{name}()" for name in methods if not callable(getattr(model, name, None)))


def _finite(tensors: Mapping[str, Array], vector: Array) -> Array:
    if not np.isfinite(vector).all():
        name = next((name for name, tensor in tensors.items() if not np.isfinite(tensor).all()), "the model")
        raise Diverged(f"{name} has values that are no finite numbers; a smaller learning rate may help")
    return vector
