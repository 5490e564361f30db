"""Coordinators and sites that do not keep to bounds and layouts, or to a job that extends another."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commonscale.channel.slot import COORDINATOR
from commonscale.errors import BadMessage, Disagreement
from commonscale.v1 import protocols_pb2 as wire
from crypto import field61
from tests.categories import METHODS, SITES, run
from tests.federation import CategorySource, Federation
from tests.misbehaving.layout import (
    CoordinatorThatForgesBounds,
    CoordinatorThatShowsOtherBounds,
    CoordinatorThatShowsOtherSumsAndComparesNothing,
    CoordinatorThatShowsOtherSumsInUse,
    SiteThatExaggerates,
    SiteThatSharesAShortGroupKey,
    SiteThatSharesTwoGroupKeys,
)
from tests.misbehaving.roles import (
    COLUMNS,
    TABLES,
    Change,
    CoordinatorThatShowsAnother,
    Nobody,
    error_of,
    run_with,
)
from tests.misbehaving.sums import CoordinatorThatAddsToAHiddenSum, SiteThatAddsToItsMaskedVector

NOT_THE_SUM = "is not that of what the sites sent"


# Which positions are in use


@pytest.mark.parametrize("delta", [1, 1 << 60, field61.PRIME - 1])
@pytest.mark.parametrize("places", [slice(None), slice(0, 1), slice(3, 40), slice(-64, None)])
def test_a_coordinator_that_adds_to_a_hidden_sum_is_noticed(federation: Federation, places: slice, delta: int) -> None:
    """Also if it tells all sites the same: whether a position was in use before would otherwise show in the sizes."""
    error = error_of(federation, CoordinatorThatAddsToAHiddenSum("in-use.HiddenTotal", places, delta))
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


@pytest.mark.parametrize("method", ["oprf", "apsi", "otmppsi-3"])
def test_different_sums_in_use_end_in_a_disagreement(federation: Federation, method: str) -> None:
    """North sees that it is not the sum of what the sites sent."""
    error = error_of(federation, CoordinatorThatShowsOtherSumsInUse("north"), **METHODS[method])
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


def test_sites_notice_different_sums_without_the_coordinator(federation: Federation) -> None:
    """One that shows north other sums and says nothing is caught by north itself."""
    error = error_of(federation, CoordinatorThatShowsOtherSumsAndComparesNothing("north"))
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


def swap_signatures(message: wire.Confirmations) -> None:
    message.confirmations[0].signature = message.confirmations[1].signature


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (swap_signatures, "The signature of east"),
        (lambda m: m.confirmations.pop(), "3 confirmations for 4 sites"),
        (lambda m: m.confirmations[2].CopyFrom(m.confirmations[1]), "The signature of south"),
        (lambda m: setattr(m.confirmations[3], "digest", bytes(32)), "The signature of west"),
    ],
    ids=["swapped", "missing", "one for another", "altered"],
)
def test_different_confirmations_are_a_disagreement(federation: Federation, change: Change, says: str) -> None:
    """A coordinator cannot answer for a site."""
    error = error_of(federation, CoordinatorThatShowsAnother("west", "layout.Confirmations", change))
    assert isinstance(error, Disagreement)
    assert says in str(error)


def test_different_group_keys_are_a_disagreement(federation: Federation) -> None:
    """A first site that gives north another key makes it read other sums."""
    error = error_of(federation, SiteThatSharesTwoGroupKeys("east", to="north"))
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


def test_a_group_key_of_another_length_names_its_sender(federation: Federation) -> None:
    """It has 32 bytes."""
    error = error_of(federation, SiteThatSharesAShortGroupKey("east"))
    assert isinstance(error, BadMessage)
    assert "east sent a key of 16 bytes" in str(error)


@pytest.mark.parametrize("count", [5, 1 << 60])
def test_counts_that_cannot_be_are_refused(federation: Federation, count: int) -> None:
    """Counts that were changed on the way are noticed by all, though not by whom: masks hide that."""
    liar = SiteThatAddsToItsMaskedVector("south", "in-use.MaskedVector", count)
    error = error_of(federation, liar, min_frequency=2)
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


def test_a_site_may_claim_more_rows_than_it_has(federation: Federation) -> None:
    """Only it knows: rare values are then frequent, for all sites alike; more than any table has are refused."""
    tables = {**TABLES, "south": SiteThatExaggerates(TABLES["south"].cells)}
    results = run_with(federation, Nobody(), tables, min_frequency=2)
    assert len({(fitted.sizes, fitted.infrequent, fitted.digest) for fitted in results.values()}) == 1
    assert results[COORDINATOR].infrequent[0] < 4


# Bounds


def test_a_forged_bound_gets_no_values(federation: Federation) -> None:
    """A coordinator that says a lower bound than a site's size: the site sends nothing of its values."""
    tables = {**TABLES, "north": CategorySource({"a": [f"v{i}" for i in range(20)]})}
    error = error_of(federation, CoordinatorThatForgesBounds(b"\0\0\0\x1e"), tables)
    assert isinstance(error, BadMessage)
    assert "The bound of column 'a' in job-1/0 is below what north asked for" in str(error)
    assert not any(s.sender == "north" and s.kind.startswith("match") for s in federation.mailbox.slots)


@pytest.mark.parametrize("bits", [bytes(4), b"\xff\xff\xff\xfe"], ids=["nobody has a value", "more than any may have"])
def test_nonsense_bounds_are_refused(federation: Federation, bits: bytes) -> None:
    """Nobody fills its set up to a billion values because of a damaged message."""
    error = error_of(federation, CoordinatorThatForgesBounds(bits))
    assert isinstance(error, BadMessage)
    assert "no bound that any of them may ask for" in str(error)


def test_different_bounds_are_noticed_by_the_keyholder(federation: Federation) -> None:
    """A site that was told a larger bound sends more points than the others expect."""
    error = error_of(federation, CoordinatorThatShowsOtherBounds("north", b"\0\0\0\x7f"))
    assert isinstance(error, BadMessage)
    assert "north" in str(error)


# A job that extends another


def remembering(old: Mapping[str, Any], **changed: tuple[int, ...]) -> dict[str, CategorySource]:
    """Tables whose sites remember a job; some with other identifiers than they had."""
    tables = {}
    for site in SITES:
        result = old[site]
        if site in changed:
            (dictionary,) = result.dictionaries
            other = replace(result.fitted, dictionaries=(replace(dictionary, identifiers=changed[site]),))
            result = replace(result, fitted=other)
        tables[site] = CategorySource(TABLES[site].cells, {"first": result})
    return tables


def test_old_identifiers_that_contradict_each_other_are_refused(federation: Federation, tmp_path: Path) -> None:
    """A site whose memory has another identifier for a common value is noticed, whoever it is."""
    old = run(tmp_path / "old", TABLES, COLUMNS)
    numbers = old["south"].dictionaries[0].identifiers
    tables = remembering(old, south=(numbers[1], numbers[0]))
    error = error_of(federation, Nobody(), tables, extends="first")
    assert isinstance(error, BadMessage)
    assert "old identifier" in str(error)


@pytest.mark.parametrize("identifier", [1000, 0])
def test_an_old_identifier_that_was_never_given_out_or_twice_is_refused(
    federation: Federation, tmp_path: Path, identifier: int
) -> None:
    """Not below the old size, or another value's."""
    old = run(tmp_path / "old", TABLES, COLUMNS)
    (dictionary,) = old["south"].dictionaries
    values = list(dictionary.values)
    numbers = list(dictionary.identifiers)
    taken = [n for site in ("east", "north", "west") for n in old[site].dictionaries[0].identifiers]
    numbers[values.index("s!")] = identifier or next(n for n in taken if n not in numbers)
    error = error_of(federation, Nobody(), remembering(old, south=tuple(numbers)), extends="first")
    assert isinstance(error, BadMessage)
    assert "old identifier" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.known.pop(),
        lambda m: setattr(m.known[1], "present", False),
        lambda m: setattr(m.known[1], "layout", b""),
    ],
    ids=["one missing", "north was not there", "another layout"],
)
def test_a_coordinator_that_speaks_for_a_site_is_noticed(
    federation: Federation, tmp_path: Path, change: Change
) -> None:
    """North sees that its word is another one."""
    old = run(tmp_path / "old", TABLES, COLUMNS)
    liar = CoordinatorThatShowsAnother("north", "known.KnownByAll", change)
    error = error_of(federation, liar, remembering(old), extends="first")
    assert isinstance(error, Disagreement)
    assert "other words on job first" in str(error)


@pytest.mark.parametrize("at", [0, 5, -1])
def test_a_coordinator_that_adds_to_old_identifiers_is_noticed(federation: Federation, tmp_path: Path, at: int) -> None:
    """The sum that carries them is checked as the one before it."""
    old = run(tmp_path / "old", TABLES, COLUMNS)
    liar = CoordinatorThatAddsToAHiddenSum("numbers.HiddenTotal", slice(at, at + 1 or None), 1)
    error = error_of(federation, liar, remembering(old), extends="first")
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)
