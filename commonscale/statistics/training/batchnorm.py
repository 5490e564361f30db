"""Federated BatchNorm: the running statistics of a pooled batch, from sums of the sites.

Algorithm 2 of "Federated BatchNorm".

With d = u - m for all values u of a channel in the round's batches, where m is the running mean that all sites have:
each site adds S1 = Σ d, S2 = Σ d², and once per layer N, the number of values. Then

    mean = S1 / N,   var = S2 / N - mean²
    m += β · mean,   v = (1 - β) · v + β · N / (N - 1) · var

With t steps in a round the statistics stay fixed within it, and β becomes 1 - (1 - β)^t.

Differs from the paper: line 10 is written in S1 and S2, which takes batches of different sizes and needs no site's own
mean; expanded around 0 instead of m it would lose all digits where activations are far from 0. A round may have
several steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """A BatchNorm layer: its name, number of channels, and the weight of a new batch (torch's `momentum`)."""

    name: str
    channels: int
    momentum: float


@dataclass(frozen=True)
class Statistics:
    """Running means and variances of all layers, one after the other."""

    mean: Floats
    variance: Floats

    @classmethod
    def initial(cls, channels: int) -> "Statistics":
        """0 and 1."""
        return cls(np.zeros(channels), np.ones(channels))


def updated(layers: Sequence[Layer], before: Statistics, sums: Floats, steps: int) -> Statistics:
    """The statistics after a round; `sums` has S1 and S2 of all channels, then N of each layer."""
    shift, variance, n = batch_moments(layers, sums)
    # Unbiased.
    return moved(layers, before, shift, variance * (n / np.maximum(n - 1.0, 1.0)), n > 0, steps)


def batch_moments(layers: Sequence[Layer], sums: Floats) -> tuple[Floats, Floats, Floats]:
    """Of each channel: mean of d, (biased) variance, and N; the mean of no values is 0."""
    widths = [layer.channels for layer in layers]
    first, second, counts = np.split(sums, [sum(widths), 2 * sum(widths)])
    n = np.repeat(counts, widths)
    safe = np.maximum(n, 1.0)
    mean = first / safe
    return mean, np.maximum(second / safe - mean * mean, 0.0), n


def moved(
    layers: Sequence[Layer], before: Statistics, shift: Floats, variance: Floats, seen: NDArray[np.bool_], steps: int
) -> Statistics:
    """The statistics, moved towards those of a batch; a layer that no row came through stays as it is."""
    # By multiplication, which gives the same digits on every machine.
    betas = [1.0 - math.prod([1.0 - layer.momentum] * steps) for layer in layers]
    beta = np.where(seen, np.repeat(betas, [layer.channels for layer in layers]), 0.0)
    return Statistics(before.mean + beta * shift, (1.0 - beta) * before.variance + beta * variance)
