"""One local epoch: what a site does between two averages.

The optimizer begins anew in every call: a site keeps no state between rounds, and weights are all that travels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commonscale_worker.networks.losses import FloatArray, Targets
from commonscale_worker.networks.model import Architecture, Weights, gradients


@dataclass(frozen=True)
class Adam:
    """Adam with its usual constants."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7


@dataclass(frozen=True)
class SGD:
    """Plain gradient descent: w -= learning rate · gradient."""

    learning_rate: float = 1e-2


@dataclass(frozen=True)
class Training:
    """How a site trains."""

    batch_rows: int = 32
    optimizer: Adam | SGD = Adam()


def local_epoch(
    architecture: Architecture,
    weights: Weights,
    x: FloatArray,
    y: Targets,
    training: Training,
    rng: np.random.Generator,
) -> Weights:
    """New weights after every row was used once, in batches of a random order; the given weights stay as they are."""
    flat = np.concatenate([w.ravel() for w in weights])
    gradient = np.empty_like(flat)
    current, out = _views(flat, weights), _views(gradient, weights)
    step = _Step(training.optimizer, flat)
    order = rng.permutation(len(x))
    for start in range(0, len(order), training.batch_rows):
        batch = order[start : start + training.batch_rows]
        gradients(architecture, current, x[batch], y[batch], out, rng)
        step.apply(flat, gradient)
    return current


def _views(flat: FloatArray, like: Weights) -> Weights:
    # Shaped as `like`, in the memory of one vector: an optimizer step is a few operations, not a few for each layer.
    views, start = [], 0
    for w in like:
        views.append(flat[start : start + w.size].reshape(w.shape))
        start += w.size
    return views


class _Step:
    """Moments of one epoch."""

    def __init__(self, optimizer: Adam | SGD, like: FloatArray) -> None:
        self.optimizer = optimizer
        self.first, self.second, self.count = np.zeros_like(like), np.zeros_like(like), 0
        self.scratch = np.empty_like(like)

    def apply(self, flat: FloatArray, gradient: FloatArray) -> None:
        """Change the weights in place."""
        o = self.optimizer
        if isinstance(o, SGD):
            flat -= o.learning_rate * gradient
            return
        self.count += 1
        change = self.scratch
        self.first *= o.beta1
        self.first += np.multiply(gradient, 1.0 - o.beta1, out=change)
        np.multiply(gradient, gradient, out=change)
        change *= 1.0 - o.beta2
        self.second *= o.beta2
        self.second += change
        np.sqrt(self.second, out=change)
        change += o.epsilon
        np.divide(self.first, change, out=change)
        change *= o.learning_rate * math.sqrt(1.0 - o.beta2**self.count) / (1.0 - o.beta1**self.count)
        flat -= change
