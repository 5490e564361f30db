"""What holds for every method of common identifiers when a role does not keep to it: shapes, damage, replays.

Whatever has a shape is checked, and the error names who sent it. Some lies cannot be noticed, because only the liar
knows the truth: a keyholder that answers one site under another key, a coordinator that says two tokens are equal, a
site that sends the shares of nothing. Sites then have different ideas of a value; but they still end with one layout,
and no value is shown by it.
"""

from collections.abc import Callable

import anyio
import pytest

from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import COORDINATOR
from commonscale.errors import BadMessage, Disagreement
from tests.categories import METHODS, SITES, assert_equals_pooled, job
from tests.federation import Federation, MemoryJournal
from tests.misbehaving.roles import (
    COLUMNS,
    TABLES,
    CoordinatorThatChanges,
    CoordinatorThatDamages,
    CoordinatorThatReplays,
    Nobody,
    SiteThatChanges,
    error_of,
    field_of,
    names_role,
    run_with,
)

SIZES: dict[str, Callable[[bytes], bytes]] = {
    "one more": lambda raw: raw + raw[:32],
    "fewer": lambda raw: raw[32:],
    "none": lambda raw: b"",
    "a byte more": lambda raw: raw + b"\0",
    "too many by far": lambda raw: raw * 50,
}
# Whoever sends it, what, which field, by which method.
SHAPED = {
    "points": ("north", "match.BlindedItems", "points", "oprf"),
    "answers": ("east", "match.EvaluatedItems", "points", "oprf"),
    "tokens": ("north", "match.Tokens", "tokens", "oprf"),
    "positions": (COORDINATOR, "match.TokenPositions", "positions", "oprf"),
    "points of a pair": ("north", "psi.BlindedItems", "points", "apsi"),
    "an offer": ("east", "psi.PsiOffer", "points", "apsi"),
    "sealed tokens": ("north", "psi.hits.Tokens", "tokens", "otmppsi-2"),
    "hits": ("west", "psi.owners.Hits", "classes", "otmppsi-2"),
    "members": ("west", "psi.owners.Hits", "members", "otmppsi-3"),
    "identifiers": ("east", "psi.owners.ClassIdentifiers", "entries", "otmppsi-2"),
    "tables": ("north", "psi.hits.ShareTables", "shares", "otmppsi-3"),
    "points for shares": ("north", "psi.hits.BlindedItems", "points", "otmppsi-3"),
    "answers for shares": ("east", "psi.hits.EvaluatedItems", "points", "otmppsi-3"),
    "the last site's points": ("west", "psi.tokens.BlindedItems", "points", "otmppsi-3"),
    "answers to the last site": ("east", "psi.tokens.EvaluatedItems", "points", "otmppsi-3"),
    "unblinding": ("west", "psi.tokens.Unblinding", "scalars", "otmppsi-3"),
    "places": (COORDINATOR, "psi.tokens.OwnShares", "places", "otmppsi-3"),
    "own shares": (COORDINATOR, "psi.tokens.OwnShares", "shares", "otmppsi-3"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("what", SHAPED)
def test_more_or_less_than_the_bound_names_the_sender(federation: Federation, what: str, size: str) -> None:
    """Whatever is sent for every place up to the bound has exactly the bound's length, or is refused."""
    sender, kind, name, method = SHAPED[what]
    change = field_of(name, SIZES[size])
    liar = CoordinatorThatChanges(kind, change) if sender == COORDINATOR else SiteThatChanges(sender, kind, change)
    error = error_of(federation, liar, **METHODS[method])
    assert isinstance(error, BadMessage)
    assert names_role(error, sender)


@pytest.mark.parametrize("site", SITES)
def test_a_masked_sum_of_another_length_names_its_sender(federation: Federation, site: str) -> None:
    """The coordinator adds up vectors of one length only."""
    longer = field_of("elements", lambda raw: raw + bytes(8))
    error = error_of(federation, SiteThatChanges(site, "in-use.MaskedVector", longer))
    assert isinstance(error, BadMessage)
    assert f"{site} sent a bad in-use.MaskedVector" in str(error)


def begin_again(federation: Federation) -> None:
    """With the same members, and an empty memory."""
    federation.mailbox = MemoryMailbox()
    for member in federation.members.values():
        member.journal = MemoryJournal()


@pytest.mark.parametrize("kind", ["match.EvaluatedItems", "GroupKey"])
def test_a_message_of_another_run_is_refused(federation: Federation, kind: str) -> None:
    """Same sites, same certificates, same job: what was sealed in the first run is not for the second."""
    anyio.run(federation.run, job(SITES, COLUMNS), TABLES)
    before = federation.mailbox.slots
    begin_again(federation)
    error = error_of(federation, CoordinatorThatReplays("north", kind, before))
    assert isinstance(error, Disagreement)
    assert f"The signature of east on {kind}" in str(error)


DAMAGED = {
    "oprf": [
        "bounds.1.Answers", "match.TokenPositions", "match.EvaluatedItems", "in-use.HiddenTotal", "GroupKey",
        "layout.Confirmations",
    ],
    "apsi": ["psi.PsiOffer", "psi.PsiAnswer", "ring.RingOffsets", "ring.RingTotals"],
    "otmppsi-3": ["psi.hits.EvaluatedItems", "psi.owners.Hits", "psi.owners.ClassIdentifiers"],
}  # fmt: skip
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda raw: raw[: len(raw) // 2],
    "noise": lambda raw: b"\xff" * 40,
    "empty": lambda raw: b"",
}


@pytest.mark.parametrize(("method", "kind"), [(method, kind) for method, kinds in DAMAGED.items() for kind in kinds])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_messages_are_typed_errors(federation: Federation, method: str, kind: str, damage: str) -> None:
    """Whatever the coordinator passes on to north."""
    error = error_of(federation, CoordinatorThatDamages("north", kind, DAMAGES[damage]), **METHODS[method])
    assert isinstance(error, (BadMessage, Disagreement)), repr(error)


def test_honest_roles_are_right_in_this_harness(federation: Federation) -> None:
    """The lies are what the errors come from; also where a message is parsed and written again."""
    assert_equals_pooled(run_with(federation, Nobody()), TABLES, COLUMNS)
    begin_again(federation)
    unchanged = SiteThatChanges("north", "match.Tokens", lambda message: None)
    assert_equals_pooled(run_with(federation, unchanged), TABLES, COLUMNS)
