"""Sites and coordinators that do not keep to the matching of tokens."""

from collections.abc import Callable

import anyio
import pytest

from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.errors import BadMessage
from tests.categories import METHODS, SITES, assert_one_layout, held, job
from tests.federation import JOB, Federation
from tests.misbehaving.matching import (
    LOW_ORDER,
    CoordinatorThatShowsOtherPositions,
    CoordinatorThatSwapsPositions,
    SiteThatAnswersUnderAnotherKey,
    SiteThatReplaysTokens,
    SiteThatSendsAPointOfLowOrder,
    SiteThatSendsATokenTwice,
)
from tests.misbehaving.roles import COLUMNS, TABLES, error_of, run_with
from tests.protocol.test_misbehaving_encodings import begin_again

RUN = f"{JOB}/0"


@pytest.mark.parametrize("u", LOW_ORDER, ids=range(len(LOW_ORDER)))
@pytest.mark.parametrize(
    ("site", "kind", "method"),
    [
        ("north", "match.BlindedItems", "oprf"),
        ("east", "match.EvaluatedItems", "oprf"),
        ("east", "psi.PsiOffer", "apsi"),
        ("east", "psi.hits.EvaluatedItems", "otmppsi-3"),
        ("east", "psi.tokens.EvaluatedItems", "otmppsi-3"),
    ],
)
def test_points_of_low_order_name_their_sender(
    federation: Federation, site: str, kind: str, method: str, u: int
) -> None:
    """Zero and its like would show the other's secret, or give every value one token."""
    error = error_of(federation, SiteThatSendsAPointOfLowOrder(site, kind, u), **METHODS[method])
    assert isinstance(error, BadMessage)
    assert f"{site} sent bytes" in str(error)
    assert "no point" in str(error)


def test_a_token_sent_twice_names_the_site(federation: Federation) -> None:
    """Two of its values would get one position."""
    error = error_of(federation, SiteThatSendsATokenTwice("south"))
    assert isinstance(error, BadMessage)
    assert "south sent a token twice" in str(error)


@pytest.mark.parametrize(
    "change",
    [lambda raw: 2 * raw[:4] + raw[8:], lambda raw: (64).to_bytes(4, "little") + raw[4:], lambda raw: bytes(len(raw))],
    ids=["one twice", "out of range", "all zero"],
)
def test_positions_that_cannot_be_are_refused(federation: Federation, change: Callable[[bytes], bytes]) -> None:
    """No two of a site's values share one, and all are below sites × bound."""
    error = error_of(federation, CoordinatorThatShowsOtherPositions("north", change))
    assert isinstance(error, BadMessage)
    assert "The coordinator sent positions" in str(error)


def test_swapped_positions_cannot_be_noticed_but_leave_one_layout(federation: Federation) -> None:
    """A coordinator may claim that tokens are equal that are not: it is trusted with matching, not with values.

    It swaps what east and north are told; they end with each other's identifiers, and everyone with one layout.
    """
    results = run_with(federation, CoordinatorThatSwapsPositions(RUN, "east", "north"))
    assert_one_layout(results)
    assert held(results, 0)["south"]["x!"] == held(results, 0)["west"]["x!"], "the others are not touched"


def test_a_keyholder_that_answers_under_another_key_parts_one_site_from_the_others(federation: Federation) -> None:
    """It cannot be noticed; north then shares no value with anyone, and the others are right."""
    results = run_with(federation, SiteThatAnswersUnderAnotherKey("east", to="north"))
    assert_one_layout(results)
    found = held(results, 0)
    assert found["east"]["x!"] == found["south"]["x!"] == found["west"]["x!"]
    assert found["north"]["x!"] not in found["east"].values()


def test_replayed_tokens_end_in_an_error_or_share_nothing(federation: Federation) -> None:
    """A site that sends the tokens of an earlier run, under another key, shares no value with anyone."""
    anyio.run(federation.run, job(SITES, COLUMNS), TABLES)
    before = federation.mailbox.slots[Slot(RUN, "match.Tokens", "south", COORDINATOR)]
    begin_again(federation)
    results = run_with(federation, SiteThatReplaysTokens("south", before))
    assert_one_layout(results)
    found = held(results, 0)
    assert found["east"]["x!"] == found["north"]["x!"] == found["west"]["x!"] != found["south"]["x!"]
