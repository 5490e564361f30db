"""Coordinators and sites that do not keep to admission and agreement: caught before anything is released."""

from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np
import pytest

from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.seal import JobKeys
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.errors import (
    BadMessage,
    CommonscaleError,
    Disagreement,
    Equivocation,
    MissingColumn,
    NotAllowed,
    TooFewSites,
    WrongType,
)
from commonscale.identity import Role
from commonscale.pipeline import Pipeline
from commonscale.protocols import admission
from commonscale.v1 import protocols_pb2 as wire
from tests.federation import Federation, NumpySource
from tests.misbehaving.roles import CoordinatorThatShows, Rewrite, failed_run

SITES = ("east", "north", "west")
COLUMNS = ["a"]
TABLES = {site: NumpySource(COLUMNS, np.arange(5.0)) for site in SITES}


def pipeline(method: str = "masks") -> Pipeline:
    return Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": COLUMNS, "method": method}]})


def run_with_lie(
    federation: Federation, rewrite: Rewrite, victim: str = "north", method: str = "masks"
) -> CommonscaleError:
    """The error that the first site to notice raises."""
    return failed_run(federation, CoordinatorThatShows(victim, rewrite), pipeline(method), TABLES)[0]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, SITES)


def test_a_swapped_roster_key_is_caught(federation: Federation) -> None:
    """A coordinator that puts its own mask key into a site's answer cannot sign it as that site."""

    def own_key(slot: Slot, payload: bytes) -> bytes:
        if slot.kind != "Roster":
            return payload
        roster = wire.Roster.FromString(payload)
        answer = wire.Answer.FromString(roster.entries[0].answer.body)
        answer.acceptance.mask_key = JobKeys.generate().mask.public_key().public_bytes_raw()
        roster.entries[0].answer.body = answer.SerializeToString()
        return roster.SerializeToString()

    error = run_with_lie(federation, own_key)
    assert isinstance(error, Disagreement)
    assert "The answer of east was altered" in str(error)
    assert not any("MaskedVector" in slot.kind for slot in federation.mailbox.slots)


def test_a_site_impersonated_with_another_certificate_is_caught(federation: Federation) -> None:
    """Signed by a valid member, but not by the site that it claims to be."""
    mallory = federation.enrol("mallory")

    def impersonate(slot: Slot, payload: bytes) -> bytes:
        if slot.kind != "Roster":
            return payload
        from cryptography.hazmat.primitives import serialization

        roster = wire.Roster.FromString(payload)
        answer = wire.Answer.FromString(roster.entries[0].answer.body)
        answer.acceptance.mask_key = JobKeys.generate().mask.public_key().public_bytes_raw()
        ch = federation.channel(slot.run, "east")
        der = mallory.certificate.public_bytes(serialization.Encoding.DER)
        roster.entries[0].answer.CopyFrom(admission.sign_answer(ch, answer, mallory.key, der))
        return roster.SerializeToString()

    error = run_with_lie(federation, impersonate)
    assert isinstance(error, NotAllowed)
    assert "the certificate of site mallory for site east" in str(error)


@pytest.mark.parametrize("drop", [0, 2])
def test_two_different_sets_of_sites_are_caught(federation: Federation, drop: int) -> None:
    """No sum is opened over a set that not everyone knows."""

    def smaller(slot: Slot, payload: bytes) -> bytes:
        if slot.kind != "Roster":
            return payload
        roster = wire.Roster.FromString(payload)
        del roster.entries[drop]
        return roster.SerializeToString()

    error = run_with_lie(federation, smaller)
    assert isinstance(error, (Disagreement, TooFewSites))
    assert not any("MaskedVector" in slot.kind for slot in federation.mailbox.slots)


def test_a_revoked_member_in_the_roster_is_refused(federation: Federation) -> None:
    """By every site, whatever the coordinator thinks."""
    federation.ca.revoke("east")
    federation.authority.revocations.update(federation.ca.crl_path.read_bytes())
    error = run_with_lie(federation, lambda _, payload: payload)
    assert isinstance(error, NotAllowed)
    assert "site east is revoked" in str(error)


def test_a_non_site_in_the_roster_is_refused(federation: Federation) -> None:
    """An analyst's certificate does not make a site."""
    for path in (federation.ca.directory / "issued").glob("site-east-*"):
        path.unlink()  # a CA that forgot what it issued
    federation.members["east"] = federation.enrol("east", Role.ANALYST)
    error = run_with_lie(federation, lambda _, payload: payload)
    assert isinstance(error, NotAllowed)
    assert "the certificate of analyst east for site east" in str(error)


def test_an_altered_share_is_caught(federation: Federation) -> None:
    """A sealed share is signed: one flipped bit and the sender is named."""

    def flip(slot: Slot, payload: bytes) -> bytes:
        if slot.kind != "mean.Share" or slot.sender != "east":
            return payload
        signed = wire.Signed.FromString(payload)
        signed.body = signed.body[:-1] + bytes([signed.body[-1] ^ 1])
        return signed.SerializeToString()

    error = run_with_lie(federation, flip, method="shares")
    assert isinstance(error, Disagreement)
    assert "The signature of east on mean.Share" in str(error)


def test_a_share_replayed_from_another_slot_is_caught(federation: Federation) -> None:
    """The signature binds it to its run and kind."""

    def replay(slot: Slot, payload: bytes) -> bytes:
        if slot.kind != "variance.Share" or slot.sender != "east":
            return payload
        return federation.mailbox.slots[Slot(slot.run, "mean.Share", slot.sender, slot.receiver)]

    error = run_with_lie(federation, replay, method="shares")
    assert isinstance(error, Disagreement)
    assert "on variance.Share" in str(error)


@pytest.mark.parametrize(
    "kind", ["Roster", "roster.Confirmations", "mean.Total", "variance.Total", "finish.Confirmations"]
)
@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"\xff" * 40, lambda b: b""], ids=["cut", "noise", "empty"]
)
def test_malformed_messages_are_typed_errors(
    federation: Federation, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    """Whatever the coordinator sends."""
    error = run_with_lie(federation, lambda slot, payload: damage(payload) if slot.kind == kind else payload)
    assert isinstance(error, (BadMessage, Disagreement))


def test_confirmations_cannot_be_forged(federation: Federation) -> None:
    """A coordinator cannot answer for a site."""

    def forge(slot: Slot, payload: bytes) -> bytes:
        if slot.kind != "finish.Confirmations":
            return payload
        confirmations = wire.Confirmations.FromString(payload)
        confirmations.confirmations[0].signature = confirmations.confirmations[1].signature
        return confirmations.SerializeToString()

    error = run_with_lie(federation, forge)
    assert isinstance(error, Disagreement)
    assert "The signature of east" in str(error)


def test_a_vector_of_the_wrong_length_names_its_sender(federation: Federation) -> None:
    """The coordinator's role refuses it."""
    federation.mailbox.slots[Slot("job-1/0", "mean.MaskedVector", "east", COORDINATOR)] = wire.MaskedVector(
        elements=bytes(32)
    ).SerializeToString()
    error = run_with_lie(federation, lambda _, payload: payload)
    assert isinstance(error, (BadMessage, Equivocation))
    assert "east" in str(error)


def test_two_payloads_for_one_slot_are_an_equivocation() -> None:
    """The first stays."""

    async def work() -> None:
        mailbox = MemoryMailbox()
        slot = Slot("job-1", "Signed", "east", COORDINATOR)
        await mailbox.put(slot, b"one")
        await mailbox.put(slot, b"one")
        with pytest.raises(Equivocation, match="east"):
            await mailbox.put(slot, b"two")
        assert await mailbox.get(slot) == b"one"

    anyio.run(work)


def test_schemas_that_differ_name_site_and_column() -> None:
    """Before any protocol starts."""
    number, text = wire.ColumnKind.COLUMN_KIND_NUMBER, wire.ColumnKind.COLUMN_KIND_TEXT

    def accepted(**columns: wire.ColumnKind.ValueType) -> wire.Acceptance:
        return wire.Acceptance(columns=[wire.Column(name=name, kind=kind) for name, kind in columns.items()])

    with pytest.raises(MissingColumn, match="'age' is at east but not at west"):
        admission.compare_schemas({"east": accepted(age=number), "west": accepted()})
    with pytest.raises(WrongType, match="'age' is text at west but number at east"):
        admission.compare_schemas({"east": accepted(age=number), "west": accepted(age=text)})
