"""A site's worker in one job: the rows are handed over, what it answers is checked before it is used."""

import hashlib
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from commonscale_worker import wire
from commonscale_worker.v1 import worker_pb2 as pb

from commonscale.channel.channel import Channel
from commonscale.concurrency import offload
from commonscale.config import TrainPolicy
from commonscale.errors import Refused, WorkerFailed
from commonscale.estimators.assembly import FittedStep
from commonscale.sources.source import Source
from commonscale.statistics.training.batchnorm import Layer
from commonscale.statistics.training.evaluation import SCORE_BINS
from commonscale.statistics.training.worker import Arrays, Local, Order, Ready
from participant import handover
from participant.worker_gate import WorkerGate

_KINDS = {"train": pb.Task.KIND_TRAIN, "evaluate": pb.Task.KIND_EVALUATE}
MAX_PARAMETERS = 1 << 28
MAX_TENSORS = 10_000


@dataclass
class SiteWorker:
    """What a training step sees of the worker."""

    worker_gate: WorkerGate
    ch: Channel
    source: Source
    steps: list[FittedStep]
    scratch: Path
    # Of the model, as the site's policy pins it.
    digest: str
    policy: TrainPolicy
    # Of an earlier job's result, if its steps are among these.
    after: str = ""
    _prepare: pb.Prepare = field(default_factory=pb.Prepare)
    _local: Local | None = None
    _ready: Ready | None = None

    async def prepare(self, local: Local) -> Ready:
        """Hand over the rows, and hear what the worker makes of them."""
        key = await self.ch.keep("Split", partial(secrets.token_bytes, 16))
        file = self.scratch / "rows.arrow"
        features = await offload(handover.write, self.source, self.steps, local, key, file)
        self._local = local
        self._prepare = pb.Prepare(
            id=self._id(key), model=local.model, data_path=str(file.absolute()), features=features,
            classes=local.classes, settings=pb.Settings(**local.settings),
        )  # fmt: skip
        answer = await self.worker_gate.ask((self._prepare, self.digest), None, {})
        self._ready = await offload(self._checked_ready, answer)
        return self._ready

    def _id(self, key: bytes) -> str:
        """The same after a restart of this daemon: a worker that is still there goes on with what it remembers."""
        return f"{self.ch.run}-{hashlib.sha256(b'prepare' + key).hexdigest()[:8]}"

    async def work(self, order: Order) -> Arrays:
        """One task."""
        task = pb.Task(
            id=f"{self.ch.run}/{order.round}/{order.kind}", kind=_KINDS[order.kind], round=order.round,
            rounds=order.rounds, job=self._prepare.id, previous=order.previous,
        )  # fmt: skip
        answer = await self.worker_gate.ask((self._prepare, self.digest), task, order.arrays)
        check = self._checked_training if order.kind == "train" else self._checked_evaluation
        return await offload(check, answer.arrays)

    def _checked_ready(self, answer: wire.Message) -> Ready:
        said, weights = answer.body, answer.arrays.get("weights")
        assert self._local is not None
        tensors = tuple((tensor.name, tuple(tensor.shape)) for tensor in said.tensors)
        layers = tuple(Layer(layer.name, layer.channels, layer.momentum) for layer in said.layers)
        if weights is None or weights.ndim != 1 or weights.dtype != np.dtype(self._local.settings["precision"]):
            raise self._nonsense(f"no first weights of type {self._local.settings['precision']}")
        sizes = [int(np.prod(shape, dtype=object)) for _, shape in tensors[:MAX_TENSORS]]
        if not 0 < sum(sizes) == len(weights) <= MAX_PARAMETERS or len(tensors) > MAX_TENSORS:
            raise self._nonsense("tensors whose shapes are not those of its weights")
        if any(not 0 < layer.channels <= 1 << 20 or not 0 < layer.momentum <= 1 for layer in layers):
            raise self._nonsense("a BatchNorm layer without channels, or with a momentum that is none")
        if not 0 <= said.rows < 1 << 50 or not 0 <= said.evaluation_rows < 1 << 50:
            raise self._nonsense("a number of rows that is none")
        self._finite({"first weights": weights})
        self._check_rows(said.rows, said.evaluation_rows)
        return Ready(said.rows, said.evaluation_rows, tensors, layers, weights, self.after, self.digest)

    def _check_rows(self, rows: int, evaluation_rows: int) -> None:
        """Of what is really trained and measured on, also by a model with rows of its own; before it is added up."""
        if rows < self.policy.min_rows:
            raise Refused(f"{self.ch.me}: its policy asks for more rows to train on than this job leaves it.")
        # Without any, the figures of all sites together would be those of the others, perhaps of a single one.
        assert self._local is not None
        if self._local.evaluation_share and evaluation_rows < self.policy.min_evaluation_rows:
            raise Refused(
                f"{self.ch.me}: its policy asks for more rows to evaluate on than this job leaves it.",
                "Give a larger evaluation.share, or every = 0 for no evaluation.",
            )

    def _checked_training(self, arrays: Arrays) -> Arrays:
        assert self._ready is not None
        assert self._local is not None
        ready, mode = self._ready, self._local.settings["batchnorm"]
        expected = {"weights": len(ready.weights)}
        if ready.layers and mode == "fbn":
            expected |= {"sum": ready.channels, "square": ready.channels, "count": len(ready.layers)}
        elif ready.layers and mode in ("naive", "fixbn"):
            expected |= {"mean": ready.channels, "variance": ready.channels}
        for name, length in expected.items():
            array = arrays.get(name)
            dtype = ready.weights.dtype if name == "weights" else np.dtype("<f8")
            if array is None or array.shape != (length,) or array.dtype != dtype:
                raise self._nonsense(f"no {name} of {length} numbers of type {dtype}")
        found = {name: arrays[name] for name in expected}
        self._finite(found)
        if ("count" in found and (found["count"] < 0).any()) or ("square" in found and (found["square"] < 0).any()):
            raise self._nonsense("a negative count or square")
        return found

    def _checked_evaluation(self, arrays: Arrays) -> Arrays:
        assert self._ready is not None
        assert self._local is not None
        classes, rows = len(self._local.classes), self._ready.evaluation_rows
        shapes: dict[str, tuple[int, ...]] = {"loss": (1,)}
        if classes:
            shapes["confusion"] = (classes, classes)
        if classes == 2:
            shapes["scores"] = (2, SCORE_BINS)
        for name, shape in shapes.items():
            array = arrays.get(name)
            dtype = np.dtype("<f8" if name == "loss" else "<i8")
            if array is None or array.shape != shape or array.dtype != dtype:
                raise self._nonsense(f"no {name} of shape {shape}")
            if name != "loss" and ((array < 0).any() or array.sum(dtype=object) != rows):
                raise self._nonsense(f"{name} that are not those of its rows")
        found = {name: arrays[name] for name in shapes}
        self._finite(found)
        return found

    def _finite(self, arrays: dict[str, Any]) -> None:
        for name, array in arrays.items():
            finite = np.isfinite(array)
            if not finite.all():
                where = f"tensor {self._ready.tensor_at(int(finite.argmin()))!r}" if self._ready else name
                raise WorkerFailed(
                    f"{self.ch.me}: {where if name == 'weights' else name} has numbers that are not finite.",
                    "Lower the learning rate, or put the columns on a common scale first; none of this was sent.",
                )

    def _nonsense(self, what: str) -> WorkerFailed:
        return WorkerFailed(
            f"{self.ch.me}: its worker sent {what}.", "Run `commonscale-worker check` on the model's module there."
        )


def pinned_digest(models: dict[str, str], worker_gate: WorkerGate | None, model: str, *, may_come: bool = False) -> str:
    """The digest of a model that the policy allows and the attached worker offers; else Refused.

    In mid-job the worker may come later.
    """
    if worker_gate is None:
        raise Refused("No ML worker can attach here: the participant's configuration has no [worker].")
    digest = models.get(model)
    if digest is None:
        raise Refused(
            f"Its policy does not allow to train the model {model!r}.", "Its operator may pin it in policy.train."
        )
    if worker_gate.models is None and may_come:
        return digest
    if worker_gate.models is None:
        raise Refused("Its ML worker is not attached.", "Start it there, and submit the job again.")
    if model not in worker_gate.models:
        raise Refused(f"Its ML worker offers no model {model!r}.")
    if worker_gate.models[model] != digest:
        raise Refused(f"Its ML worker offers another model {model!r} than its policy pins: the digests differ.")
    return digest
