"""ECDSA P-256 signatures, each bound to a context so that it cannot be replayed elsewhere."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

SigningKey = ec.EllipticCurvePrivateKey
VerifyKey = ec.EllipticCurvePublicKey

_ALGORITHM = ec.ECDSA(SHA256())


def generate() -> SigningKey:
    """A fresh key."""
    return ec.generate_private_key(ec.SECP256R1())


def sign(key: SigningKey, context: bytes, body: bytes) -> bytes:
    """A signature over (context, body)."""
    return key.sign(_frame(context, body), _ALGORITHM)


def verify(key: VerifyKey, context: bytes, body: bytes, signature: bytes) -> None:
    """Raise ValueError unless `signature` is this key's over (context, body)."""
    try:
        key.verify(signature, _frame(context, body), _ALGORITHM)
    except InvalidSignature:
        raise ValueError("signature does not match") from None


def _frame(context: bytes, body: bytes) -> bytes:
    # The length keeps (context, body) apart from every other split of the same bytes.
    return b"commonscale/v1/signed\0" + len(context).to_bytes(4, "big") + context + body
