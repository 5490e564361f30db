"""Deals the rows out to sites that differ as much as their categories let them.

The paper's sites differ in categorical values, sizes and label distributions, "maximizing divergence"; how, it does
not say. Here the largest group of rows is cut in two until there is a group for each site. A cut takes one categorical
column, orders its values by their share of positive rows, and sends the values before some place one way and the rest
the other way: no value of that column is at both sides. Of all columns and places (with at least a fifth of the
group on either side) the cut is made where the two sides diverge most: the sum, over all categorical columns and the
label, of the total variation distance between their distributions. So values, labels and sizes all differ; nothing is
random, every row has one site.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bench.encoding_study.data import Rows, Table

SITES = 4
SMALLEST_SHARE = 0.2  # of the group that is cut
Mask = npt.NDArray[np.bool_]


Codes = npt.NDArray[np.int64]


def partition(table: Table, sites: int = SITES) -> list[Rows]:
    """Row numbers of each site, the largest site first."""
    codes = _codes(table)
    groups: list[Rows] = [np.arange(len(table), dtype=np.intp)]
    while len(groups) < sites:
        groups.sort(key=len, reverse=True)
        group = groups.pop(0)
        some = codes[group]
        side = max(_cuts(some), key=lambda mask: _divergence(some, mask))
        groups += [group[side], group[~side]]
    return sorted(groups, key=len, reverse=True)


def divergence(table: Table, side: Mask) -> float:
    """Total variation distances between the rows of one side and the others, over all categories and the label."""
    return _divergence(_codes(table), side)


def _codes(table: Table) -> Codes:
    """Every category as a number, in the order of the texts; the label is the last column."""
    columns = [np.unique(column, return_inverse=True)[1] for column in table.categories.T]
    return np.column_stack([*columns, table.labels]).astype(np.int64)


def _divergence(codes: Codes, side: Mask) -> float:
    return sum(_distance(column[side], column[~side]) for column in codes.T)


def _distance(a: Codes, b: Codes) -> float:
    length = int(max(a.max(), b.max())) + 1
    shares = [np.bincount(codes, minlength=length) / len(codes) for codes in (a, b)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def _cuts(codes: Codes) -> Iterator[Mask]:
    for column in codes[:, :-1].T:
        values, present = np.unique(column, return_inverse=True)
        rates = np.bincount(present, weights=codes[:, -1]) / np.bincount(present)
        ranks = np.argsort(np.argsort(rates, kind="stable"))[present]
        for place in range(1, len(values)):
            side: Mask = ranks < place
            if SMALLEST_SHARE <= side.mean() <= 1 - SMALLEST_SHARE:
                yield side
