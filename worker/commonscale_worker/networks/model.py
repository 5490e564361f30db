"""Fully connected network with ReLU: its weights, its outputs, its loss and the gradient of it.

Weights are a plain list of arrays, W1, b1, W2, b2, …: they can be averaged, compared and sent as they are. Randomness
is an argument everywhere: the same generator gives the same network.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from commonscale_worker.networks.losses import FloatArray, Targets, absolute_error, binary_cross_entropy, cross_entropy

Weights = list[FloatArray]


class Task(enum.Enum):
    """What the outputs mean, and so which loss they have."""

    BINARY = "binary"
    MULTICLASS = "multiclass"
    REGRESSION = "regression"


LOSSES: dict[Task, Callable[[FloatArray, Targets], tuple[float, FloatArray]]] = {
    Task.BINARY: binary_cross_entropy,
    Task.MULTICLASS: cross_entropy,
    Task.REGRESSION: absolute_error,
}


@dataclass(frozen=True)
class Architecture:
    """Widths of the layers, and the share of each hidden layer's outputs that training drops."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    task: Task
    dropout: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.dropout and len(self.dropout) != len(self.hidden):
            raise ValueError("dropout needs one share for each hidden layer")

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the weights in their order."""
        widths = (self.inputs, *self.hidden, self.outputs)
        return [shape for a, b in itertools.pairwise(widths) for shape in ((a, b), (b,))]


def init(architecture: Architecture, rng: np.random.Generator, dtype: type[np.floating[Any]] = np.float32) -> Weights:
    """Glorot's uniform weights, zero biases. Training goes on in the precision that the weights begin with."""
    weights: Weights = []
    for shape in architecture.shapes():
        limit = np.sqrt(6.0 / sum(shape)) if len(shape) == 2 else 0.0
        weights.append(rng.uniform(-limit, limit, shape).astype(dtype) if limit else np.zeros(shape, dtype))
    return weights


def outputs(weights: Weights, x: FloatArray) -> FloatArray:
    """Raw outputs of the last layer, without dropout."""
    a = x
    for layer in range(0, len(weights) - 2, 2):
        a = np.maximum(a @ weights[layer] + weights[layer + 1], 0.0)
    last: FloatArray = a @ weights[-2] + weights[-1]
    return last


def predict(architecture: Architecture, weights: Weights, x: FloatArray) -> Targets:
    """The likeliest class of each row, or its value."""
    z = outputs(weights, x)
    if architecture.task is Task.MULTICLASS:
        return np.asarray(z.argmax(axis=1))
    return np.asarray(z[:, 0] > 0.0, dtype=np.int64) if architecture.task is Task.BINARY else z[:, 0]


def loss(architecture: Architecture, weights: Weights, x: FloatArray, y: Targets) -> float:
    """Mean loss over the rows, without dropout."""
    return LOSSES[architecture.task](outputs(weights, x), y)[0]


def gradients(
    architecture: Architecture,
    weights: Weights,
    x: FloatArray,
    y: Targets,
    out: Weights,
    rng: np.random.Generator | None = None,
) -> float:
    """Loss of a batch; its gradient is written to `out`, shaped as the weights. A generator turns dropout on."""
    activations, masks = [x], []
    for layer in range(0, len(weights) - 2, 2):
        a = activations[-1] @ weights[layer]
        a += weights[layer + 1]
        np.maximum(a, 0.0, out=a)
        masks.append(_mask(architecture, layer // 2, a, rng))
        activations.append(a)
    value, delta = LOSSES[architecture.task](activations[-1] @ weights[-2] + weights[-1], y)
    for layer in range(len(weights) - 2, -1, -2):
        np.matmul(activations[layer // 2].T, delta, out=out[layer])
        delta.sum(axis=0, out=out[layer + 1])
        if layer:
            delta = delta @ weights[layer].T
            delta *= activations[layer // 2] > 0.0
            mask = masks[layer // 2 - 1]
            if mask is not None:
                delta *= mask
    return value


def _mask(architecture: Architecture, layer: int, a: FloatArray, rng: np.random.Generator | None) -> FloatArray | None:
    # Inverted dropout: what is kept is scaled up in training, so that nothing changes in use.
    share = architecture.dropout[layer] if architecture.dropout else 0.0
    if rng is None or share == 0.0:
        return None
    mask: FloatArray = (rng.random(a.shape, dtype=np.float32) >= share).astype(a.dtype)
    mask *= 1.0 / (1.0 - share)
    a *= mask
    return mask
