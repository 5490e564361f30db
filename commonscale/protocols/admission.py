"""Admission: who takes part in a job, with which keys, on which schema.

1. Each site answers the invitation: a refusal with its reason, or an acceptance with the hash of the job's
   spec, fresh X25519 keys for this job and the schema of the requested columns; signed with the key of its
   certificate.
2. The coordinator compares the schemas and sends the roster: all answers, in ring order.
3. Each site checks every entry (certificate from the pinned CA, role, revocation, signature, same spec,
   same schema, at least three sites) and confirms the roster's hash with all the others (agreement).

Reveals: to the coordinator and to all sites, each site's name, its verdict, and the names and types of the
requested columns. To the analyst, a refusal's reason. No data.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from commonscale.channel.channel import Channel, parse
from commonscale.channel.seal import Envelope, JobKeys, Member
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Disagreement, MissingColumn, NotAllowed, Refused, TooFewSites, WrongType
from commonscale.identity import Authority, Identity, Role
from commonscale.protocols import agreement
from commonscale.results import plain_text
from commonscale.reveal import Reveal
from commonscale.v1.protocols_pb2 import Acceptance, Answer, Column, ColumnKind, Roster, RosterEntry, Signed
from crypto import signing

MIN_SITES = 3

VERDICTS = Reveal("", "each site's verdict, and names and types of the requested columns where it accepted")


def sign_answer(ch: Channel, answer: Answer, identity: signing.SigningKey, certificate: bytes) -> Signed:
    """An answer in the form in which every other site can check it."""
    body = answer.SerializeToString(deterministic=True)
    signature = signing.sign(identity, ch.slot(Signed, ch.me, COORDINATOR).context(), body)
    return Signed(body=body, signature=signature, certificate=certificate)


def acceptance(spec: bytes, keys: JobKeys, columns: Sequence[Column]) -> Answer:
    """Yes, with fresh keys and the schema."""
    return Answer(
        acceptance=Acceptance(
            spec_sha256=hashlib.sha256(spec).digest(),
            seal_key=keys.seal.public_key().public_bytes_raw(),
            mask_key=keys.mask.public_key().public_bytes_raw(),
            columns=columns,
        )
    )


async def site(ch: Channel, spec: bytes, keys: JobKeys, identity: signing.SigningKey, authority: Authority) -> Channel:
    """Role of a site that has accepted: returns the channel for everything from here on, with its seals."""
    # 3. Check the roster and agree on it.
    roster = await ch.under(VERDICTS).recv_broadcast(Roster)
    envelope = await offload(verify_roster, ch, roster, spec, keys, identity, authority)
    admitted = replace(ch, envelope=envelope, roster_digest=envelope.roster_digest)
    await agreement.agree(admitted.scope("roster"), envelope.roster_digest)
    return admitted


async def coordinator(ch: Channel) -> Channel:
    """Role of the coordinator: raises Refused with every refusing site's reason."""
    # 1. Everyone's answer.
    signed = await ch.under(VERDICTS).gather(Signed)
    answers = {site: parse(Answer, s.body, ch.slot(Signed, site, COORDINATOR)) for site, s in signed.items()}
    refusals = {
        site: plain_text(a.refusal.reason) for site, a in answers.items() if a.WhichOneof("verdict") == "refusal"
    }
    if refusals:
        raise Refused(" ".join(f"{site} refused: {reason}" for site, reason in refusals.items()))
    # 2. The roster, once the schemas agree.
    compare_schemas({site: answer.acceptance for site, answer in answers.items()})
    roster = Roster(entries=[RosterEntry(site=site, answer=signed[site]) for site in ch.sites])
    await ch.under(VERDICTS).broadcast(roster)
    await agreement.agree(ch.scope("roster"), b"")
    return replace(ch, roster_digest=_digest(roster))


def verify_roster(
    ch: Channel, roster: Roster, spec: bytes, keys: JobKeys, identity: signing.SigningKey, authority: Authority
) -> Envelope:
    """Step 3: every entry is a member's own word for this job."""
    if tuple(entry.site for entry in roster.entries) != tuple(ch.sites):
        raise Disagreement("The roster does not list the sites that the job names.")
    check_count(len(roster.entries))
    acceptances: dict[str, Acceptance] = {}
    members: dict[str, Member] = {}
    for entry in roster.entries:
        slot = ch.slot(Signed, entry.site, COORDINATOR)
        verify_key = _verify_answer(slot, entry.answer, authority)
        accepted = parse(Answer, entry.answer.body, slot).acceptance
        if accepted.spec_sha256 != hashlib.sha256(spec).digest():
            raise Disagreement(f"{entry.site} accepted another job specification than {ch.me}.")
        acceptances[entry.site] = accepted
        members[entry.site] = _member(entry.site, verify_key, accepted)
    compare_schemas(acceptances)
    if members[ch.me].mask_key != keys.mask.public_key() or members[ch.me].seal_key != keys.seal.public_key():
        raise Disagreement(f"The roster lists other keys for {ch.me} than it made.")
    return Envelope(ch.me, identity, keys, members, _digest(roster))


def _digest(roster: Roster) -> bytes:
    return hashlib.sha256(roster.SerializeToString(deterministic=True)).digest()


def _verify_answer(slot: Slot, signed: Signed, authority: Authority) -> signing.VerifyKey:
    try:
        certificate = x509.load_der_x509_certificate(signed.certificate)
    except (ValueError, x509.InvalidVersion):
        raise BadMessage(f"The roster's certificate of {slot.sender} is not readable.") from None
    holder = authority.verify(certificate)
    key = certificate.public_key()
    if holder != Identity(Role.SITE, slot.sender) or not isinstance(key, ec.EllipticCurvePublicKey):
        raise NotAllowed(f"The roster gives the certificate of {holder} for site {slot.sender}.")
    try:
        signing.verify(key, slot.context(), signed.body, signed.signature)
    except ValueError:
        raise Disagreement(f"The answer of {slot.sender} was altered on its way.") from None
    return key


def _member(name: str, verify_key: signing.VerifyKey, accepted: Acceptance) -> Member:
    try:
        seal, mask = (X25519PublicKey.from_public_bytes(raw) for raw in (accepted.seal_key, accepted.mask_key))
    except ValueError:
        raise BadMessage(f"The job keys of {name} are not X25519 public keys.") from None
    return Member(name, verify_key, seal, mask)


def check_count(sites: int) -> None:
    """Raise where a sum would reveal two sites to each other."""
    if sites < MIN_SITES:
        raise TooFewSites(f"{sites} sites are too few: a sum needs at least {MIN_SITES}.")


def compare_schemas(acceptances: dict[str, Acceptance]) -> None:
    """All sites name the same columns with the same kinds."""
    (first, reference), *others = acceptances.items()
    expected = {column.name: column.kind for column in reference.columns}
    for site, accepted in others:
        found = {column.name: column.kind for column in accepted.columns}
        for name in expected.keys() ^ found.keys():
            holder, lacking = (first, site) if name in expected else (site, first)
            raise MissingColumn(f"Column {name!r} is at {holder} but not at {lacking}.")
        for name, kind in found.items():
            if kind != expected[name]:
                raise WrongType(
                    f"Column {name!r} is {_kind(kind)} at {site} but {_kind(expected[name])} at {first}.",
                    "Give it the same type at every site.",
                )


def _kind(kind: ColumnKind.ValueType) -> str:
    return ColumnKind.Name(kind).removeprefix("COLUMN_KIND_").lower()
