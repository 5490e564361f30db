"""A worker's module whose process ends itself with SIGKILL at the points that a file names, one after the other."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import commonscale_worker as cw
from commonscale_worker import attaching, jobs
from commonscale_worker.models import Round
from commonscale_worker.v1 import worker_pb2 as pb
from sklearn.linear_model import SGDClassifier

_KINDS = {pb.Task.KIND_TRAIN: "train", pb.Task.KIND_EVALUATE: "evaluate"}


def _points() -> Path:
    """Beside the socket of the site: the points are its worker's."""
    return Path(sys.argv[sys.argv.index("--socket") + 1].removeprefix("ipc://")).with_name("crash-points")


def reached(point: str) -> None:
    """Die if this is the next point."""
    named = _points()
    points = named.read_text().splitlines() if named.exists() else []
    if points[:1] == [point]:
        named.write_text("\n".join(points[1:]))
        # What is on its way has left by then.
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)


@cw.model("risk")
class Risk(cw.SklearnModel):
    """Logistic regression."""

    estimator = SGDClassifier(loss="log_loss")

    def fit(self, round: Round) -> None:  # noqa: A002
        """With a point after some of the batches."""

        def progress(share: float) -> None:
            round.progress(share)
            reached("in fit")

        super().fit(Round(round.number, round.rounds, progress))


def _after(owner: Any, name: str, point: Any) -> None:
    original = getattr(owner, name)

    def then(*args: Any) -> Any:
        found = original(*args)
        if (named := point(*args)) is not None:
            reached(named)
        return found

    setattr(owner, name, then)


def _sent(_: Any, body: Any, *__: Any) -> str:
    return f"{type(body).__name__} sent"


def _asked(_: Any, message: Any) -> str:
    return f"{_KINDS.get(getattr(message.body, 'kind', None), message.kind)} received"


_after(attaching.Attachment, "_send", _sent)
_after(attaching.Attachment, "_asked", _asked)
_after(jobs.Job, "__init__", lambda *_: "prepared")
_after(jobs.Job, "train", lambda *_: "trained")
_after(jobs.Job, "evaluate", lambda *_: "evaluated")
