"""Polynomials modulo t = 65537, one a slot, all slots at once. Arrays run [coefficient or point, …, slot].

from_roots   Π (x - z_i), without its leading 1
interpolate  the polynomial of degree below d through d points, by Newton's divided differences:
             f[i…j] = (f[i+1…j] - f[i…j-1]) / (z_j - z_i)
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from crypto.apsi.parameters import PLAIN_MODULUS

Integers = NDArray[np.int64]


def from_roots(roots: Integers) -> Integers:
    """The coefficients of x^0 … x^(d-1) of Π (x - z_i); that of x^d is 1."""
    made = np.zeros_like(roots)
    made[0] = _reduced(PLAIN_MODULUS - roots[0])
    for degree in range(1, len(roots)):
        _times_linear(made, degree, roots[degree], leading=1)
    return made


def interpolate(points: Integers, values: Integers) -> Integers:
    """The coefficients of x^0 … x^(d-1) of L with L(z_i) = y_i; the z_i of a slot are different."""
    inverse = _inverses()
    newton = values.copy()
    for j in range(1, len(points)):
        # Plus t: a difference is not negative before it is reduced or looked up.
        rise = newton[j:] - newton[j - 1 : -1] + PLAIN_MODULUS
        newton[j:] = _reduced(_reduced(rise) * inverse[points[j:] - points[:-j] + PLAIN_MODULUS])
    made = np.zeros_like(values)
    made[0] = newton[-1]
    for degree in range(1, len(points)):
        at = len(points) - 1 - degree
        _times_linear(made, degree, points[at], leading=0)
        made[0] = _reduced(made[0] + newton[at])
    return made


def powers(x: Integers, count: int) -> Integers:
    """x^1 … x^count."""
    made = np.empty((count, *x.shape), dtype=np.int64)
    made[0] = x
    for k in range(1, count):
        made[k] = _reduced(made[k - 1] * x)
    return made


def _times_linear(made: Integers, degree: int, root: Integers, leading: int) -> None:
    """In place: a polynomial with coefficients up to x^(degree-1), and `leading` at x^degree, times (x - root)."""
    negative = _reduced(PLAIN_MODULUS - root)
    made[degree] = leading * negative + made[degree - 1] if leading else made[degree - 1]
    made[1:degree] = made[1:degree] * negative + made[: degree - 1]
    made[0] *= negative
    made[: degree + 1] = _reduced(made[: degree + 1])


def _reduced(values: Integers) -> Integers:
    """Modulo 2^16 + 1: low half less high half. For 0 … 2^32 + 2^16; much faster than the remainder of a division."""
    made = (values & 0xFFFF) - (values >> 16)
    made += (made < 0) * np.int64(PLAIN_MODULUS)
    return made


@lru_cache(maxsize=1)
def _inverses() -> Integers:
    """1/z for z = -t … t, at z + t."""
    powers_of_3: Integers = np.ones(1, dtype=np.int64)  # 3 generates the group
    while len(powers_of_3) < PLAIN_MODULUS - 1:
        step = pow(3, len(powers_of_3), PLAIN_MODULUS)
        powers_of_3 = np.concatenate([powers_of_3, _reduced(powers_of_3 * step)])
    table = np.zeros(PLAIN_MODULUS, dtype=np.int64)
    table[powers_of_3] = np.roll(powers_of_3[::-1], 1)
    return np.concatenate([table, table])
