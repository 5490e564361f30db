"""Axes: every value has a position, in order, and gets it back; counts at positions are counts of values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonscale.axis import KEYS, Axis
from commonscale.ordering import to_keys
from commonscale.sources.cuts import counts_up_to
from commonscale.sources.queries import Cuts
from commonscale.statistics.axes import Decimals
from commonscale.statistics.quantiles import MEDIAN, RankSearch
from tests.one_table import OneTable

decimals = st.builds(lambda whole, places: whole / 10**places, st.integers(-(10**9), 10**9), st.integers(0, 6))
numbers = st.one_of(
    decimals,
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-20, 20).map(float),
    st.sampled_from([0.0, -0.0, 1e300, -1e300, 5e-324, 0.1 + 0.2, 2.0**50, 2.0**50 - 1, -(2.0**49), 1e-7, 1e-6]),
)
columns = st.one_of(
    *(st.lists(each, min_size=1, max_size=30) for each in (decimals, st.integers().map(float), numbers))
)


def axis_of(values: np.ndarray) -> Axis:
    (axis,) = OneTable([values]).axes().axes
    return axis


@given(column=columns)
def test_values_have_positions_in_order(column: list[float]) -> None:
    """And the positions give the values back, to the last bit; −0.0 is 0.0."""
    values = np.array(column)
    axis = axis_of(values)
    positions = axis.positions(values)
    np.testing.assert_array_equal(axis.values(positions), values)
    assert np.argsort(values, kind="stable").tolist() == np.argsort(positions, kind="stable").tolist()
    assert positions.max() < 1 << axis.bits


@given(column=columns, data=st.data())
def test_counts_at_positions_are_counts_of_values(column: list[float], data: st.DataObject) -> None:
    """At every position, also those of no value, and beyond both ends."""
    values = np.array(column)
    axis = axis_of(values)
    ordered, places = np.sort(to_keys(values)), axis.positions(values).tolist()
    top = 1 << axis.bits
    first, step = data.draw(st.integers(-3, top + 3)), data.draw(st.integers(1, max(1, top // 4)))
    (found,) = counts_up_to([Cuts(0, first, step, 5)], ordered, axis)
    assert found.tolist() == [sum(place <= first + number * step for place in places) for number in range(5)]


@pytest.mark.parametrize(
    ("column", "places", "bits"),
    [
        ([1.0, 2.0, 3.0], 0, 2),
        ([17.25, 17.5], 2, 5),
        ([-1.0, 1.0], 0, 1),
        ([-1.0, -4.0], 0, 2),
        ([5.0, 5.0], 0, 0),
        ([0.0, 1.0], 0, 1),
        ([0.1, 0.123456], 6, 6),
        # Too many decimals, or too many digits for them.
        ([0.5, 0.1234567], None, None),
        ([2.0**51, 1.0], None, None),
        ([1e12, 0.000001], None, None),
    ],
)
def test_the_fewest_digits(column: list[float], places: int | None, bits: int | None) -> None:
    """Those of the last decimal, and of them those that differ."""
    axis = axis_of(np.array(column))
    assert axis.decimals == places
    if bits is not None:
        assert axis.bits == bits


def test_a_column_without_values_has_nothing_to_search() -> None:
    """It is known not to be there."""
    found = OneTable([np.empty(0), np.array([2.0])]).axes()
    assert found.present == (False, True)
    assert found.axes[0].bits == 0


@given(parts=st.lists(st.lists(numbers, max_size=5), min_size=1, max_size=4))
def test_answers_of_parts_make_those_of_all(parts: list[list[float]]) -> None:
    """As the OR over sites does."""
    query = Decimals(("x",))
    (together,) = query.fold([[np.array([number for part in parts for number in part])]])
    (apart,) = query.fold([[np.array(part, dtype=float)] for part in parts])
    np.testing.assert_array_equal(together, apart)


def test_counts_far_from_an_answer_stay_coarse() -> None:
    """Of ages with a few rare ones: no round asks for more than sixteenths of where an answer may lie."""
    ages = np.concatenate([np.random.default_rng(1).integers(18, 80, 1000).astype(float), [1.0, 103.0]])
    axes, keys = OneTable([ages]).axes().axes, np.sort(to_keys(ages))
    search = RankSearch(np.array([len(ages)], dtype=np.uint64), [MEDIAN], 256, 4, axes=axes)
    asked = set()
    while search:
        query = search.query(("age",))
        assert all(cuts.count <= 15 for cuts in query.cuts)
        asked |= {cuts.first + number * cuts.step for cuts in query.cuts for number in range(cuts.count)}
        search.take(search.reached(np.concatenate(counts_up_to(query.cuts, keys, query.axis(0)))))
    assert search.values() == np.median(ages)
    assert len(asked) < 25 < 1 << axes[0].bits


def test_without_knowledge_positions_are_keys() -> None:
    """The search that needs no axis."""
    values = np.array([-1e300, -1.0, -0.0, 0.0, 5e-324, 1.0, 1e300])
    assert KEYS.bits == 64
    np.testing.assert_array_equal(KEYS.positions(values), to_keys(values))
    np.testing.assert_array_equal(KEYS.keys(KEYS.positions(values)), to_keys(values))
