"""How good a model is on the rows that every site keeps apart: from pooled sums alone.

A site adds up the loss of its rows and, of classes, counts its rows by true and predicted class; of two classes also by
hundredths of the predicted probability. Accuracy, the F1 of each class and the area under the ROC curve follow from the
pooled counts. Within a hundredth the order of rows is not known: they count as ties.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import fixed61
from crypto.rings import Vector

SCORE_BINS = 100
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Metrics:
    """What is known of a model after a round. Without classes there is the loss alone."""

    round: int
    rows: int
    loss: float
    accuracy: float | None = None
    # Of two classes.
    auc: float | None = None
    # Per class: how often it is there, how often it was predicted, how often both.
    actual: tuple[int, ...] = ()
    predicted: tuple[int, ...] = ()
    correct: tuple[int, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items() if v not in (None, ())}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> "Metrics":
        """Inverse of plain."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
        return cls(**fields)


def length(classes: int) -> int:
    """Elements of the vector that a site adds: the loss in two parts, the confusion matrix, the scores."""
    return 2 + classes * classes + (2 * SCORE_BINS if classes == 2 else 0)


def encoded(classes: int, loss: float, confusion: Counts, scores: Counts, addends: int) -> Vector:
    """A site's vector."""
    counts = [confusion.ravel(), scores.ravel()] if classes == 2 else [confusion.ravel()] if classes else []
    parts = fixed61.encode_parts(np.array([loss]), addends=addends)
    return np.concatenate([parts, *(part.astype(np.uint64) for part in counts)])


def pooled(round_number: int, classes: int, rows: int, total: Vector) -> Metrics:
    """What the sum of the sites' vectors says."""
    loss = float(fixed61.decode_parts(total[:2])[0]) / max(rows, 1)
    if not classes:
        return Metrics(round_number, rows, loss)
    confusion = total[2 : 2 + classes * classes].astype(np.int64).reshape(classes, classes)
    scores = total[2 + classes * classes :].astype(np.int64).reshape(2, -1) if classes == 2 else None
    return Metrics(
        round_number,
        rows,
        loss,
        float(np.trace(confusion)) / max(int(confusion.sum()), 1),
        None if scores is None else area_under_curve(scores),
        tuple(confusion.sum(axis=1).tolist()),
        tuple(confusion.sum(axis=0).tolist()),
        tuple(np.diagonal(confusion).tolist()),
    )


def area_under_curve(scores: Counts) -> float | None:
    """The chance that a row of the second class scores higher than one of the first, ties counted half."""
    negative, positive = scores
    pairs = int(negative.sum()) * int(positive.sum())
    if not pairs:
        return None
    below = np.concatenate([[0], np.cumsum(negative)[:-1]])
    return float((positive * (2 * below + negative)).sum()) / (2 * pairs)
