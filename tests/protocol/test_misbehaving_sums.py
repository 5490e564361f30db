"""Coordinators and sites that attack sums: nothing of one site can be read, and nothing is released."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonscale.channel.slot import COORDINATOR
from commonscale.errors import BadMessage, Disagreement, Overflow
from commonscale.pipeline import Pipeline
from commonscale.protocols import sums
from crypto import field61, fixed_point
from crypto.rings import Z256
from tests.categories import METHODS
from tests.categories import SITES as ENCODING_SITES
from tests.federation import Federation, NumpySource
from tests.misbehaving.roles import (
    CoordinatorThatChanges,
    CoordinatorThatShowsAnother,
    Misbehaving,
    elements_of,
    error_of,
    failed_run,
    field_of,
    flipped,
    names_role,
)
from tests.misbehaving.sums import (
    CoordinatorThatAddsToAHiddenSum,
    CoordinatorThatShowsAnotherMean,
    CoordinatorThatShowsAnotherTotal,
    SiteThatNamesAnotherTranscript,
    SiteThatSendsOtherBytes,
    masks_that_are_not_bound,
)

SITES = ("east", "north", "west")
COLUMNS = ["a"]
TABLES = {site: NumpySource(COLUMNS, np.arange(5.0) + 2 * index) for index, site in enumerate(SITES)}
NORTH = TABLES["north"].rows
RUN = "job-1/0"
FAR = 1e9


def job(**step: Any) -> Pipeline:
    return Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": COLUMNS, **step}]})


def failed(federation: Federation, liar: Misbehaving, **step: Any) -> Exception:
    """The error of a job on numbers, in which no site has a result."""
    error, ended = failed_run(federation, liar, job(**step), TABLES)
    assert set(ended) <= {COORDINATOR}, "nothing is released"
    return error


@pytest.fixture
def numbers(tmp_path: Path) -> Federation:
    return Federation(tmp_path, SITES)


# Another mean


def test_another_mean_shows_a_coordinator_nothing_of_the_site(numbers: Federation) -> None:
    """The second round adds up to noise, as masks are bound to what was announced; the run ends in a Disagreement."""
    liar = CoordinatorThatShowsAnotherMean("north", SITES, 15 * FAR)
    error = failed(numbers, liar)
    assert isinstance(error, Disagreement)
    assert "was shown another value" in str(error)
    vectors = [
        Z256.from_bytes(raw, 2) for raw in elements_of(SITES, numbers.mailbox.slots, RUN, "variance.MaskedVector")
    ]
    assert all(abs(float(number)) > 1e30 for number in fixed_point.decode(Z256.add_all(vectors)))
    stolen = liar.stolen(numbers, RUN)
    assert abs(float(stolen.count)) > 1e20
    assert abs(float(stolen.sum)) > 1e20


def test_masks_that_are_not_bound_would_show_it(numbers: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same attack on a weakened copy reads the site's count and sum: the test above could fail."""
    monkeypatch.setattr(sums, "_context", masks_that_are_not_bound)
    liar = CoordinatorThatShowsAnotherMean("north", SITES, 15 * FAR)
    error = failed(numbers, liar)
    assert isinstance(error, Disagreement), "also then the sites notice, too late"
    stolen = liar.stolen(numbers, RUN)
    assert float(stolen.count) == pytest.approx(len(NORTH), rel=1e-6)
    assert float(stolen.sum) == pytest.approx(float(NORTH.sum()), abs=1e-3)


def test_another_mean_is_caught_by_shares_before_anything_is_added(numbers: Federation) -> None:
    """North's shares name another transcript: no partial sum of the second round is ever sent."""
    error = failed(numbers, CoordinatorThatShowsAnotherMean("north", SITES, 15 * FAR), method="shares")
    assert isinstance(error, Disagreement)
    assert "was shown other totals than" in str(error)
    assert not any(slot.kind == "variance.PartialSum" for slot in numbers.mailbox.slots)


@pytest.mark.parametrize("method", ["masks", "shares", "sac-proportional"])
@pytest.mark.parametrize("kind", ["mean.Total", "variance.Total"])
@pytest.mark.parametrize("victim", SITES)
def test_different_totals_end_in_a_disagreement(numbers: Federation, method: str, kind: str, victim: str) -> None:
    """Whichever total, and whoever is shown another one: nobody has a result."""
    error = failed(numbers, CoordinatorThatShowsAnotherTotal(victim, kind, [0.0, 0.5]), method=method)
    assert isinstance(error, Disagreement)


COUNTED = {
    "the number of values": ({"transform": "robust"}, "n.Total", "elements"),
    "how many decimals there are": ({"transform": "robust"}, "grid.Answers", "bits"),
    "which digits vary": ({"transform": "robust"}, "varying.Answers", "bits"),
    "a cut of a search for ranks": ({"transform": "robust"}, "search.1.Total", "elements"),
    "decimals of extremes": ({"transform": "minmax", "method": "search"}, "grid.Answers", "bits"),
    "digits of extremes": ({"transform": "minmax", "method": "search"}, "varying.Answers", "bits"),
    "an answer of a search": ({"transform": "minmax", "method": "search"}, "range.1.Answers", "bits"),
    "a candidate of a power transform": ({"transform": "power"}, "search.2.Total", "elements"),
}


@pytest.mark.parametrize("what", COUNTED)
def test_different_answers_end_in_an_error(numbers: Federation, what: str) -> None:
    """North follows another question from there on: its masks do not cancel, and at the latest the sites disagree.

    Noise may also lead a search for lambda to where sums are too large to be added: that ends the run too.
    """
    step, kind, name = COUNTED[what]
    error = failed(numbers, CoordinatorThatShowsAnother("north", kind, field_of(name, flipped)), **step)
    allowed = (Disagreement, BadMessage, Overflow) if "power" in what else (Disagreement, BadMessage)
    assert isinstance(error, allowed), repr(error)


# Damaged vectors


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "one element more": lambda raw: raw + bytes(32),
    "one element less": lambda raw: raw[32:],
    "none": lambda raw: b"",
    "a byte more": lambda raw: raw + b"\0",
    "a byte less": lambda raw: raw[:-1],
    "too many by far": lambda raw: raw * 50,
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize(
    ("sender", "kind", "step"),
    [
        ("east", "mean.MaskedVector", {}),
        ("north", "variance.MaskedVector", {}),
        ("east", "mean.Share", {"method": "shares"}),
        ("west", "variance.PartialSum", {"method": "shares"}),
        ("east", "n.MaskedVector", {"transform": "robust"}),
        ("north", "search.1.PartialSum", {"transform": "robust", "method": "shares"}),
        ("west", "range.1.MaskedVector", {"transform": "minmax", "method": "search"}),
    ],
)
def test_a_vector_of_another_length_names_its_sender(
    numbers: Federation, sender: str, kind: str, step: dict[str, Any], damage: str
) -> None:
    """Whoever adds it refuses it."""
    error = failed(numbers, SiteThatSendsOtherBytes(sender, kind, DAMAGED[damage]), **step)
    assert isinstance(error, BadMessage)
    assert f"{sender} sent a bad {kind}" in str(error)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize(
    ("kind", "name", "step"),
    [
        ("mean.Total", "elements", {}),
        ("n.Total", "elements", {"transform": "robust"}),
        ("range.1.Answers", "bits", {"transform": "minmax", "method": "search"}),
    ],
)
def test_a_total_of_another_length_names_the_coordinator(
    numbers: Federation, kind: str, name: str, step: dict[str, Any], damage: str
) -> None:
    """By every site."""
    error = failed(numbers, CoordinatorThatChanges(kind, field_of(name, DAMAGED[damage])), **step)
    assert isinstance(error, BadMessage)
    assert names_role(error, COORDINATOR)
    assert kind in str(error)


def no_element(raw: bytes) -> bytes:
    """The prime itself, in place of the last element."""
    return raw[:-8] + field61.PRIME.to_bytes(8, "little")


@pytest.mark.parametrize("large", [no_element, lambda raw: b"\xff" * len(raw)], ids=["the prime", "all ones"])
@pytest.mark.parametrize(
    ("sender", "kind", "step"),
    [
        ("east", "n.MaskedVector", {"transform": "robust"}),
        ("north", "n.Share", {"transform": "robust", "method": "shares"}),
        ("west", "n.PartialSum", {"transform": "robust", "method": "shares"}),
        ("west", "range.1.MaskedVector", {"transform": "minmax", "method": "search"}),
    ],
)
def test_an_element_that_is_not_below_the_prime_names_its_sender(
    numbers: Federation, sender: str, kind: str, step: dict[str, Any], large: Callable[[bytes], bytes]
) -> None:
    """It would be another name of a small one."""
    error = failed(numbers, SiteThatSendsOtherBytes(sender, kind, large), **step)
    assert isinstance(error, BadMessage)
    assert f"{sender} sent a bad {kind}" in str(error)
    assert "no element of the field" in str(error)


def test_a_total_that_is_not_below_the_prime_names_the_coordinator(numbers: Federation) -> None:
    """At every site."""
    liar = CoordinatorThatChanges("n.Total", field_of("elements", no_element))
    error = failed(numbers, liar, transform="robust")
    assert isinstance(error, BadMessage)
    assert "The coordinator sent a bad n.Total" in str(error)


@pytest.mark.parametrize("kind", ["mean.Share", "variance.Share"])
@pytest.mark.parametrize("to", [None, "west"])
def test_a_share_for_another_question_is_not_added(numbers: Federation, kind: str, to: str | None) -> None:
    """A share names everything that was announced before it; to one receiver or to all."""
    error = failed(numbers, SiteThatNamesAnotherTranscript("east", kind, to), method="shares")
    assert isinstance(error, Disagreement)
    assert "east was shown other totals than" in str(error)
    scope = kind.partition(".")[0]
    assert not any(slot.kind == f"{scope}.Total" for slot in numbers.mailbox.slots)


# Hidden sums, in their first use: which positions of a layout are in use


@pytest.mark.parametrize("method", ["oprf", "apsi", "otmppsi-2"])
@pytest.mark.parametrize("at", [0, 1, 17, -2, -1])
def test_a_change_of_any_element_of_a_hidden_total_is_noticed(tmp_path: Path, method: str, at: int) -> None:
    """The linear check covers every element, and itself."""
    federation = Federation(tmp_path, ENCODING_SITES)
    places = slice(at, at + 1 or None)
    liar = CoordinatorThatAddsToAHiddenSum("in-use.HiddenTotal", places, 1)
    error = error_of(federation, liar, **METHODS[method])
    assert isinstance(error, Disagreement)
    assert "is not that of what the sites sent" in str(error)


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_hidden_total_of_another_length_names_the_coordinator(tmp_path: Path, damage: str) -> None:
    """By every site."""
    federation = Federation(tmp_path, ENCODING_SITES)
    liar = CoordinatorThatChanges("in-use.HiddenTotal", field_of("elements", DAMAGED[damage]))
    error = error_of(federation, liar)
    assert isinstance(error, BadMessage)
    assert "The coordinator sent a bad in-use.HiddenTotal" in str(error)


def test_a_hidden_total_that_is_not_below_the_prime_names_the_coordinator(tmp_path: Path) -> None:
    """By every site."""
    federation = Federation(tmp_path, ENCODING_SITES)
    error = error_of(federation, CoordinatorThatChanges("in-use.HiddenTotal", field_of("elements", no_element)))
    assert isinstance(error, BadMessage)
    assert "The coordinator sent a bad in-use.HiddenTotal" in str(error)
