"""Federated averaging (FedAvg): W = sum of n_i/n · W_i."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonscale_worker.networks.model import Weights


def federated_average(updates: Sequence[tuple[Weights, int]]) -> Weights:
    """Mean of the sites' weights, each weighted by its number of rows."""
    if not updates or any(rows < 0 for _, rows in updates):
        raise ValueError("averaging needs at least one update, and no negative number of rows")
    total = sum(rows for _, rows in updates)
    if total == 0:
        raise ValueError("averaging needs at least one row")
    shapes = [w.shape for w in updates[0][0]]
    if any([w.shape for w in weights] != shapes for weights, _ in updates):
        raise ValueError("updates are of different shapes")
    average = [np.zeros_like(w) for w in updates[0][0]]
    for weights, rows in updates:
        for i, w in enumerate(weights):
            average[i] += (rows / total) * w
    return average
