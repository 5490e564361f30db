"""What every source must do, on every engine: answers as plain Python has them, refusals that show no cell."""

import datetime as dt
import math
import threading
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonscale.axis import Axis
from commonscale.categories import TextRules, canonical
from commonscale.errors import DataChanged, DataError, InfiniteValues, MissingColumn, WrongType
from commonscale.sources.queries import (
    CountsAt,
    Cuts,
    Deviations,
    Extremes,
    Frequencies,
    Query,
    RowCount,
    Sums,
    TargetSums,
)
from commonscale.sources.source import check
from tests.contract.sources import (
    ENGINES,
    Engine,
    Roots,
    Signs,
    counts_at,
    frequency,
    key,
    present,
    target_sum,
)

NAN = float("nan")
INFINITY = float("inf")
ALL_KEYS = (1 << 64) - 1
RULES = TextRules()
HOSTILE = [
    'odd "name"', "x y", "it's", "a;b", 'x"; DROP TABLE source; --', "größe 身長 ∑", "select", "a.b", "c0", "c1", "v",
    "x", "source", "texts", "{x}", "%s", "*", "\\",
]  # fmt: skip


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return ENGINES[request.param](tmp_path)


ordinary = st.one_of(st.floats(-1e12, 1e12), st.sampled_from([0.0, -0.0, 1e-9, 1.0]))
extreme = st.sampled_from([1e300, -1e300, 1e-300, -1e-300, 5e-324, -5e-324, 2.2e-308, 1.7976931348623157e308, 3.0])
mostly_zero = st.sampled_from([0.0, 0.0, 0.0, 0.0, -0.0, 7.5])
missing = st.sampled_from([None, NAN])


@st.composite
def columns_of_numbers(draw: st.DrawFn) -> list[list[Any]]:
    """Three columns of one length, each with numbers of another kind, all with gaps."""
    rows = draw(st.integers(1, 25))
    kinds = [st.one_of(kind, missing) for kind in (ordinary, extreme, mostly_zero)]
    return [draw(st.lists(kind, min_size=rows, max_size=rows)) for kind in kinds]


def table_of(columns: Sequence[Sequence[Any]]) -> tuple[dict[str, Sequence[Any]], tuple[str, ...]]:
    cells = {f"column {place}": column for place, column in enumerate(columns)}
    return cells, tuple(cells)


def assert_sums(got: np.ndarray, terms: Sequence[Sequence[float]]) -> None:
    """As near as compensated sums are; beyond float64 not finite."""
    for found, numbers in zip(got, terms, strict=True):
        magnitude = sum(abs(number) for number in numbers)
        if math.isinf(magnitude):
            # Terms of both signs may cancel; with one sign nothing can.
            assert not math.isfinite(found) or min(numbers) < 0 < max(numbers)
        else:
            assert abs(found - math.fsum(numbers)) <= 1e-15 * magnitude


@given(columns=columns_of_numbers())
def test_sums_of_present_values(engine: Engine, columns: list[list[Any]]) -> None:
    """Counts are exact; sums and sums of squares are right to the last digits, with gaps, ties and extremes."""
    cells, names = table_of(columns)
    counts, sums, squares = engine.source(cells).answer(Sums(names))
    numbers = [present(column) for column in columns]
    assert counts.tolist() == [len(found) for found in numbers]
    assert_sums(sums, numbers)
    assert_sums(squares, [[x * x for x in found] for found in numbers])


@given(columns=columns_of_numbers(), centres=st.tuples(ordinary, extreme, st.sampled_from([7.5, 0.1, -0.0])))
def test_deviations_from_centres(engine: Engine, columns: list[list[Any]], centres: tuple[float, ...]) -> None:
    """Each value less its column's centre, and squared, as float64 has it."""
    cells, names = table_of(columns)
    sums, squares = engine.source(cells).answer(Deviations(names, centres))
    less = [[x - centre for x in present(column)] for column, centre in zip(columns, centres, strict=True)]
    assert_sums(sums, less)
    assert_sums(squares, [[x * x for x in found] for found in less])


@given(columns=columns_of_numbers())
def test_extremes_are_exact(engine: Engine, columns: list[list[Any]]) -> None:
    """To the last bit; not-a-number where there is no value; zero has one sign."""
    cells, names = table_of(columns)
    got = engine.source(cells).answer(Extremes(names))
    numbers = [present(column) or [NAN] for column in columns]
    np.testing.assert_array_equal(got, [[min(found) for found in numbers], [max(found) for found in numbers]])
    assert not np.signbit(got[got == 0]).any()


@st.composite
def cuts_through(draw: st.DrawFn, columns: Sequence[Sequence[Any]]) -> tuple[Cuts, ...]:
    """Some at a value's very key, some anywhere, also where no key can be."""
    own = sorted({key(number) for column in columns for number in present(column)}) or [0]
    near = st.builds(lambda at, by: at + by, st.sampled_from(own), st.integers(-2, 2))
    first = st.one_of(near, st.integers(-(1 << 65), 1 << 65))
    step = st.one_of(st.just(1), st.integers(1, 1 << 65), st.sampled_from([1 << 52, 1 << 60, 1 << 64]))
    place = st.integers(0, len(columns) - 1)
    return tuple(draw(st.lists(st.builds(Cuts, place, first, step, st.integers(0, 17)), max_size=8)))


@given(data=st.data(), columns=columns_of_numbers())
def test_counts_at_cuts_are_exact(engine: Engine, data: st.DataObject, columns: list[list[Any]]) -> None:
    """Any number of ranges through any column, in any order; asking again gives the same."""
    cells, names = table_of(columns)
    source = engine.source(cells)
    for cuts in data.draw(st.lists(cuts_through(columns), min_size=1, max_size=3)):
        got = source.answer(CountsAt(names, cuts))
        assert got.dtype == np.uint64
        assert got.tolist() == counts_at(columns, cuts)


def test_cuts_beyond_all_numbers_count_all_or_none(engine: Engine) -> None:
    """The keys of infinities, those beyond them, and integers that are no key."""
    source = engine.source({"a": [-1.7e308, 0.0, -0.0, None, 1.7e308]})
    beyond = [key(-INFINITY), key(-INFINITY) - 1, 0, -1, -(1 << 70)]
    above = [key(INFINITY), key(INFINITY) + 1, ALL_KEYS, 1 << 64, 1 << 70]
    got = source.answer(CountsAt(("a",), tuple(Cuts(0, cut) for cut in (*beyond, *above))))
    assert got.tolist() == [0] * 5 + [4] * 5
    # One range over everything: steps that leap over all keys, and a zero that is there twice.
    assert source.answer(CountsAt(("a",), (Cuts(0, -(1 << 64), 1 << 63, 5),))).tolist() == [0, 0, 0, 3, 4]


def test_cuts_that_do_not_rise_or_miss_their_column_are_no_query() -> None:
    """Found where a query is made, not where it is answered."""
    for wrong in ({"step": 0, "count": 2}, {"step": -1, "count": 2}, {"count": -1}):
        with pytest.raises(ValueError, match="cuts rise"):
            Cuts(0, 0, **wrong)
    for place in (-1, 1):
        with pytest.raises(ValueError, match="column of the query"):
            CountsAt(("a",), (Cuts(place, 0),))
    with pytest.raises(ValueError, match="one centre"):
        Deviations(("a", "b"), (1.0,))


@given(columns=columns_of_numbers())
@settings(max_examples=15)
def test_folded_queries_see_every_present_value_once(engine: Engine, columns: list[list[Any]]) -> None:
    """A query that the engine does not know, on all columns at once."""
    cells, names = table_of(columns)
    numbers = [present(column) for column in columns]
    roots, products = engine.source(cells).answer(Roots(names))
    assert_sums(roots, [[math.sqrt(abs(x)) for x in found] for found in numbers])
    with np.errstate(over="ignore"):
        terms = [[float(np.float64(x) * (place + 1)) for x in found] for place, found in enumerate(numbers)]
    assert_sums(products, terms)


@given(columns=columns_of_numbers())
@settings(max_examples=15)
def test_questions_about_any_value_see_every_present_value(engine: Engine, columns: list[list[Any]]) -> None:
    """Of each column on its own."""
    cells, names = table_of(columns)
    found = engine.source(cells).answer(Signs(names))
    expected = [[any(x < 0 for x in column), any(x >= 0 for x in column)] for column in map(present, columns)]
    assert [answers.tolist() for answers in found] == expected


def test_cuts_lie_on_an_axis(engine: Engine) -> None:
    """Of tenths from 10 to 1,033: two binary digits and a sign differ."""
    tenths = [-102.6, -0.2, None, 0.0, 0.2, 102.4, 102.6, 0.2]
    axis = Axis(1, varying=1 << 10 | 1 << 1, fixed=0)
    assert axis.positions(np.array([x for x in tenths if x is not None])).tolist() == [0, 2, 4, 5, 6, 7, 5]
    source = engine.source({"a": tenths})
    assert source.answer(CountsAt(("a",), (Cuts(0, -1, 1, 10),), (axis,))).tolist() == [0, 1, 1, 2, 2, 3, 5, 6, 7, 7]


letters = st.text(alphabet="aAbß é\u0301,;\"'-.01\u00a0", max_size=4)
# As a person may write them: "1", "1.0" and "01", "true" and "TRUE"; never a text that only spaces make different.
words = st.one_of(st.none(), letters, st.sampled_from(["1", "1.0", "01", "-0", "true", "TRUE", "word", "NA"]))


@given(column=st.lists(words, min_size=1, max_size=20), rules=st.builds(TextRules, st.booleans(), st.booleans()))
def test_frequencies_of_canonical_texts(engine: Engine, column: list[str | None], rules: TextRules) -> None:
    """Texts that mean the same are counted together; missing is a value of its own."""
    cells = {"word": [*column, "so it is text"], "n": [1.5] * (len(column) + 1)}
    (got,) = engine.source(cells).answer(Frequencies(("word",), rules))
    assert got == frequency(cells["word"], rules)


@given(column=st.lists(words, min_size=1, max_size=20), data=st.data())
def test_sums_of_a_target_per_text(engine: Engine, column: list[str | None], data: st.DataObject) -> None:
    """Rows with a target, and its sum, for each canonical text; a text without one has none."""
    rows = len(column) + 1
    target = data.draw(st.lists(st.one_of(ordinary, missing), min_size=rows, max_size=rows))
    cells = {"word": [*column, "so it is text"], "target": target}
    (got,) = engine.source(cells).answer(TargetSums(("word",), "target", RULES))
    expected = target_sum(cells["word"], target, RULES)
    assert {text: count for text, (count, _) in got.items()} == {text: count for text, (count, _) in expected.items()}
    for text, (_, total) in expected.items():
        assert got[text][1] == pytest.approx(total, rel=1e-12, abs=1e-3)


def test_a_number_that_is_none_is_missing_everywhere(engine: Engine) -> None:
    """Not-a-number is never a value: not in sums, extremes, counts, texts, batches or a target."""
    source = engine.source({"x": [1.0, NAN, 3.0, NAN], "all": [NAN] * 4, "f": [NAN, 2.0, None, 4.0], "w": list("aabb")})
    names = ("x", "all", "f")
    np.testing.assert_array_equal(source.answer(Sums(names)), [[2, 0, 2], [4, 0, 6], [10, 0, 20]])
    np.testing.assert_array_equal(source.answer(Deviations(names, (1.0, 1.0, 1.0))), [[2, 0, 4], [4, 0, 10]])
    np.testing.assert_array_equal(source.answer(Extremes(names)), [[1, NAN, 2], [3, NAN, 4]])
    everything = tuple(Cuts(place, ALL_KEYS) for place in range(3))
    assert source.answer(CountsAt(names, everything)).tolist() == [2, 0, 2]
    np.testing.assert_array_equal(source.answer(Roots(names))[1], [4, 0, 18])
    assert source.answer(Frequencies(("x", "all"), RULES)) == [{"1": 1, "3": 1, None: 2}, {None: 4}]
    assert source.answer(TargetSums(("w",), "x", RULES)) == [{"a": (1, 1.0), "b": (1, 3.0)}]
    assert check(source, names, ()) == dict.fromkeys(names, "number")
    assert _cells(source, names)["x"] == [1.0, None, 3.0, None]


def test_infinities_are_refused_by_name(engine: Engine) -> None:
    """One is enough, of either sign, also where they would cancel."""
    # In a CSV file a number comes first: DuckDB takes a column that begins with an infinity for dates or texts.
    up, down, both = [1.0, INFINITY, None], [2.5, None, -INFINITY], [0.5, -INFINITY, INFINITY]
    cells = {"fine": [1.0, 2.0, None], "up": up, "down": down, "both": both}
    source = engine.source(cells)
    for column in ("up", "down", "both"):
        with pytest.raises(InfiniteValues, match=f"north: column '{column}' holds infinities"):
            check(source, ["fine", column], [])
    assert check(source, ["fine"], ["up"]) == {"fine": "number", "up": "number"}


def test_numbers_whose_sum_is_beyond_float64_are_no_infinities(engine: Engine) -> None:
    """They have extremes and ranks like any other."""
    source = engine.source({"huge": [1.7e308, 1.7e308, -1.0]})
    assert not np.isfinite(source.answer(Sums(("huge",)))[1:]).any()
    assert check(source, ["huge"], []) == {"huge": "number"}


def test_tables_without_rows(engine: Engine) -> None:
    """They answer everything, with nothing."""
    source = engine.source({"a": [], "b": []})
    assert source.answer(RowCount()) == 0
    assert check(source, ["a"], ["b"]) == {"a": "number", "b": "number"}
    assert source.answer(Sums(("a", "b"))).tolist() == [[0, 0]] * 3
    assert source.answer(Deviations(("a",), (5.0,))).tolist() == [[0], [0]]
    assert np.isnan(source.answer(Extremes(("a", "b")))).all()
    assert source.answer(CountsAt(("a",), (Cuts(0, 0, 1 << 60, 16),))).tolist() == [0] * 16
    assert source.answer(Roots(("a", "b"))).tolist() == [[0, 0], [0, 0]]
    assert source.answer(Frequencies(("a", "b"), RULES)) == [{}, {}]
    assert source.answer(TargetSums(("a",), "b", RULES)) == [{}]
    assert sum(batch.num_rows for batch in source.batches(["a"], ["b"])) == 0


def test_a_single_row(engine: Engine) -> None:
    """It contributes what it has."""
    source = engine.source({"a": [5.0], "w": ["x"]})
    assert source.answer(RowCount()) == 1
    assert source.answer(Sums(("a",))).tolist() == [[1], [5], [25]]
    assert source.answer(Deviations(("a",), (5.0,))).tolist() == [[0], [0]]
    assert source.answer(Extremes(("a",))).tolist() == [[5], [5]]
    assert source.answer(CountsAt(("a",), (Cuts(0, key(5.0) - 1, 1, 2),))).tolist() == [0, 1]
    assert source.answer(TargetSums(("w",), "a", RULES)) == [{"x": (1, 5.0)}]


def test_a_column_without_any_value_is_a_number(engine: Engine) -> None:
    """And a category that is always missing; so it fits any job."""
    source = engine.source({"none": [None, None, None], "b": [1, 2, 3]})
    assert source.schema() == {"none": "number", "b": "number"}
    assert check(source, ["none"], ["none"]) == {"none": "number"}
    assert source.answer(Sums(("none",))).tolist() == [[0], [0], [0]]
    assert np.isnan(source.answer(Extremes(("none",)))).all()
    assert source.answer(CountsAt(("none", "b"), (Cuts(0, ALL_KEYS), Cuts(1, ALL_KEYS)))).tolist() == [0, 3]
    assert source.answer(Frequencies(("none",), RULES)) == [{None: 3}]
    assert source.answer(TargetSums(("b",), "none", RULES)) == [{"1": (0, 0.0), "2": (0, 0.0), "3": (0, 0.0)}]


def test_a_text_after_many_missing_cells_makes_a_text_column(engine: Engine) -> None:
    """The kind comes from all rows, not from the first few."""
    rows = 30_000
    source = engine.source({"late": [None] * rows + ["SECRET"], "b": [1] * (rows + 1)})
    assert source.schema()["late"] == "text"
    with pytest.raises(WrongType, match="north: column 'late' holds text") as caught:
        check(source, ["late"], [])
    assert "SECRET" not in str(caught.value)


def test_no_query_about_no_column(engine: Engine) -> None:
    """An empty question has an empty answer of the right shape."""
    source = engine.source({"a": [1.0]})
    assert source.answer(Sums(())).shape == (3, 0)
    assert source.answer(Deviations((), ())).shape == (2, 0)
    assert source.answer(Extremes(())).shape == (2, 0)
    assert source.answer(CountsAt((), ())).shape == (0,)
    assert source.answer(CountsAt(("a",), ())).shape == (0,)
    assert source.answer(Roots(())).shape == (0,)
    assert source.answer(Signs(())) == []
    assert source.answer(Frequencies((), RULES)) == []
    assert source.answer(TargetSums((), "a", RULES)) == []
    assert check(source, [], []) == {}


def test_a_column_may_be_asked_for_twice(engine: Engine) -> None:
    """Under its name at every place."""
    source = engine.source({"a": [1.0, 2.0], "b": [3.0, 5.0]})
    assert source.answer(Sums(("b", "a", "b")))[1].tolist() == [8, 3, 8]
    cuts = (Cuts(2, key(3.0)), Cuts(0, key(5.0)), Cuts(1, key(1.5)), Cuts(0, key(2.0)))
    assert source.answer(CountsAt(("b", "a", "b"), cuts)).tolist() == [1, 2, 1, 0]


def test_names_of_columns_are_only_names(engine: Engine) -> None:
    """Quotes, semicolons, keywords, other scripts, and names that a statement uses itself."""
    numbers = {name: [float(place), None, place + 2.0] for place, name in enumerate(HOSTILE)}
    source = engine.source(numbers | {"w": ["a", "b", "a"]})
    names = tuple(HOSTILE)
    places = range(len(names))
    assert set(source.schema()) == {*names, "w"}
    assert check(source, names, names) == dict.fromkeys(names, "number")
    assert source.answer(Sums(names)).tolist()[:2] == [[2] * len(names), [2.0 * p + 2 for p in places]]
    assert source.answer(Deviations(names, tuple(float(p) for p in places)))[0].tolist() == [2] * len(names)
    assert source.answer(Extremes(names)).tolist() == [list(places), [p + 2 for p in places]]
    assert source.answer(CountsAt(names, tuple(Cuts(p, key(float(p))) for p in places))).tolist() == [1] * len(names)
    assert source.answer(Roots(names))[1].tolist() == [(2.0 * p + 2) * (p + 1) for p in places]
    assert source.answer(Frequencies(names, RULES))[3] == {"3": 1, None: 1, "5": 1}
    for place, name in enumerate(names):
        assert source.answer(TargetSums(("w",), name, RULES)) == [{"a": (2, 2.0 * place + 2), "b": (0, 0.0)}]
        assert source.answer(TargetSums((name,), name, RULES))[0][str(place + 2)] == (1, place + 2.0)
    assert _cells(source, names)[names[4]] == [4.0, None, 6.0]


@pytest.mark.parametrize("name", ["b", "A", "", 'a"', "a;--", "a "])
def test_a_column_that_is_not_there_is_named(engine: Engine, name: str) -> None:
    """By check, by every query, and by batches; letters in another case are another name."""
    source = engine.source({"a": [1.0], "w": ["x"]})
    queries: list[Query[Any]] = [
        Sums(("a", name)), Deviations((name,), (0.0,)), Extremes((name,)), CountsAt((name,), (Cuts(0, 0),)),
        Frequencies((name,), RULES), TargetSums((name,), "a", RULES), TargetSums(("w",), name, RULES), Roots((name,)),
        Signs((name,)),
    ]  # fmt: skip
    for query in queries:
        with pytest.raises(MissingColumn) as caught:
            source.answer(query)
        assert f"north has no column {name!r} in data set" in str(caught.value)
    for numeric, texts in (([name], []), ([], [name])):
        with pytest.raises(MissingColumn):
            check(source, numeric, texts)
        with pytest.raises(MissingColumn):
            list(source.batches(numeric, texts))


KINDS = {
    "text": ["SECRET", None],
    "boolean": [True, False],
    "time": [dt.date(2020, 1, 2), None],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_is_refused_as_one(engine: Engine, kind: str) -> None:
    """Site, column and kind, but no cell; as texts they are fine."""
    source = engine.source({"a": KINDS[kind], "b": [1.0, 2.0]})
    with pytest.raises(WrongType, match=f"north: column 'a' holds {kind}, not numbers") as caught:
        check(source, ["b", "a"], [])
    assert "SECRET" not in str(caught.value)
    assert check(source, ["b"], ["a"]) == {"b": "number", "a": kind}
    assert source.schema() == {"a": kind, "b": "number"}


def test_texts_read_as_numbers_fail_without_showing_one(engine: Engine) -> None:
    """Whoever forgets to check gets our error, whichever way the engine reads."""
    # Late, so that an engine that streams has begun.
    source = engine.source({"a": ["7"] * 70_000 + ["SECRET"], "b": [1.0] * 70_001})
    queries: list[Query[Any]] = [Sums(("a",)), Extremes(("a",)), CountsAt(("a",), (Cuts(0, 0),)), Roots(("a",))]
    for query in queries:
        with pytest.raises(DataError) as caught:
            source.answer(query)
        assert "SECRET" not in f"{caught.value!r} {caught.value.__cause__!r}"
        assert caught.value.__suppress_context__
    with pytest.raises(DataError) as caught:
        list(source.batches(["a"]))
    assert "SECRET" not in str(caught.value)


def test_numbers_that_a_site_calls_missing_are_missing(engine: Engine) -> None:
    """Whether a file holds them as texts or as numbers, in every question."""
    table = {"n": [1, -99, 3, 9], "x": [0.5, -99.0, 9.0, 2.0], "word": ["a", "b", "c", "9"]}
    source = engine.source(table, missing=["-99", "9", "-99.0", "9.0", "none", "inf"])
    assert source.answer(Sums(("n", "x"))).tolist() == [[2, 2], [4, 2.5], [10, 4.25]]
    assert source.answer(Extremes(("n", "x"))).tolist() == [[1, 0.5], [3, 2.0]]
    assert source.answer(CountsAt(("x",), (Cuts(0, key(100.0)),))).tolist() == [2]
    assert source.answer(Roots(("n",)))[0].tolist() == [pytest.approx(1 + 3**0.5)]
    assert source.answer(Frequencies(("n", "word"), RULES)) == [
        {"1": 1, "3": 1, None: 2},
        {"a": 1, "b": 1, "c": 1, None: 1},
    ]
    assert _cells(source, ["n"], ["word"]) == {"n": [1, None, 3, None], "word": ["a", "b", "c", None]}


def test_cells_that_a_site_calls_missing_are_missing(engine: Engine) -> None:
    """In texts with or without spaces around them, and beside numbers where a file has only texts."""
    source = engine.source({"n": [1, 2, 3, 4], "word": [" ?", "?", " Private", "n/a"]}, missing=["?", "n/a"])
    assert source.answer(Frequencies(("word",), RULES)) == [{None: 3, "Private": 1}]
    assert source.answer(TargetSums(("word",), "n", RULES)) == [{None: (3, 7.0), "Private": (1, 3.0)}]
    (batch,) = source.batches([], ["word"])
    assert [canonical(cell) for cell in batch.column("word").to_pylist()] == [None, None, "Private", None]


def test_decimals_are_numbers_and_keep_their_text(engine: Engine) -> None:
    """Read as the nearest float64."""
    column = [Decimal("0.10"), Decimal("1234567.89"), None, Decimal("-2.50")]
    source = engine.source({"d": column})
    assert check(source, ["d"], []) == {"d": "number"}
    assert_sums(source.answer(Sums(("d",)))[1], [present([c for c in column if c is not None])])
    assert source.answer(Extremes(("d",))).tolist() == [[-2.5], [1234567.89]]
    assert source.answer(CountsAt(("d",), (Cuts(0, key(0.1)), Cuts(0, key(0.1) - 1)))).tolist() == [2, 1]
    assert source.answer(Frequencies(("d",), RULES)) == [{"0.1": 1, "1234567.89": 1, None: 1, "-2.5": 1}]


def test_integers_beyond_float64_become_the_nearest_float(engine: Engine) -> None:
    """As numbers; as texts they keep every digit."""
    column = [2**53 + 1, 2**53 + 3, 2**63 - 1, -(2**63), 0]
    source = engine.source({"i": column})
    assert check(source, ["i"], []) == {"i": "number"}
    low, high = source.answer(Extremes(("i",)))
    assert (low[0], high[0]) == (float(-(2**63)), float(2**63 - 1))
    cuts = tuple(Cuts(0, key(float(number))) for number in column)
    assert source.answer(CountsAt(("i",), cuts)).tolist() == counts_at([column], cuts)
    assert source.answer(Frequencies(("i",), RULES)) == [{str(number): 1 for number in column}]


def test_booleans_dates_and_times_have_the_texts_that_a_person_would_write(engine: Engine) -> None:
    """The same on every engine, so that sites with other files mean the same categories."""
    when = dt.datetime(2020, 1, 2, 3, 4, 5)
    source = engine.source({"b": [True, False, None], "d": [when.date(), None, when.date()], "t": [when] * 3})
    assert source.schema() == {"b": "boolean", "d": "time", "t": "time"}
    assert source.answer(Frequencies(("b", "d", "t"), RULES)) == [
        {"true": 1, "false": 1, None: 1},
        {"2020-01-02": 2, None: 1},
        {"2020-01-02 03:04:05": 3},
    ]


def _cells(source: Any, numeric: Sequence[str], texts: Sequence[str] = (), **options: Any) -> dict[str, list[Any]]:
    batches = [batch.to_pydict() for batch in source.batches(numeric, texts, **options)]
    return {name: [cell for batch in batches for cell in batch[name]] for name in batches[0]}


def test_batches_are_pieces_in_the_order_of_the_rows(engine: Engine) -> None:
    """Numbers as doubles, texts as they were written; a column in both roles is text; no other column comes."""
    rows = 10_000
    numbers, codes = list(range(rows)), [f"{row % 7:03}" for row in range(rows)]
    source = engine.source({"n": numbers, "code": codes, "other": [True] * rows})
    pieces = list(source.batches(["n"], ["code"], 1000))
    assert max(piece.num_rows for piece in pieces) <= 2048
    assert {str(piece.schema.field("n").type) for piece in pieces} == {"double"}
    assert _cells(source, ["n"], ["code"]) == {"n": numbers, "code": codes}
    assert _cells(source, ["n"]) == {"n": numbers}
    assert _cells(source, ["n"], ["n"])["n"][5] in (5, "5")


def test_several_files_are_one_table(engine: Engine) -> None:
    """Rows of all of them, in one order."""
    cells = {"n": [float(row) for row in range(10)], "w": list("aabbccddee")}
    source = engine.source(cells, parts=3)
    assert source.answer(RowCount()) == 10
    assert source.answer(Sums(("n",))).tolist() == [[10], [45], [285]]
    assert source.answer(CountsAt(("n",), (Cuts(0, key(4.0)),))).tolist() == [5]
    assert source.answer(TargetSums(("w",), "n", RULES))[0]["b"] == (2, 5.0)
    assert _cells(source, ["n"], ["w"]) == cells


def test_rows_that_change_during_a_job_end_it(engine: Engine) -> None:
    """A pinned source gives no answer, no schema and no batch from other rows; the source itself goes on."""
    source = engine.source({"a": [1.0, 2.0], "w": ["x", "y"]})
    before = source.snapshot()
    assert source.snapshot() == before
    pinned = source.pinned(before)
    assert (pinned.site, pinned.name) == (source.site, source.name)
    assert pinned.schema() == source.schema()
    queries: list[Query[Any]] = [
        RowCount(), Sums(("a",)), Deviations(("a",), (1.5,)), Extremes(("a",)), CountsAt(("a",), (Cuts(0, key(2.0)),)),
        Frequencies(("w",), RULES), TargetSums(("w",), "a", RULES), Roots(("a",)),
    ]  # fmt: skip
    for query in queries:
        pinned.answer(query)
    assert _cells(pinned, ["a"]) == {"a": [1.0, 2.0]}
    engine.replace(source, {"a": [1.0, 3.0], "w": ["x", "z"]})
    assert source.snapshot() != before
    for query in queries:
        with pytest.raises(DataChanged, match=r"north: the files of data set '.*' changed during the job"):
            pinned.answer(query)
    with pytest.raises(DataChanged):
        pinned.schema()
    with pytest.raises(DataChanged):
        list(pinned.batches(["a"]))
    fresh = source.pinned(source.snapshot())
    assert fresh.answer(Sums(("a",)))[1].tolist() == [4.0]
    assert fresh.answer(Extremes(("a",)))[1].tolist() == [3.0]
    assert fresh.answer(CountsAt(("a",), (Cuts(0, key(2.0)),))).tolist() == [1]
    assert fresh.answer(Frequencies(("w",), RULES)) == [{"x": 1, "z": 1}]


def test_rows_that_change_under_a_query_end_it(engine: Engine) -> None:
    """What was read half before and half after is no answer."""
    source = engine.source({"a": [1.0, 2.0]})
    pinned = source.pinned(source.snapshot())

    class Slow(Roots):
        def terms(self, column: int, values: np.ndarray) -> np.ndarray:
            engine.replace(source, {"a": [1.0, 3.0]})
            return super().terms(column, values)

    with pytest.raises(DataChanged):
        pinned.answer(Slow(("a",)))


def test_threads_may_ask_at_once(engine: Engine) -> None:
    """Every thread gets its own question's answer, from the first moment on."""
    rows = 20_000
    source = engine.source({"a": [float(row) for row in range(rows)], "w": [f"w{row % 5}" for row in range(rows)]})
    start = threading.Barrier(8)

    def ask(number: int) -> None:
        start.wait()
        for turn in range(5):
            cut = 100 * number + turn
            assert source.answer(CountsAt(("a",), (Cuts(0, key(float(cut))),))).tolist() == [cut + 1]
            assert source.answer(Deviations(("a",), (float(cut),)))[0][0] == rows * (rows - 1) / 2 - cut * rows
            assert source.answer(Frequencies(("w",), RULES))[0] == {f"w{place}": rows // 5 for place in range(5)}
            assert source.answer(Roots(("a",)))[1][0] == rows * (rows - 1) / 2
            assert source.schema() == {"a": "number", "w": "text"}

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))


def _ask_everything(source: Any, rows: int) -> None:
    n = np.arange(rows)
    x = np.where(n % 7 == 0, np.nan, n % 1000 - 500.0)
    held = x[~np.isnan(x)]
    counts, sums, squares = source.answer(Sums(("n", "x")))
    assert counts.tolist() == [rows, len(held)]
    np.testing.assert_allclose(sums, [rows * (rows - 1) / 2, held.sum()], rtol=1e-15)
    np.testing.assert_allclose(squares, [(rows - 1) * rows * (2 * rows - 1) / 6, (held**2).sum()], rtol=1e-14)
    assert source.answer(Extremes(("n", "x"))).tolist() == [[0, -500], [rows - 1, 499]]
    cuts = (Cuts(1, key(-250.0)), Cuts(0, key(999.0)), Cuts(1, key(-0.0)), Cuts(1, ALL_KEYS))
    expected = [(held <= -250).sum(), 1000, (held <= 0).sum(), len(held)]
    for _ in range(2):
        assert source.answer(CountsAt(("n", "x"), cuts)).tolist() == expected
    assert source.answer(Roots(("n", "x")))[1][0] == rows * (rows - 1) / 2
    words = [len(range(place, rows, 3)) for place in range(3)]
    assert source.answer(Frequencies(("word",), RULES)) == [{f"r{place}": words[place] for place in range(3)}]


def test_a_million_rows_never_become_python_objects(engine: Engine) -> None:
    """Python's own memory, numpy's included, stays small: keys in order, and pieces."""
    rows = 1_000_000
    source = engine.numbered(rows)
    assert source.answer(RowCount()) == rows
    tracemalloc.start()
    try:
        source.answer(Sums(("n", "x")))
        source.answer(Deviations(("n", "x"), (1.0, 2.0)))
        source.answer(Extremes(("n", "x")))
        _, small = tracemalloc.get_traced_memory()
        for _ in source.batches(["n", "x"], ["word"]):
            pass
        source.answer(Roots(("n", "x")))
        source.answer(CountsAt(("n", "x"), (Cuts(0, 0, 1 << 54, 1000), Cuts(1, 0, 1 << 54, 1000))))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert small < 1 << 20
    # At most the keys of two columns, and a few pieces of 65,536 values.
    assert peak < 2 * 8 * rows + (8 << 20)
    _ask_everything(source, rows)


@pytest.mark.long
def test_ten_million_rows(engine: Engine) -> None:
    """Every answer at the size of a large hospital."""
    source = engine.numbered(10_000_000)
    assert source.answer(RowCount()) == 10_000_000
    assert source.schema() == {"n": "number", "x": "number", "word": "text"}
    assert check(source, ["n", "x"], ["word"]) == source.schema()
    _ask_everything(source, 10_000_000)
