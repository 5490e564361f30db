"""An oblivious pseudo-random function on Curve25519: F_k(v) = H(k·M(v)), by u-coordinates alone.

asker      blind      Q = r·M(v) for a fresh r: says nothing of v
keyholder  evaluate   Z = k·Q: says nothing of k
asker      finalize   F = H(r⁻¹·Z)

M maps a text to a point of the curve by hashing until the hash is the u-coordinate of one (every second is). X25519
multiplies by clamped scalars only (8·j with the top bit set); modulo the group's order, one of r⁻¹ and -r⁻¹ has a
clamped form, and to a u-coordinate they are the same. Clamped scalars are multiples of eight: whatever point a peer
sends, nothing of small order comes of it, and a product of zero is refused.

How long M takes depends on the text; it runs at the site that owns the text, between messages that are sent for all
texts together.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence

import gmpy2
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

POINT_BYTES = 32
TOKEN_BYTES = 32
KEY_BYTES = 32

_P = 2**255 - 19
_A = 486662
# Order of the subgroup that multiples of eight live in.
_ORDER = 2**252 + 27742317777372353535851937790883648493
_ORDER_INVERSE = pow(_ORDER, -1, 8)
_LOW, _HIGH = 1 << 254, 1 << 255
_MASK = (1 << 255) - 1

RandomBytes = Callable[[int], bytes]


class BadPointError(ValueError):
    """Bytes that are no point to multiply."""


def gen_key(random_bytes: RandomBytes = secrets.token_bytes) -> bytes:
    """A keyholder's secret."""
    return random_bytes(KEY_BYTES)


def gen_blind(random_bytes: RandomBytes = secrets.token_bytes) -> bytes:
    """r, clamped."""
    scalar = bytearray(random_bytes(KEY_BYTES))
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    return bytes(scalar)


def map_to_point(text: bytes) -> bytes:
    """M(v): a point whose logarithm nobody knows."""
    counter = 0
    while True:
        digest = hashlib.sha512(b"commonscale/v1/oprf/map\0" + counter.to_bytes(4, "little") + text).digest()
        u = int.from_bytes(digest[:POINT_BYTES], "little") & _MASK
        if u < _P and _is_square((u * u % _P + _A * u + 1) * u % _P):
            return u.to_bytes(POINT_BYTES, "little")
        counter += 1


def blind(text: bytes, r: bytes) -> bytes:
    """Q = r·M(v)."""
    return _multiply(_scalar(r), map_to_point(text))


def dummy(random_bytes: RandomBytes = secrets.token_bytes) -> bytes:
    """What a blinded point looks like, of nothing."""
    return _scalar(random_bytes(KEY_BYTES)).public_key().public_bytes_raw()


def evaluate(key: bytes, points: Iterable[bytes]) -> list[bytes]:
    """Z = k·Q for each point."""
    secret = _scalar(key)
    return [_multiply(secret, point) for point in points]


def inverse_of(r: bytes) -> bytes:
    """r⁻¹ or -r⁻¹, clamped."""
    inverse = int(gmpy2.invert(int.from_bytes(r, "little"), _ORDER))
    found = _clamped(inverse) or _clamped(_ORDER - inverse)
    if found is None:
        raise BadPointError("not a blinding factor")
    return found


def finalize(inverse: bytes, evaluated: bytes) -> bytes:
    """F_k(v) from what the keyholder answered."""
    return _token(_multiply(_scalar(inverse), evaluated))


def tokens(key: bytes, texts: Sequence[bytes]) -> list[bytes]:
    """F_k(v) by whoever holds the key."""
    secret = _scalar(key)
    return [_token(_multiply(secret, map_to_point(text))) for text in texts]


def _token(point: bytes) -> bytes:
    return hashlib.sha256(b"commonscale/v1/oprf/token\0" + point).digest()


def _scalar(raw: bytes) -> X25519PrivateKey:
    if len(raw) != KEY_BYTES:
        raise BadPointError("a scalar has 32 bytes")
    return X25519PrivateKey.from_private_bytes(raw)


def _multiply(secret: X25519PrivateKey, point: bytes) -> bytes:
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(point))
    except ValueError:
        raise BadPointError("not a point that can be multiplied") from None


def _is_square(number: int) -> bool:
    """Zero is the square of zero."""
    return bool(gmpy2.jacobi(number, _P) >= 0)


def _clamped(scalar: int) -> bytes | None:
    """The clamped number that is the scalar modulo the group's order, if there is one."""
    # scalar + m·order must be a multiple of 8 in [2^254, 2^255): about four values of m, of which one in eight fits.
    m = -scalar * _ORDER_INVERSE % 8
    found = scalar + m * _ORDER
    while found < _LOW:
        found += 8 * _ORDER
    return found.to_bytes(KEY_BYTES, "little") if found < _HIGH else None
