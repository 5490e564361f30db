"""Sites that do not keep to the ring of identifiers."""

from typing import Any

import pytest

from commonscale.errors import BadMessage, Disagreement
from tests.categories import METHODS
from tests.federation import Federation
from tests.misbehaving.ring import (
    SiteThatAnnouncesAnotherTotal,
    SiteThatPassesOnAnotherOffset,
    SiteThatPassesOnOffsetsOfOtherColumns,
)
from tests.misbehaving.roles import error_of

RING = {"method": "ring"}


@pytest.mark.parametrize("step", [RING, METHODS["apsi"], METHODS["otmppsi-2"]], ids=str)
@pytest.mark.parametrize("number", [1 << 41, (1 << 64) - 1])
def test_offsets_that_overflow_name_their_sender(federation: Federation, step: dict[str, Any], number: int) -> None:
    """No site has so many values."""
    error = error_of(federation, SiteThatPassesOnAnotherOffset("north", number), **step)
    assert isinstance(error, BadMessage)
    assert "north sent identifiers" in str(error)


@pytest.mark.parametrize("count", [0, 2])
def test_offsets_of_other_columns_name_their_sender(federation: Federation, count: int) -> None:
    """One number per column."""
    error = error_of(federation, SiteThatPassesOnOffsetsOfOtherColumns("north", count), **RING)
    assert isinstance(error, BadMessage)
    assert "north sent identifiers" in str(error)


@pytest.mark.parametrize("step", [RING, METHODS["apsi"], METHODS["otmppsi-3"]], ids=str)
def test_totals_too_small_name_the_first_site(federation: Federation, step: dict[str, Any]) -> None:
    """A site that has taken more identifiers than there are in all says so."""
    error = error_of(federation, SiteThatAnnouncesAnotherTotal("east", 0), **step)
    assert isinstance(error, BadMessage)
    assert "east sent totals" in str(error)


def test_different_totals_are_a_disagreement(federation: Federation) -> None:
    """With a ring alone, they are the size of the layout."""
    error = error_of(federation, SiteThatAnnouncesAnotherTotal("east", 1000, to="south"), **RING)
    assert isinstance(error, Disagreement)
    assert "south has another layout than east" in str(error)


def test_identifiers_beyond_the_bounds_are_refused(federation: Federation) -> None:
    """Where there are bounds, a site cannot take more of the ring than they allow."""
    error = error_of(federation, SiteThatPassesOnAnotherOffset("south", 100_000), **METHODS["apsi"])
    assert isinstance(error, BadMessage)
    assert "more identifiers" in str(error)


def test_offsets_that_run_backwards_are_noticed_where_the_totals_fall_short(federation: Federation) -> None:
    """A site that passes on zero gives its own and earlier identifiers out again; the totals are then too small."""
    error = error_of(federation, SiteThatPassesOnAnotherOffset("south", 0), method="ring", padding=0)
    assert isinstance(error, BadMessage)
    assert "below what" in str(error)
