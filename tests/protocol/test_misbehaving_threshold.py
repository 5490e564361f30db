"""Sites and coordinators that do not keep to over-threshold intersection."""

import pytest

from commonscale.channel.slot import COORDINATOR
from commonscale.errors import BadMessage
from tests.categories import METHODS, assert_equals_pooled, assert_one_layout, held
from tests.federation import Federation
from tests.misbehaving.roles import COLUMNS, TABLES, Misbehaving, error_of, names_role, run_with
from tests.misbehaving.threshold import (
    CoordinatorThatMakesAShareBeyondTheField,
    SiteThatGivesOneIdentifierForAll,
    SiteThatInventsHits,
    SiteThatSendsAShareBeyondTheField,
    SiteThatSendsSharesOfNothing,
)


def test_classes_that_nobody_shares_change_nothing(federation: Federation) -> None:
    """A reconstructor that invents hits and tells north alone: nobody sends it an identifier for them."""
    results = run_with(federation, SiteThatInventsHits("west", to="north"), **METHODS["otmppsi-2"])
    assert_equals_pooled(results, TABLES, COLUMNS)


def test_a_class_that_only_the_first_holder_was_told_of_is_refused(federation: Federation) -> None:
    """East is told that north shares everything; north was told nothing of that."""
    error = error_of(federation, SiteThatInventsHits("west", to="east"), **METHODS["otmppsi-2"])
    assert isinstance(error, BadMessage)
    assert "east sent an identifier" in str(error)
    assert "north does not share" in str(error)


@pytest.mark.parametrize("method", ["otmppsi-2", "otmppsi-3"])
def test_one_identifier_for_two_values_is_refused(federation: Federation, method: str) -> None:
    """A first holder that gives the same one for every class would make two values one."""
    error = error_of(federation, SiteThatGivesOneIdentifierForAll("east", to="north"), **METHODS[method])
    assert isinstance(error, BadMessage)
    assert "for two values" in str(error)


@pytest.mark.parametrize(
    ("role", "liar"),
    [("north", SiteThatSendsAShareBeyondTheField("north")), (COORDINATOR, CoordinatorThatMakesAShareBeyondTheField())],
    ids=["a site", "the coordinator"],
)
def test_shares_that_are_no_field_elements_name_their_sender(
    federation: Federation, role: str, liar: Misbehaving
) -> None:
    """A share is below the prime."""
    error = error_of(federation, liar, **METHODS["otmppsi-3"])
    assert isinstance(error, BadMessage)
    assert "not below the prime" in str(error)
    assert names_role(error, role)


def test_other_shares_lose_a_site_its_hits_and_no_more(federation: Federation) -> None:
    """Random shares cannot be told from real ones: south then shares nothing, and the others are right."""
    results = run_with(federation, SiteThatSendsSharesOfNothing("south"), **METHODS["otmppsi-3"])
    assert_one_layout(results)
    found = held(results, 0)
    assert found["east"]["x!"] == found["north"]["x!"] == found["west"]["x!"]
    assert found["south"]["x!"] != found["east"]["x!"]
