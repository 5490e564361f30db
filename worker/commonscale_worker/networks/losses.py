"""Mean loss of a batch and its derivative by the network's raw outputs, one function a task.

Precision is the caller's: float32 in, float32 out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]
Targets = npt.NDArray[Any]  # class numbers or real values, one per row


def binary_cross_entropy(outputs: FloatArray, targets: Targets) -> tuple[float, FloatArray]:
    """Sigmoid cross-entropy: log(1 + e^z) - t·z, in a form that does not overflow."""
    z, t = outputs[:, 0], targets.astype(outputs.dtype, copy=False)
    loss = np.maximum(z, 0.0) - z * t + np.log1p(np.exp(-np.abs(z)))
    return float(loss.sum()) / len(z), ((sigmoid(z) - t) / len(z))[:, None]


def cross_entropy(outputs: FloatArray, targets: Targets) -> tuple[float, FloatArray]:
    """Softmax cross-entropy: log(sum e^z) - z[t]."""
    rows = np.arange(len(outputs))
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1)
    loss = np.log(totals) - shifted[rows, targets]
    gradient = exponentials / totals[:, None]
    gradient[rows, targets] -= 1.0
    gradient /= len(outputs)
    return float(loss.sum()) / len(outputs), gradient


def absolute_error(outputs: FloatArray, targets: Targets) -> tuple[float, FloatArray]:
    """Mean absolute error: |z - t|."""
    difference = outputs[:, 0] - targets.astype(outputs.dtype, copy=False)
    return float(np.abs(difference).sum()) / len(difference), (np.sign(difference) / len(difference))[:, None]


def sigmoid(z: FloatArray) -> FloatArray:
    """1 / (1 + e^-z), by the hyperbolic tangent, which does not overflow."""
    result: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * z))
    return result
