"""Deals the rows out to clients: IID, or with quantity, label or feature imbalance (Li et al., Table I of the paper).

Which level is high: in Li et al.'s method, and in the paper's own text, a smaller Dirichlet concentration β is MORE
imbalanced. The headings of the paper's Table I have β = 5 under "high" and β = 0.5 under "low", against both. Here
*high* always means the more imbalanced: β = 0.5; *low* is β = 5. For feature noise the table's reading is kept: σ =
0.7 high, σ = 0.3 low.

Quantity: the clients' shares of all rows are one draw of Dir(β). Label: one draw for each class; a real-valued target
counts by its tenth of the training distribution. A client's shares are the same in its training, validation and test
rows. Li et al. draw again until everyone has ten rows, which with 30 clients of 409 rows would hardly ever end: here
the largest clients hand rows over until everyone has five training rows (MIN_ROWS).

Feature: rows are dealt out equally, then client i of P adds Gaussian noise of variance σ·i/P to every value of all
its rows, as in Li et al. They add it to pixels between 0 and 1; the columns here range from 0.0001 to 1000, where one
σ would bury a column and be nothing to the next. So noise is in units of each column's standard deviation over all
training rows.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from commonscale_worker.networks.losses import FloatArray, Targets

from bench.normalization_study.data import Part, Split

MIN_ROWS = 5
TARGET_GROUPS = 10
IntArray: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Imbalance:
    """A way to deal rows out; the parameter is β of the Dirichlet draw or σ of the noise."""

    kind: str
    level: str = ""
    parameter: float = 0.0


IID = Imbalance("iid")
HIGH = (Imbalance("quantity", "high", 0.5), Imbalance("label", "high", 0.5), Imbalance("feature", "high", 0.7))
LOW = (Imbalance("quantity", "low", 5.0), Imbalance("label", "low", 5.0), Imbalance("feature", "low", 0.3))


def partition(split: Split, imbalance: Imbalance, clients: int, rng: np.random.Generator) -> list[Split]:
    """Every row of every part to exactly one client; every client gets training rows."""
    groups = [_groups(part, split.train.y, by_label=imbalance.kind == "label") for part in split.parts()]
    shares = _shares(imbalance, 1 + max(int(g.max()) for g in groups), clients, rng)
    owned = [assign(g, shares, rng) for g in groups]
    owned[0] = top_up(owned[0], min(MIN_ROWS, len(split.train) // clients), rng)
    dealt = [
        Split(*(part.take(rows[i]) for part, rows in zip(split.parts(), owned, strict=True))) for i in range(clients)
    ]
    return _noisy(dealt, split.train.x.std(axis=0), imbalance.parameter, rng) if imbalance.kind == "feature" else dealt


def assign(groups: IntArray, shares: FloatArray, rng: np.random.Generator) -> list[IntArray]:
    """Row numbers of each client: its share of each group, rounded up or down at random (systematic sampling)."""
    owners = np.empty(len(groups), dtype=np.intp)
    for group, share in enumerate(shares):
        rows = rng.permutation(np.flatnonzero(groups == group))
        points = (np.arange(len(rows)) + rng.random()) / max(len(rows), 1)
        ends = np.cumsum(share)
        owners[rows] = np.searchsorted(ends / ends[-1], points, side="right")
    return [np.flatnonzero(owners == client) for client in range(shares.shape[1])]


def top_up(owned: list[IntArray], minimum: int, rng: np.random.Generator) -> list[IntArray]:
    """The largest client hands one random row to the smallest until everyone has the minimum."""
    owned = list(owned)
    while min(len(rows) for rows in owned) < minimum:
        sizes = [len(rows) for rows in owned]
        giver, taker = int(np.argmax(sizes)), int(np.argmin(sizes))
        place = int(rng.integers(sizes[giver]))
        owned[taker] = np.append(owned[taker], owned[giver][place])
        owned[giver] = np.delete(owned[giver], place)
    return owned


def _groups(part: Part, train_y: Targets, *, by_label: bool) -> IntArray:
    if not by_label:
        return np.zeros(len(part), dtype=np.intp)
    if np.issubdtype(part.y.dtype, np.integer):
        return part.y.astype(np.intp)
    inner = np.quantile(train_y, np.arange(1, TARGET_GROUPS) / TARGET_GROUPS)
    return np.searchsorted(inner, part.y).astype(np.intp)


def _shares(imbalance: Imbalance, groups: int, clients: int, rng: np.random.Generator) -> FloatArray:
    if imbalance.kind in {"quantity", "label"}:
        return rng.dirichlet(np.full(clients, imbalance.parameter), size=groups)
    return np.full((groups, clients), 1.0 / clients)


def _noisy(clients: list[Split], spread: FloatArray, sigma: float, rng: np.random.Generator) -> list[Split]:
    def add(part: Part, i: int) -> Part:
        deviation = np.sqrt(sigma * i / len(clients)) * spread
        return Part(part.x + rng.normal(size=part.x.shape) * deviation, part.y)

    return [Split(*(add(part, i) for part in client.parts())) for i, client in enumerate(clients, start=1)]
