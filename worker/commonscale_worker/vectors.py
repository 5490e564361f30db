"""Tensors as one vector and back, in their order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]
Shapes = dict[str, tuple[int, ...]]


def shapes(tensors: Mapping[str, Array]) -> Shapes:
    """Names and shapes, in order."""
    return {name: tuple(np.shape(tensor)) for name, tensor in tensors.items()}


def pack(tensors: Mapping[str, Array], dtype: str) -> Array:
    """All numbers of all tensors, one after the other."""
    flat = [np.asarray(tensor, dtype).reshape(-1) for tensor in tensors.values()]
    return np.concatenate(flat) if flat else np.zeros(0, dtype)


def unpack(vector: Array, described: Shapes) -> Tensors:
    """Tensors of these shapes, as copies that may be changed."""
    sizes = [math.prod(shape) for shape in described.values()]
    if vector.ndim != 1 or len(vector) != sum(sizes):
        raise ValueError(f"a vector of shape {vector.shape} does not hold {sum(sizes)} numbers")
    ends = np.cumsum(sizes)
    return {
        name: vector[end - size : end].reshape(shape).copy()
        for (name, shape), size, end in zip(described.items(), sizes, ends)
    }
