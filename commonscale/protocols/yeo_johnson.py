"""Federated Yeo-Johnson: the pooled maximum-likelihood λ of every column, by the sign of the likelihood's derivative.

The federated YJ transformation of section IV of "Bridging Local and Federated Data Normalization in FL", after
Marchand et al. (SecureFedYJ):
1. Bounds of the magnitudes are found (bounds), then by secure sums the counts, means and the sums of sign(x)·log1p|x|.
2. A round asks for the derivative of the log-likelihood at 31 candidates of every column: secure sums of y, y², ∂y/∂λ
   and y·∂y/∂λ, each less its value at the mean of x. The derivative's sign keeps one of 32 parts.
3. When λ is known to 1e-10, one more secure sum gives the moments of the transformed columns.

Differs from SecureFedYJ: 31 candidates a round instead of one; sums instead of signs are revealed.

Reveals: for each column the count, mean, variance, the power of two above its largest magnitude, the sum of
sign(x)·log1p|x|, and the pooled second moments of its transformation at the candidates and at λ; to all sites and the
coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols import bounds, secure_sum
from commonscale.protocols.bounds import Bounds
from commonscale.protocols.extremes import TableExtremes
from commonscale.protocols.quantiles import OrderedTable
from commonscale.protocols.secure_sum import SecureSum
from commonscale.transforms import yeo_johnson
from commonscale.transforms.moments import Moments, mean_of, variance_from_deviations
from commonscale.transforms.ordering import Floats
from commonscale.transforms.scaler import is_constant
from commonscale.transforms.yeo_johnson import POINTS, Bracket


class Table(TableExtremes, OrderedTable):
    """A site's table, as far as this protocol needs it."""


# (scope, names of the sums, my numbers) to the sums: how either role adds.
Add = Callable[[str, Sequence[str], Callable[[], list[float]]], Awaitable[list[Fraction]]]


@dataclass(frozen=True)
class _Known:
    """What everyone knows after step 1, a value a column."""

    count: list[Fraction]
    mean: list[float]
    logs: list[float]
    variance: list[float]


async def party(
    ch: Channel, table: Table, columns: Sequence[str], way: SecureSum, *, standardize: bool
) -> tuple[Floats, Moments | None]:
    """Role of a site: returns λ and, if asked for, the moments after the transformation."""
    found = await bounds.party(ch.scope("bounds"), table, columns, ())  # 1.
    values = await offload(table.ordered, columns)

    async def add(scope: str, names: Sequence[str], mine: Callable[[], list[float]]) -> list[Fraction]:
        return await secure_sum.party(ch.scope(scope), way, names, await offload(mine))

    return await _search(add, found, columns, values, standardize)


async def coordinator(
    ch: Channel, columns: Sequence[str], way: SecureSum, *, standardize: bool
) -> tuple[Floats, Moments | None]:
    """Role of the coordinator: adds, and follows the same arithmetic."""
    found = await bounds.coordinator(ch.scope("bounds"), columns, ())

    async def add(scope: str, names: Sequence[str], _: Callable[[], list[float]]) -> list[Fraction]:
        return await secure_sum.coordinator(ch.scope(scope), way, len(names))

    return await _search(add, found, columns, [np.empty(0) for _ in columns], standardize)


async def _search(
    add: Add, found: Bounds, columns: Sequence[str], values: list[Floats], standardize: bool
) -> tuple[Floats, Moments | None]:
    known = await _first_sums(add, columns, values)
    brackets = {
        index: Bracket.around(float(found.bounds[index]))
        for index, (n, mean, variance) in enumerate(zip(known.count, known.mean, known.variance, strict=True))
        if n and not is_constant(variance, mean, int(n))
    }
    number = 0
    while any(not bracket.done() for bracket in brackets.values()):  # 2.
        number += 1
        await _narrow(add, f"search.{number}", columns, values, brackets, known)
    # Columns without spread are left as they are, as scikit-learn does.
    lambdas = np.array([brackets[i].middle if i in brackets else 1.0 for i in range(len(columns))])
    moments = await _moments(add, columns, values, lambdas, found, known) if standardize else None  # 3.
    return lambdas, moments


async def _first_sums(add: Add, columns: Sequence[str], values: list[Floats]) -> _Known:
    """Counts, means, sums of logarithms, and variances."""
    names = [f"{what} of column {column!r}" for column in columns for what in ("count", "sum", "sum of logarithms")]

    def first() -> list[float]:
        logs = (float((np.sign(x) * np.log1p(np.abs(x))).sum()) for x in values)
        return [number for x, log in zip(values, logs, strict=True) for number in (len(x), float(x.sum()), log)]

    totals = await add("mean", names, first)
    secure_sum.check_counts(columns, totals[0::3])
    count, mean = totals[0::3], [mean_of(n, s) for n, s in zip(totals[0::3], totals[1::3], strict=True)]
    names = [f"{what} of column {column!r}" for column in columns for what in ("deviation", "squared deviation")]

    def second() -> list[float]:
        parts = (x - m for x, m in zip(values, mean, strict=True))
        return [number for d in parts for number in (float(d.sum()), float(np.square(d).sum()))]

    spread = await add("variance", names, second)
    variance = [variance_from_deviations(n, d, s) for n, d, s in zip(count, spread[0::2], spread[1::2], strict=True)]
    return _Known(count, mean, [float(total) for total in totals[2::3]], variance)


async def _narrow(
    add: Add, scope: str, columns: Sequence[str], values: list[Floats], brackets: dict[int, Bracket], known: _Known
) -> None:
    """Step 2, one round for all columns that are not done."""
    candidates = {index: bracket.points() for index, bracket in brackets.items() if not bracket.done()}
    names = [f"a likelihood term of column {columns[i]!r}" for i in candidates for _ in range(4 * POINTS)]

    def mine() -> list[float]:
        return [
            number
            for i, points in candidates.items()
            for lam in points
            for number in yeo_johnson.terms(values[i], known.mean[i], brackets[i].bound, float(lam))
        ]

    totals = iter(map(float, await add(scope, names, mine)))
    for i, points in candidates.items():
        rising = []
        for lam in points:
            sums = next(totals), next(totals), next(totals), next(totals)
            n = float(known.count[i])
            rising.append(yeo_johnson.uphill(n, known.logs[i], brackets[i].bound, float(lam), sums))
        brackets[i].take(rising)


async def _moments(
    add: Add, columns: Sequence[str], values: list[Floats], lambdas: Floats, found: Bounds, known: _Known
) -> Moments:
    """Step 3: from deviations from the transformed mean, over a public scale, so that nothing leaves the range."""
    names = [f"{what} of transformed column {c!r}" for c in columns for what in ("deviation", "squared deviation")]
    centres = [mean if count else 0.0 for mean, count in zip(known.mean, known.count, strict=True)]

    def mine() -> list[float]:
        parts = (
            yeo_johnson.terms(x, centre, float(bound), float(lam))[:2]
            for x, centre, bound, lam in zip(values, centres, found.bounds, lambdas, strict=True)
        )
        return [number for pair in parts for number in pair]

    totals = await add("transformed", names, mine)
    means, variances = [], []
    for index, (centre, lam, n) in enumerate(zip(centres, lambdas, known.count, strict=True)):
        scale, _ = yeo_johnson.scales(float(found.bounds[index]), float(lam))
        d, dd = totals[2 * index : 2 * index + 2]
        at = float(yeo_johnson.transform(np.array([centre]), float(lam))[0])
        means.append(at + scale * mean_of(n, d))
        variances.append(scale * scale * variance_from_deviations(n, d, dd))
    return Moments(tuple(columns), tuple(int(n) for n in known.count), tuple(means), tuple(variances))
