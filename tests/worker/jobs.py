"""Jobs without a network: what a model answers to tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from commonscale_worker.jobs import Job
from commonscale_worker.registry import Offer
from commonscale_worker.v1 import worker_pb2 as pb
from commonscale_worker.vectors import Tensors

from tests.worker.participants import Array, prepare_of

Rows = tuple[Array, Array, Array]


def job_of(folder: Path, make: Callable[[], Any], classes: int = 2, rows: Rows | None = None, **settings: Any) -> Job:
    """A job of a model on made-up or given rows."""
    return Job(Offer("model", "", make), prepare_of(folder, "model", classes, rows, **settings))


def trained(job: Job, arrays: Mapping[str, Array], number: int = 1, rounds: int = 10) -> Tensors:
    """One round."""
    task = pb.Task(id=f"round {number}", kind=pb.Task.KIND_TRAIN, round=number, rounds=rounds)
    return job.train(task, arrays, lambda _share: None)


def initial(job: Job) -> Tensors:
    """Statistics before the first round."""
    channels = sum(layer.channels for layer in job.layers)
    return {"mean": np.zeros(channels), "variance": np.ones(channels)} if channels else {}
