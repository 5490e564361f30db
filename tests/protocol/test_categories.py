"""Encodings of categorical columns against the pooled plaintext: every protocol, odd tables, odd texts."""

import hashlib
import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

from commonscale.categories import TextRules, canonical, text_integer
from commonscale.channel.slot import COORDINATOR
from commonscale.errors import Disagreement, StateLost, TooManyCategories
from commonscale.estimators.text_encoders import rolling_hash
from commonscale.hidden import HIDDEN
from commonscale.results import canonical_json
from commonscale.statistics.texts import ModelFile
from tests.categories import METHODS, Cells, assert_equals_pooled, failure, held, job, means_of, names, run, tables_of
from tests.federation import CategorySource, Federation
from tests.unit.test_fasttext import model_bytes

LONG = "x" * 10_000
# Rows of cells that are the same value, whoever writes which.
SAME: list[list[Any]] = [
    ["é", "e\u0301", " é ", "\u00a0e\u0301\n"],
    ["flu", " flu", "flu\t"],
    ["Flu"],
    [None, "", "  ", float("nan")],
    [1, 1.0, "1", "1.00", np.float64(1)],
    ["007"],
    [7, "7"],
    [True, "true"],
    [-0.0, 0, "0", "-0.0"],
    ["1e5"],
    [100000.0, "100000"],
    [LONG, LONG + " "],
    [LONG + "é", LONG + "e\u0301"],
    ["missing"],
    ["=a"],
    ["ß"],
    ["SS"],
    ["a b"],
    ["a  b"],
]
CELLS = [cell for same in SAME for cell in same]
EXAMPLES = {"oprf": 12, "apsi": 6, "apsi-both": 3}


def threshold_of(name: str, sites: int) -> int:
    given = METHODS[name].get("threshold", 2)
    return sites if given == "n" else given


@st.composite
def federations(draw: st.DrawFn) -> Cells:
    """Three to six sites with one to four columns of few different values, so that many are common."""
    sites, columns = names(draw(st.integers(3, 6))), [f"c{i}" for i in range(draw(st.integers(1, 4)))]
    cell = st.one_of(st.sampled_from(CELLS), st.sampled_from("abc"), st.text(max_size=3), st.floats(), st.integers())
    return {site: {column: draw(st.lists(cell, max_size=6)) for column in columns} for site in sites}


@pytest.mark.parametrize("name", METHODS)
def test_any_tables_give_the_pooled_dictionary(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Identical identifiers everywhere; below a threshold above two, another one at every holder."""

    @settings(max_examples=EXAMPLES.get(name, 8))
    @given(cells=federations(), casefold=st.booleans())
    def check(cells: Cells, casefold: bool) -> None:
        tables, columns = tables_of(cells), list(next(iter(cells.values())))
        results = run(tmp_path_factory.mktemp("f"), tables, columns, casefold=casefold, **METHODS[name])
        rules = TextRules(casefold=casefold)
        assert_equals_pooled(results, tables, columns, rules, threshold_of(name, len(tables)))

    check()


EDGES: dict[str, Cells] = {
    "all sites equal": {site: {"a": ["x", "y", "z"], "b": ["x", None]} for site in names(4)},
    "nothing common": {site: {"a": [f"{site}-{i}" for i in range(3)], "b": [site]} for site in names(4)},
    "at one site only": {site: {"a": ["x"] + ["rare"] * (site == "s2"), "b": ["y"]} for site in names(4)},
    "an empty table": {site: {"a": ["x", "y"] * (site != "s0"), "b": ["z"] * (site != "s0")} for site in names(4)},
    "all tables empty": {site: {"a": [], "b": []} for site in names(3)},
    "a column without values": {site: {"a": [None, ""], "b": []} for site in names(3)},
    "one category": {site: {"a": ["x"] * 50, "b": ["x"]} for site in names(3)},
    "the same text in two columns": {site: {"a": ["x", "y"], "b": ["y", "x"]} for site in names(3)},
    "exactly the least bound": {site: {"a": [f"v{i}" for i in range(16)], "b": []} for site in names(3)},
    "one above the least bound": {site: {"a": [f"v{i}" for i in range(17)], "b": ["x"]} for site in names(3)},
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", METHODS)
def test_odd_tables(tmp_path: Path, name: str, edge: str) -> None:
    """Empty, equal, disjoint and lopsided tables are no special case."""
    tables = tables_of(EDGES[edge])
    results = run(tmp_path, tables, ["a", "b"], **METHODS[name])
    assert_equals_pooled(results, tables, ["a", "b"], threshold=threshold_of(name, len(tables)))


@pytest.mark.parametrize("name", ["oprf", "apsi", "otmppsi-2", "otmppsi-3"])
def test_which_texts_are_one_value(tmp_path: Path, name: str) -> None:
    """NFC and NFD, spaces around, 1 and "1.00", empty and missing are one value; "007", "1e5", "A" and "a" are not."""
    sites = names(4)
    tables = {site: CategorySource({"a": [same[at % len(same)] for same in SAME]}) for at, site in enumerate(sites)}
    results = run(tmp_path, tables, ["a"], **METHODS[name])
    assert results[COORDINATOR].sizes == (len(SAME),)
    encoded = [
        fitted.estimator().transform([[c] for c in CELLS]) for site, fitted in results.items() if site != COORDINATOR
    ]
    assert all((rows == encoded[0]).all() for rows in encoded)
    starts = np.cumsum([0, *map(len, SAME)])
    for start, end in itertools.pairwise(starts):
        assert len({tuple(row) for row in encoded[0][start:end]}) == 1
    assert len({tuple(row) for row in encoded[0]}) == len(SAME)


def test_case_and_space_count_as_the_step_says(tmp_path: Path) -> None:
    """`casefold` makes ß and SS one value, `strip = false` makes " x" and "x" two."""
    tables = {
        site: CategorySource({"a": cells}) for site, cells in zip(names(3), (["ß"], ["SS"], [" x", "x"]), strict=True)
    }
    assert run(tmp_path / "1", tables, ["a"])[COORDINATOR].sizes == (3,)
    assert run(tmp_path / "2", tables, ["a"], casefold=True)[COORDINATOR].sizes == (2,)
    assert run(tmp_path / "3", tables, ["a"], strip=False)[COORDINATOR].sizes == (4,)


@pytest.mark.parametrize("name", METHODS)
def test_ten_sites(tmp_path: Path, name: str) -> None:
    """As many as the paper has, with values at one site up to all of them."""
    sites = names(10)
    tables = {site: CategorySource({"a": [f"v{i}" for i in range(at + 1)]}) for at, site in enumerate(sites)}
    results = run(tmp_path, tables, ["a"], **METHODS[name])
    assert_equals_pooled(results, tables, ["a"], threshold=threshold_of(name, 10))


def test_three_of_five(tmp_path: Path) -> None:
    """Exactly the values that at least three sites hold are one value; the others have an identifier a holder."""
    sites = names(5)
    cells = {site: {"a": [f"v{n}" for n in range(1, 6) if at < n]} for at, site in enumerate(sites)}
    tables = tables_of(cells)
    results = run(tmp_path, tables, ["a"], method="otmppsi", threshold=3)
    found = held(results, 0)
    for count in range(1, 6):
        identifiers = {found[site][f"v{count}"] for site in sites[:count]}
        assert len(identifiers) == (1 if count >= 3 else count)
    assert results[COORDINATOR].sizes == (3 + 1 + 2,)


@pytest.mark.long
@pytest.mark.parametrize(("name", "sites"), [("oprf", 3), ("apsi", 3), ("otmppsi-3", 4)])
def test_two_thousand_categories_a_site(tmp_path: Path, name: str, sites: int) -> None:
    """Half of them common."""
    tables = {
        site: CategorySource({"a": [f"v{at * 1000 + i}" for i in range(2_000)]}) for at, site in enumerate(names(sites))
    }
    results = run(tmp_path, tables, ["a"], max_categories=2_000, **METHODS[name])
    assert_equals_pooled(results, tables, ["a"], threshold=threshold_of(name, sites))


@pytest.mark.long
def test_twenty_thousand_categories_a_site(tmp_path: Path) -> None:
    """With `oprf`; three sites, a quarter of a site's values common to all of them."""
    tables = {
        site: CategorySource({"a": [f"v{at * 7_500 + i}" for i in range(20_000)]}) for at, site in enumerate(names(3))
    }
    results = run(tmp_path, tables, ["a"], max_categories=20_000)
    assert_equals_pooled(results, tables, ["a"])


@pytest.mark.parametrize("name", ["oprf", "apsi", "otmppsi-2", "otmppsi-3"])
def test_more_values_than_declared_name_site_and_column(tmp_path: Path, name: str) -> None:
    """Before anything of them is sent."""
    tables = {site: CategorySource({"a": ["x"], "b": list("pqr")}) for site in names(3)}
    federation = Federation(tmp_path, list(tables))
    tables["s1"] = CategorySource({"a": ["x"], "b": list("pqrs")})
    pipeline = job(list(tables), ["a", "b"], max_categories=3, **METHODS[name])
    error = failure(federation, pipeline, tables)
    assert isinstance(error, TooManyCategories)
    assert "s1: column 'b' has more than 3" in str(error)
    assert not any(slot.sender == "s1" and slot.run.endswith("/0") for slot in federation.mailbox.slots)


# The ring alone


@settings(max_examples=8)
@given(cells=federations(), padding=st.sampled_from([0, 1, 16, 300]))
def test_a_ring_gives_every_site_its_own_identifiers(
    tmp_path_factory: pytest.TempPathFactory, cells: Cells, padding: int
) -> None:
    """No two sites share one; all are below the size, which exceeds the values by at most the padding a site."""
    tables, columns = tables_of(cells), list(next(iter(cells.values())))
    results = run(tmp_path_factory.mktemp("f"), tables, columns, method="ring", padding=padding)
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1
    for index, size in enumerate(results[COORDINATOR].sizes):
        taken = [number for found in held(results, index).values() for number in found.values()]
        assert len(set(taken)) == len(taken)
        assert all(0 <= number < size for number in taken)
        assert len(taken) <= size <= len(taken) + padding * len(tables)
        if padding == 0:
            assert sorted(taken) == list(range(size))


def test_a_ring_without_padding_is_the_papers(tmp_path: Path) -> None:
    """Each site's identifiers are consecutive and begin where those of the site before it end."""
    counts = {"s0": 3, "s1": 0, "s2": 5, "s3": 1}
    tables = {site: CategorySource({"a": [f"{i}" for i in range(count)]}) for site, count in counts.items()}
    found = held(run(tmp_path, tables, ["a"], method="ring", padding=0), 0)
    start = 0
    for site, count in counts.items():
        assert sorted(found[site].values()) == list(range(start, start + count))
        start += count


def test_the_padding_of_a_ring_is_drawn_by_lot(tmp_path: Path) -> None:
    """Sizes of the same tables differ from job to job, and stay within the bound."""
    tables = {site: CategorySource({"a": ["x", "y"]}) for site in names(3)}
    sizes = {run(tmp_path / str(i), tables, ["a"], method="ring")[COORDINATOR].sizes[0] for i in range(12)}
    assert len(sizes) > 3
    assert all(6 <= size <= 6 + 3 * 16 for size in sizes)


# Rare values


@settings(max_examples=10)
@given(
    cells=st.lists(st.lists(st.sampled_from("abcdef"), max_size=8), min_size=3, max_size=4),
    least=st.integers(1, 5),
    name=st.sampled_from(["oprf", "apsi", "otmppsi-2"]),
)
def test_rare_values_are_those_of_scikit_learn_on_the_pooled_column(
    tmp_path_factory: pytest.TempPathFactory, cells: list[list[str]], least: int, name: str
) -> None:
    """The infrequent set is the pooled counts' one, and one-hot has as many columns."""
    tables = {site: CategorySource({"a": part}) for site, part in zip(names(len(cells)), cells, strict=True)}
    results = run(tmp_path_factory.mktemp("f"), tables, ["a"], min_frequency=least, **METHODS[name])
    assert_equals_pooled(results, tables, ["a"])
    pooled = Counter(cell for part in cells for cell in part)
    infrequent = {text for text, count in pooled.items() if count < least}
    assert results[COORDINATOR].infrequent == (len(infrequent),)
    for site, found in held(results, 0).items():
        rare = set(results[site].dictionaries[0].infrequent)
        assert len(rare) == len(infrequent)
        assert {text for text, number in found.items() if number in rare} == infrequent & set(found)
    if pooled:
        rows = [[cell] for part in cells for cell in part]
        expected = OneHotEncoder(min_frequency=least, sparse_output=False).fit(rows)
        width = sum(map(len, expected.categories_)) - len(infrequent) + bool(infrequent)
        assert expected.transform(rows).shape[1] == width
        assert results["s0"].estimator().transform(rows).shape[1] == width


def test_one_hot_rows_are_the_pooled_encoders_up_to_the_order_of_columns(tmp_path: Path) -> None:
    """At every site, rare values grouped, two columns."""
    generator = np.random.default_rng(11)
    rows = {
        site: generator.choice(list("abcdefgh"), (30, 2), p=[0.4, 0.3, 0.1, 0.1, 0.04, 0.03, 0.02, 0.01])
        for site in names(4)
    }
    tables = {site: CategorySource({"a": part[:, 0], "b": part[:, 1]}) for site, part in rows.items()}
    results = run(tmp_path, tables, ["a", "b"], min_frequency=8)
    pooled = OneHotEncoder(min_frequency=8, sparse_output=False).fit(np.vstack(list(rows.values())))
    ours = np.vstack([results[site].estimator().transform(part) for site, part in rows.items()])
    theirs = np.vstack([pooled.transform(part) for part in rows.values()])
    assert sorted(map(tuple, ours.T)) == sorted(map(tuple, theirs.T))


# A job that extends another


def extended(directory: Path, before: Cells, after: Cells, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A job on the first tables, then one on the second that extends it."""
    columns = list(next(iter(before.values())))
    old = run(directory / "old", tables_of(before), columns, **METHODS[name])
    memories = {site: {"first": old[site]} for site in before}
    tables = {site: CategorySource(cells, memories.get(site, {})) for site, cells in after.items()}
    return old, run(directory / "new", tables, columns, extends="first", **METHODS[name])


BEFORE = {
    "s0": {"a": ["x", "y"], "b": ["p"]},
    "s1": {"a": ["y", "z"], "b": ["p", "q"]},
    "s2": {"a": ["x", "w", None], "b": []},
}


@pytest.mark.parametrize("name", ["oprf", "apsi", "apsi-both", "otmppsi-2", "otmppsi-2-general"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_late_joiner_gets_the_old_identifiers(tmp_path: Path, name: str, place: str) -> None:
    """Old identifiers stay, the new site has them for common values, and new values come after the old size."""
    new = {"a": ["z", "new", None], "b": ["q", "n1", "n2"]}
    after: dict[str, Any] = {**BEFORE, "s9": new} if place == "last" else {"r": new, **BEFORE}
    after["s1"] = {"a": ["y", "z", "late"], "b": ["p", "q"]}
    old, found = extended(tmp_path, BEFORE, after, name)
    assert_equals_pooled(found, tables_of(after), ["a", "b"])
    for index, (size, grown) in enumerate([(5, 7), (2, 4)]):
        assert old[COORDINATOR].sizes[index] == size
        assert found[COORDINATOR].sizes[index] == grown
        numbers = {text: number for site in held(old, index).values() for text, number in site.items()}
        for texts in held(found, index).values():
            for text, number in texts.items():
                assert number == numbers[text] if text in numbers else size <= number < grown
    assert found[COORDINATOR].digest != old[COORDINATOR].digest


@settings(max_examples=8)
@given(
    before=st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=5), min_size=3, max_size=3),
    more=st.lists(st.sets(st.sampled_from("abcdefghijkl"), max_size=5), min_size=4, max_size=5),
)
def test_old_identifiers_stay_whatever_is_added(
    tmp_path_factory: pytest.TempPathFactory, before: list[set[str]], more: list[set[str]]
) -> None:
    """Sites keep their values, some get new ones, and one or two sites join."""
    first = {site: {"a": sorted(part)} for site, part in zip(names(3), before, strict=True)}
    grown = [part | (before[at] if at < 3 else set()) for at, part in enumerate(more)]
    second = {site: {"a": sorted(part)} for site, part in zip(names(len(more)), grown, strict=True)}
    old, found = extended(tmp_path_factory.mktemp("f"), first, second, "oprf")
    assert_equals_pooled(found, tables_of(second), ["a"])
    numbers = {text: number for site in held(old, 0).values() for text, number in site.items()}
    for texts in held(found, 0).values():
        assert all(number == numbers.get(text, number) for text, number in texts.items())
        assert all(number >= old[COORDINATOR].sizes[0] for text, number in texts.items() if text not in numbers)


def test_a_job_can_be_extended_again_and_again(tmp_path: Path) -> None:
    """The third job keeps the identifiers of the first, though the joiner of the second knows only that one."""
    tables = tables_of(BEFORE)
    first = run(tmp_path / "1", tables, ["a", "b"])
    again = {site: CategorySource(table.cells, {"one": first[site]}) for site, table in tables.items()}
    again["s3"] = CategorySource({"a": ["n"], "b": ["p"]})
    second = run(tmp_path / "2", again, ["a", "b"], extends="one")
    third = {site: CategorySource(table.cells, {"two": second[site]}) for site, table in again.items()}
    third["s4"] = CategorySource({"a": ["n", "x", "o"], "b": ["q"]})
    found = run(tmp_path / "3", third, ["a", "b"], extends="two")
    assert_equals_pooled(found, third, ["a", "b"])
    assert held(found, 0)["s0"] == held(first, 0)["s0"]
    assert held(found, 0)["s4"]["n"] == held(second, 0)["s3"]["n"] == 5
    assert held(found, 0)["s4"]["o"] == 6


def test_an_old_identifier_is_not_given_out_again(tmp_path: Path) -> None:
    """A value that has gone from its site's table keeps its identifier, and a joiner that has it gets it."""
    after = {**BEFORE, "s1": {"a": ["y"], "b": ["p", "q"]}, "s3": {"a": ["new", "z"], "b": []}}
    old, found = extended(tmp_path, BEFORE, after, "oprf")
    gone = held(old, 0)["s1"]["z"]
    assert found[COORDINATOR].sizes[0] == old[COORDINATOR].sizes[0] + 1
    assert held(found, 0)["s1"]["z"] == held(found, 0)["s3"]["z"] == gone
    assert held(found, 0)["s3"]["new"] == old[COORDINATOR].sizes[0]


def test_different_memories_are_a_disagreement(tmp_path: Path) -> None:
    """Two runs of the same job have different layouts: sites that remember one each cannot go on together."""
    tables = tables_of(BEFORE)
    one, two = (run(tmp_path / str(i), tables, ["a", "b"]) for i in range(2))
    mixed = {site: CategorySource(table.cells, {"first": one[site]}) for site, table in tables.items()}
    mixed["s2"] = CategorySource(tables["s2"].cells, {"first": two["s2"]})
    error = failure(Federation(tmp_path / "f", list(mixed)), job(list(mixed), ["a", "b"], extends="first"), mixed)
    assert isinstance(error, Disagreement)
    assert "remember different layouts of job first" in str(error)


def test_a_job_that_nobody_remembers_cannot_be_extended(tmp_path: Path) -> None:
    """The state that it left is lost."""
    tables = tables_of(BEFORE)
    error = failure(Federation(tmp_path, list(tables)), job(list(tables), ["a", "b"], extends="first"), tables)
    assert isinstance(error, StateLost)
    assert "No site remembers job first" in str(error)


# Target encoding


def formula7(
    rows: list[tuple[str | None, float | None]], smoothing: float, printed: bool
) -> tuple[dict[str | None, float], float]:
    """(n·p + α·μ) / (n + α), on one table."""
    present = [(text, Fraction(y)) for text, y in rows if y is not None]
    total, alpha = sum((y for _, y in present), Fraction(0)), Fraction(smoothing)
    mean = total / len(present) if present else Fraction(0)
    found = {}
    for text, _ in rows:
        own = [y for other, y in present if other == text]
        share = sum(own, Fraction(0)) / ((total or 1) if printed else max(len(own), 1))
        weight = len(own) + alpha
        found[text] = float((len(own) * share + alpha * mean) / weight) if weight else float(mean)
    return found, float(mean)


numbers = st.one_of(st.sampled_from([0.0, 1.0, 0.0, 1.0, None]), st.floats(-1e6, 1e6, allow_subnormal=False))


@settings(max_examples=12)
@given(
    parts=st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), numbers), max_size=7), min_size=3, max_size=4
    ),
    smoothing=st.sampled_from([0.0, 1.0, 10.0, 0.3]),
    formula=st.sampled_from(["mean", "printed"]),
    name=st.sampled_from(["oprf", "otmppsi-2", "apsi"]),
)
def test_pooled_target_means_are_formula_7(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Any]], smoothing: float, formula: str, name: str
) -> None:
    """On the pooled rows, whatever is missing, with either reading of the formula."""
    tables = {
        site: CategorySource({"a": [row[0] for row in part], "y": [row[1] for row in part]})
        for site, part in zip(names(len(parts)), parts, strict=True)
    }
    step = {"transform": "target", "target": "y", "smoothing": smoothing, "formula": formula, **METHODS[name]}
    results = run(tmp_path_factory.mktemp("f"), tables, ["a"], **step)
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1
    assert results[COORDINATOR].fitted[1] is HIDDEN
    expected, mean = formula7([row for part in parts for row in part], smoothing, formula == "printed")
    size = max((abs(row[1]) for part in parts for row in part if row[1] is not None), default=1.0)
    for site, part in zip(tables, parts, strict=True):
        (table,) = means_of(results[site]).tables
        assert set(table) == {row[0] for row in part}
        if formula == "mean":
            assert all(abs(number - expected[text]) <= 1e-12 * size + 1e-30 for text, number in table.items())
        assert abs(means_of(results[site]).mean - mean) <= 1e-12 * size + 1e-30


@pytest.mark.parametrize("formula", ["mean", "printed"])
@pytest.mark.parametrize("means", ["federated", "local"])
def test_classes_as_target(tmp_path: Path, means: str, formula: str) -> None:
    """Formula 7 to 1e-12 of its size: on the pooled rows, or on each site's own."""
    generator = np.random.default_rng(5)
    parts = {
        site: [(str(generator.choice(list("abcd"))), float(generator.integers(0, 2))) for _ in range(40)]
        for site in names(4)
    }
    tables = {
        site: CategorySource({"a": [t for t, _ in part], "y": [y for _, y in part]}) for site, part in parts.items()
    }
    results = run(tmp_path, tables, ["a"], transform="target", target="y", means=means, formula=formula)
    pooled = [row for part in parts.values() for row in part]
    for site, part in parts.items():
        expected, mean = formula7(pooled if means == "federated" else part, 10.0, formula == "printed")
        (table,) = means_of(results[site]).tables
        assert table == pytest.approx({text: expected[text] for text, _ in part}, rel=1e-12)
        assert means_of(results[site]).mean == pytest.approx(mean, rel=1e-12)
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1


def test_local_target_means_send_nothing(tmp_path: Path) -> None:
    """Beyond admission, there is no message."""
    tables = {site: CategorySource({"a": ["x"], "y": [1.0]}) for site in names(3)}
    federation = Federation(tmp_path, list(tables))
    anyio.run(federation.run, job(list(tables), ["a"], transform="target", target="y", means="local"), tables)
    assert not any(slot.run.endswith("/0") for slot in federation.mailbox.slots)


# Encodings that read the text


@settings(max_examples=8)
@given(
    parts=st.lists(
        st.lists(
            st.one_of(st.sampled_from(["é", None, "", LONG, LONG + "b", 3.5, "a"]), st.text(max_size=20)), max_size=5
        ),
        min_size=3,
        max_size=4,
    )
)
def test_bytes_norm_has_the_exact_mean_and_variance(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Any]]
) -> None:
    """As fractions of integers of ten thousand bytes; a second column of short texts beside it."""
    tables = {
        site: CategorySource({"a": part, "b": ["k", "kk"]}) for site, part in zip(names(len(parts)), parts, strict=True)
    }
    results = run(tmp_path_factory.mktemp("f"), tables, ["a", "b"], transform="bytes-norm")
    texts = [text for part in parts for cell in part if (text := canonical(cell)) is not None]
    for index, column in enumerate((texts, ["k", "kk"] * len(parts))):
        exact = [Fraction(text_integer(text)) for text in column]
        mean = sum(exact, Fraction(0)) / max(len(exact), 1)
        variance = sum(((x - mean) ** 2 for x in exact), Fraction(0)) / max(len(exact), 1)
        for site in tables:
            assert results[site].fitted[index].mean == mean
            assert results[site].fitted[index].variance == variance
    assert results[COORDINATOR].fitted is HIDDEN
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1


def test_mod_norm_adds_the_sites_numbers_of_values(tmp_path: Path) -> None:
    """S is the sum over the sites of their different values, the missing one included; at least 1."""
    cells = {"s0": ["x", "y", "x", None], "s1": ["x"], "s2": []}
    tables = {site: CategorySource({"a": part, "b": []}) for site, part in cells.items()}
    results = run(tmp_path, tables, ["a", "b"], transform="mod-norm")
    assert all(result.parameters()["values"] == [4, 1] for result in results.values())
    encoded = results["s1"].estimator().transform([["x", "q"]])
    assert encoded.tolist() == [[text_integer("x") % 8, text_integer("q") % 2]]


def test_rolling_hash_needs_no_message(tmp_path: Path) -> None:
    """Every site has the same vector for the same row, and none is sent for it."""
    tables = {site: CategorySource({"a": [site], "b": []}) for site in names(3)}
    federation = Federation(tmp_path, list(tables))
    pipeline = job(list(tables), ["a", "b"], transform="rolling-hash", buckets=100)
    results = anyio.run(federation.run, pipeline, tables)
    assert not any(slot.run.endswith("/0") for slot in federation.mailbox.slots)
    rows = [results[site].estimator().transform([["flu", "cold"]]) for site in tables]
    assert all((row == rows[0]).all() for row in rows)
    assert set(np.flatnonzero(rows[0][0])) == {rolling_hash("flu", 31, 100), rolling_hash("cold", 31, 100)}
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1


def model(path: Path, content: bytes) -> ModelFile:
    path.write_bytes(content)
    return ModelFile(hashlib.sha256(content).hexdigest(), path, 2)


def test_fasttext_has_the_same_vectors_at_all_sites(tmp_path: Path) -> None:
    """From each site's own copy of one model."""
    content = model_bytes(["</s>", "flu", "cold"])
    models = {site: model(tmp_path / f"{site}.bin", content) for site in names(3)}
    tables = {site: CategorySource({"a": ["flu"]}, models={"words": models[site]}) for site in names(3)}
    results = run(tmp_path, tables, ["a"], transform="fasttext", model="words")
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1
    rows = [results[site].estimator().transform([["flu"], ["unknown"], [None]]) for site in tables]
    assert all((row == rows[0]).all() for row in rows)
    assert rows[0].shape == (3, 2)


def test_different_models_are_a_disagreement(tmp_path: Path) -> None:
    """It names the site whose file is another one."""
    content = model_bytes(["</s>", "flu", "cold"])
    models = {site: model(tmp_path / f"{site}.bin", content) for site in names(3)}
    models["s2"] = model(tmp_path / "other.bin", model_bytes(["</s>", "flu", "gold"]))
    tables = {site: CategorySource({"a": ["flu"]}, models={"words": models[site]}) for site in names(3)}
    federation = Federation(tmp_path, list(tables))
    error = failure(federation, job(list(tables), ["a"], transform="fasttext", model="words"), tables)
    assert isinstance(error, Disagreement)
    assert "s2 has another file for model 'words' than s0" in str(error)
