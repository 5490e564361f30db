"""1/x for slots x in [1/κ, 1], by Chebyshev polynomials doubled in degree.

With u the line that sends [1/κ, 1] to [1, -1], R_n = T_n(u(x)), c_n = T_n(u(0)) and Q_n = (c_n - R_n)/x:
    R_2n = 2·R_n² - 1,   Q_2n = 2·Q_n·(c_n + R_n),   1/x = Q_n/c_n up to a relative error of 1/c_n.
c_n grows like exp(2n/√κ): log2(√κ) + 4 doublings of one level each give ten digits. While c_n is small, Q is carried
as it is; then divided by c_n, with factors α + β·R that are made one doubling ahead.

x·Q_n = c_n - R_n holds for whatever R the noise has made of T_n, so early noise does not grow.
"""

import itertools
from collections.abc import Iterator

from crypto.ckks.arithmetic import Arithmetic, H, with_levels

ERROR = 1e-10
_CARRY_WHOLE = 16.0


def line(kappa: float) -> tuple[float, float]:
    """(slope, offset) of u: what `inverse` takes is offset + slope·x."""
    return -2 / (1 - 1 / kappa), (1 + 1 / kappa) / (1 - 1 / kappa)


def constants(kappa: float, error: float = ERROR) -> Iterator[float]:
    """c_1, c_2, c_4, … until the error is small enough."""
    _, c = line(kappa)
    yield c
    while c < 1 / error:
        c = 2 * c * c - 1
        yield c


async def inverse(ops: Arithmetic[H], u: H, kappa: float, error: float = ERROR) -> H:
    """1/x in every slot, from u(x) in [-1, 1] in every slot, idle ones too."""
    c, *rest = constants(kappa, error)
    # Q_2 = 2·Q_1·(c_1 + R_1), where Q_1 = -slope is constant; the factor waits for the first division.
    factor = -2 * line(kappa)[0]
    (u,) = await with_levels(ops, 1, [u])
    q, r = await ops.add(u, c), await _doubled(ops, u)
    c = rest.pop(0)
    while c < _CARRY_WHOLE:
        q, r = await with_levels(ops, 1, [q, r])
        double_sum: H = await _twice(ops, await ops.add(r, c))
        q = await ops.mul(q, double_sum)
        r = await _doubled(ops, r)
        c = rest.pop(0)
    (r,) = await with_levels(ops, 1, [r])
    if not rest:
        return await ops.mul(q, factor / c)
    f = await _scaled(ops, r, 2 * factor * c / rest[0], 2 * factor / rest[0])
    for c, doubled in itertools.pairwise(rest):
        r = await _doubled(ops, r)
        q, f, r = await with_levels(ops, 1, [q, f, r])
        q = await ops.mul(q, f)
        f = await _scaled(ops, r, 2 * c * c / doubled, 2 * c / doubled)
    q, f = await with_levels(ops, 1, [q, f])
    return await ops.mul(q, f)


async def _doubled(ops: Arithmetic[H], r: H) -> H:
    """T_2n = 2·T_n² - 1."""
    return await ops.sub(await _twice(ops, await ops.mul(r, r)), 1.0)


async def _twice(ops: Arithmetic[H], a: H) -> H:
    return await ops.add(a, a)


async def _scaled(ops: Arithmetic[H], r: H, alpha: float, beta: float) -> H:
    """Α + β·R."""
    return await ops.add(await ops.mul(r, beta), alpha)
