"""Roots of falling functions, one value per round."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonscale.statistics.power.falling_root import FallingRoot


def rounds(function: Callable[[float], float], search: FallingRoot) -> int:
    for number in range(1, 61):
        if search.take(function(search.x), precision=1e-9, least_gain=0.0):
            return number
    raise AssertionError(f"no root after 60 rounds, at {search.x}")


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(-0.9, 0.9))
def test_a_function_that_levels_off_at_both_ends(root: float, steepness: float, lean: float) -> None:
    """However far away and however steep: the root is found within the precision."""
    level = math.atanh(lean)
    search = FallingRoot(1.0, -1e9, 1e9, slope=steepness, step=1 / steepness)
    used = rounds(lambda x: lean - math.tanh(steepness * (x - root) + level), search)
    assert abs(search.x - root) <= 1e-8 * max(1.0, abs(root))
    assert used <= 45


@given(st.floats(0.01, 1e4))
def test_a_linear_fraction_takes_few_rounds(root: float) -> None:
    """1/x - 1/r is met once three values are known, but for the way there."""
    search = FallingRoot(0.005, 1e-3, 1e6, slope=1.0, step=0.01)
    assert rounds(lambda x: 1 / x - 1 / root, search) <= 20
    assert search.x == pytest.approx(root, rel=1e-8)


@pytest.mark.parametrize(("root", "end"), [(5.0, 2.0), (-7.0, -3.0)])
def test_a_root_beyond_the_range_is_the_end(root: float, end: float) -> None:
    """The candidate is held at the limit, and says so."""
    search = FallingRoot(1.0, -3.0, 2.0, slope=1.0, step=1.0)
    rounds(lambda x: root - x, search)
    assert search.x == end
    assert search.at_limit


def test_a_root_inside_is_not_at_the_limit() -> None:
    """A line needs three values: two to know it, one to see its root."""
    search = FallingRoot(1.0, -3.0, 2.0, slope=0.5, step=1.0)
    assert rounds(lambda x: 0.25 - x, search) == 3
    assert not search.at_limit
