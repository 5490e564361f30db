"""Site-to-site messages: sealed to the receiver with HPKE, signed by the sender, bound to their slot.

HPKE is RFC 9180 with X25519, HKDF-SHA256 and AES-256-GCM. The receiving key lives for one job and is
signed, in the site's answer, by the key of the site's certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from google.protobuf.message import DecodeError

from commonscale.channel.slot import Slot
from commonscale.errors import BadMessage, Disagreement, StateLost
from commonscale.v1 import protocols_pb2
from crypto import masks, signing

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_KEY_BYTES = 32


@dataclass(frozen=True)
class JobKeys:
    """A site's secrets for one job: made when it accepts, forgotten when the job ends."""

    seal: X25519PrivateKey = field(repr=False)
    mask: X25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> JobKeys:
        """Fresh keys."""
        return cls(X25519PrivateKey.generate(), X25519PrivateKey.generate())

    def to_bytes(self) -> bytes:
        """For the journal."""
        return self.seal.private_bytes_raw() + self.mask.private_bytes_raw()

    @classmethod
    def from_bytes(cls, raw: bytes) -> JobKeys:
        """From the journal."""
        if len(raw) != 2 * _KEY_BYTES:
            raise StateLost("The stored job keys are damaged.", "Submit the job again.")
        return cls(*(X25519PrivateKey.from_private_bytes(raw[at : at + _KEY_BYTES]) for at in (0, _KEY_BYTES)))


@dataclass(frozen=True)
class Member:
    """What the roster says of a site: the keys that it signed for this job."""

    name: str
    verify_key: signing.VerifyKey
    seal_key: X25519PublicKey
    mask_key: X25519PublicKey


@dataclass(frozen=True)
class Envelope:
    """A site's keys in a job together with the agreed roster."""

    me: str
    identity: signing.SigningKey = field(repr=False)
    keys: JobKeys
    members: dict[str, Member]
    roster_digest: bytes
    # Mask keys that were needed already: the same in all rounds.
    _pairs: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def seal(self, slot: Slot, body: bytes) -> bytes:
        """Encrypt to the slot's receiver and sign."""
        sealed = _SUITE.encrypt(body, self.members[slot.receiver].seal_key, self._context(slot))
        signature = signing.sign(self.identity, self._context(slot), sealed)
        return protocols_pb2.Signed(body=sealed, signature=signature).SerializeToString(deterministic=True)

    def open(self, slot: Slot, payload: bytes) -> bytes:
        """Check the sender's signature, then decrypt."""
        try:
            signed = protocols_pb2.Signed.FromString(payload)
        except DecodeError:
            raise BadMessage(f"{slot.sender} sent a malformed {slot.kind} in {slot.run}.") from None
        self.verify(slot, signed.body, signed.signature)
        try:
            return _SUITE.decrypt(signed.body, self.keys.seal, self._context(slot))
        except (InvalidTag, ValueError):
            raise BadMessage(f"{slot.sender}'s {slot.kind} in {slot.run} is not sealed to {self.me}.") from None

    def sign(self, slot: Slot, body: bytes) -> bytes:
        """A signature over (roster, slot, body)."""
        return signing.sign(self.identity, self._context(slot), body)

    def verify(self, slot: Slot, body: bytes, signature: bytes) -> None:
        """Raise unless the slot's sender signed this body for this slot."""
        try:
            signing.verify(self.members[slot.sender].verify_key, self._context(slot), body, signature)
        except ValueError:
            raise Disagreement(
                f"The signature of {slot.sender} on {slot.kind} in {slot.run} does not hold: "
                "the message was altered on its way, or another roster was shown to that site."
            ) from None

    def pair_keys(self, sites: Sequence[str]) -> dict[str, bytes]:
        """One mask key with each of these other sites."""
        for name in sites:
            if name not in self._pairs:
                self._pairs[name] = masks.pair_key(self.keys.mask, self.members[name].mask_key, self.roster_digest)
        return {name: self._pairs[name] for name in sites}

    def _context(self, slot: Slot) -> bytes:
        return self.roster_digest + slot.context()
