"""What a step orders from the ML worker of a site, and what it gets: the same words at every role.

Only a site has a worker. The coordinator and a plan get HIDDEN for everything that one would answer.
"""

import io
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from commonscale.statistics.training.batchnorm import Layer

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Local:
    """How a worker trains, the same for all rounds."""

    model: str
    columns: tuple[str, ...]
    target: str
    classes: tuple[str, ...]
    # Of the rows that are kept apart to evaluate on.
    evaluation_share: float
    # As the wire's Settings.
    settings: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Ready:
    """What a worker says of the model and the rows that it will train."""

    rows: int
    evaluation_rows: int
    # Names and shapes of the tensors in the weights' vector, in order.
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    layers: tuple[Layer, ...]
    weights: NDArray[np.floating[Any]] = field(repr=False, compare=False)
    # Of the earlier job whose steps were done to the rows, a hash of what its sites found.
    after: str = ""
    # Of the model's code, as the site's policy pins it.
    digest: str = ""

    @property
    def channels(self) -> int:
        """Of all BatchNorm layers."""
        return sum(layer.channels for layer in self.layers)

    def tensor_at(self, index: int) -> str:
        """The name of the tensor that an element of the vector belongs to."""
        for name, shape in self.tensors:
            size = int(np.prod(shape, dtype=np.int64))
            if index < size:
                return name
            index -= size
        return "a BatchNorm statistic"


@dataclass(frozen=True)
class Order:
    """One task of one round."""

    kind: Literal["train", "evaluate"]
    round: int
    rounds: int
    arrays: Arrays = field(repr=False)
    # The round in which this site trained before; 0: none, or not known.
    previous: int = 0


class Worker(Protocol):
    """A site's ML worker, as a step sees it."""

    async def prepare(self, local: Local) -> Ready:
        """Hand over the rows and let it get ready; waits until a worker is attached."""

    async def work(self, order: Order) -> Arrays:
        """Let it train or evaluate; the same order again after a crash gets an answer again."""


def packed(arrays: Arrays) -> bytes:
    """Arrays as bytes of this site's own, to be kept."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpacked(kept: bytes) -> Arrays:
    """Inverse of packed."""
    with np.load(io.BytesIO(kept), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
