"""Deals the rows out to sites that differ as much as their categories let them.

The paper's sites differ in categorical values, sizes and label distributions, "maximizing divergence"; how, it does
not say. Here the largest group of rows is cut in two until there is a group for each site. A cut takes one categorical
column, orders its values by their share of positive rows, and sends the values before some place one way and the rest
the other way: no value of that column is at both sides. Of all columns and places (with at least a fifth of the
group on either side) the cut is made where the two sides diverge most: the sum, over all categorical columns and the
label, of the total variation distance between their distributions. So values, labels and sizes all differ; nothing is
random, every row has one site.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bench.encoding_study.data import Rows, Table, Texts

SITES = 4
SMALLEST_SHARE = 0.2  # of the group that is cut
Mask = npt.NDArray[np.bool_]


def partition(table: Table, sites: int = SITES) -> list[Rows]:
    """Row numbers of each site, the largest site first."""
    groups: list[Rows] = [np.arange(len(table), dtype=np.intp)]
    while len(groups) < sites:
        groups.sort(key=len, reverse=True)
        group = groups.pop(0)
        some = table.take(group)
        side = max(_cuts(some), key=lambda mask: divergence(some, mask))
        groups += [group[side], group[~side]]
    return sorted(groups, key=len, reverse=True)


def divergence(table: Table, side: Mask) -> float:
    """Total variation distances between the rows of one side and the others, over all categories and the label."""
    columns = [*table.categories.T, table.labels.astype(object)]
    return sum(_distance(column[side], column[~side]) for column in columns)


def _distance(a: Texts, b: Texts) -> float:
    values, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
    shares = [np.bincount(c, minlength=len(values)) / len(c) for c in (codes[: len(a)], codes[len(a) :])]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def _cuts(table: Table) -> Iterator[Mask]:
    for column in table.categories.T:
        values, codes = np.unique(column, return_inverse=True)
        rates = np.bincount(codes, weights=table.labels) / np.bincount(codes)
        ranks = np.argsort(np.argsort(rates, kind="stable"))[codes]
        for place in range(1, len(values)):
            side: Mask = ranks < place
            if SMALLEST_SHARE <= side.mean() <= 1 - SMALLEST_SHARE:
                yield side
