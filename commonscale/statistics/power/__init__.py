"""Federated power transforms: the pooled maximum-likelihood λ of every column, from the likelihood's derivative.

The federated YJ transformation of section IV of "Bridging Local and Federated Data Normalization in FL", after
Marchand et al. (SecureFedYJ):
1. Powers of two above the largest positive and the largest negative values are found, then count, mean and variance.
2. A round asks for five sums per column at one candidate for λ (power.terms); they give the derivative of the
   log-likelihood there, and everyone the same next candidate (power.search). About six rounds find λ.
3. The last round's sums are also the mean and variance of the transformed column.

Box-Cox, which the paper does not have, is the same search for values above zero; step 1 finds the powers of two around
the smallest and the largest value, and that all are above zero.

Differs from SecureFedYJ: a bracketed superlinear search on the derivative instead of a bisection on its sign; sums
instead of signs are revealed.

Reveals: for each column the count, mean, variance, the powers of two, and at each candidate the pooled mean and
variance of the transformed values and their covariance with the derivative by λ; to all sites and the coordinator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonscale.concurrency import offload
from commonscale.errors import OutOfRange, ProtocolError
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import Folded
from commonscale.statistics import bounds
from commonscale.statistics.moments import Moments, is_constant, moments
from commonscale.statistics.power.search import ColumnSearch
from commonscale.statistics.power.terms import Known, Point, terms

MAX_ROUNDS = 60


@dataclass(frozen=True)
class LikelihoodTerms(Folded):
    """Five rows: the sums that give the derivative of the log-likelihood at one point per column."""

    title = "sums of transformed values at candidates for lambda"
    rows = ("transformed sum", "transformed sum of squares", "slope", "product", "sum of logarithms")

    points: tuple[Point, ...]

    def terms(self, column: int, values: Floats) -> Floats:
        """The five sums over these values."""
        return terms(values, self.points[column])


@dataclass(frozen=True)
class Powers:
    """λ per column; whether floats could not follow the likelihood to its best; moments after the transformation."""

    lambdas: Floats
    limited: tuple[bool, ...]
    moments: Moments


async def powers(
    pool: Pool, family: str, mean: Reveal, variance: Reveal, candidates: Reveal, columns: Sequence[str], method: str
) -> Powers:
    """The likeliest λ of every column."""
    if family == "yeo-johnson":  # 1.
        limits = [side.bounds * side.present for side in await bounds.sides(pool, columns)]
    else:
        limits = list(await bounds.around(pool, columns))
    found = await moments(pool, mean, variance, columns, method)
    known = [*map(_known, columns, *_rows(found), *limits, [family] * len(columns))]
    searches = [ColumnSearch(column) for column in known]
    number = 0
    while left := [index for index, search in enumerate(searches) if not search.done]:  # 2.
        names = tuple(columns[index] for index in left)
        if number == MAX_ROUNDS:
            listed = ", ".join(map(repr, names))
            raise ProtocolError(f"The likeliest lambda of {listed} was not found.", "Leave these columns out.")
        number += 1
        query = LikelihoodTerms(names, tuple(searches[index].point for index in left))
        totals = await pool.sum(candidates, query, method=method, number=number)
        for index, *sums in zip(left, *totals, strict=True):
            await offload(searches[index].take, sums)
    means, variances = zip(*(search.moments for search in searches), strict=True)  # 3.
    lambdas, limited = np.array([search.lam for search in searches]), tuple(search.limited for search in searches)
    return Powers(lambdas, limited, Moments(tuple(columns), found.count, means, variances))


def _rows(found: Moments) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    assert found.count is not None
    return found.count, found.mean, found.variance


def _known(column: str, count: int, mean: float, variance: float, first: float, second: float, family: str) -> Known:
    """What everyone knows of a column; one without spread is left as it is by Yeo-Johnson, as scikit-learn does."""
    flat = not count or is_constant(variance, mean, count)
    if family == "yeo-johnson":
        return Known(count, mean, 0.0 if flat else variance, float(first), float(second))
    if count and flat:
        raise OutOfRange(
            f"All values of column {column!r} are the same: no power of Box-Cox is likelier than another.",
            "Leave it out, or use family = 'yeo-johnson', which leaves it as it is.",
        )
    return Known(count, mean, 0.0 if flat else variance, float(second), 0.0, shift=0, bound_low=float(first))
