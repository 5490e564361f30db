"""The oblivious pseudo-random function: vectors, blinding, points that are refused."""

import random
import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import oprf

ORDER = 2**252 + 27742317777372353535851937790883648493
P = 2**255 - 19
# u-coordinates of the points of order 1, 2, 4 and 8, on the curve and its twist, in all their spellings.
LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P - 1,
    P,
    P + 1,
]
VECTORS = {
    "point of nothing": "b36f7a433a741047689a6324024f4cbfeed5b6a1e7db9ee0924f745af40d4725",
    "point of flu": "4455ad1a2482954bf5d26c10cd1e38446660b42c6996843e4f8bcbe7c78dc552",
    "token of flu": "314d7a7945de5b4bccb0b37320c75997bfc4ab0a75ea1e05e34a806012dcf014",
    "blind": "f0b165224a58b791df6af1d8303e61cdc4bb86c3d1c427103c344c4189eb2f5e",
    "blinded flu": "2249cd7b42119922bf6b5b1baaab181a175025d2f905d19f4c17e4c4025c9146",
}


def bytes_from(seed: int) -> oprf.RandomBytes:
    return random.Random(seed).randbytes


def test_vectors() -> None:
    """The same texts have the same points and tokens in every release, or sites of two could not work together."""
    assert oprf.map_to_point(b"").hex() == VECTORS["point of nothing"]
    assert oprf.map_to_point(b"flu").hex() == VECTORS["point of flu"]
    (token,) = oprf.tokens(bytes(range(32)), [b"flu"])
    assert token.hex() == VECTORS["token of flu"]
    assert oprf.gen_blind(bytes_from(1)).hex() == VECTORS["blind"]
    assert oprf.blind(b"flu", oprf.gen_blind(bytes_from(1))).hex() == VECTORS["blinded flu"]


@given(st.binary(max_size=80))
def test_points_are_on_the_curve(text: bytes) -> None:
    """v² = u³ + 486662·u² + u has a solution: a point of the twist would tell its text apart."""
    u = int.from_bytes(oprf.map_to_point(text), "little")
    assert u < P
    assert pow((u**3 + 486662 * u**2 + u) % P, (P - 1) // 2, P) in (0, 1)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_asking_gives_what_the_keyholder_computes(texts: list[bytes]) -> None:
    """finalize(evaluate(blind)) is the token under the key."""
    key, blinds = oprf.gen_key(), [oprf.gen_blind() for _ in texts]
    evaluated = oprf.evaluate(key, map(oprf.blind, texts, blinds))
    found = [oprf.finalize(oprf.inverse_of(r), point) for r, point in zip(blinds, evaluated, strict=True)]
    assert found == oprf.tokens(key, texts)
    assert all(len(token) == oprf.TOKEN_BYTES for token in found)


def test_blinding_hides() -> None:
    """A value is blinded differently every time, and never as its own point."""
    key, points = oprf.gen_key(), [oprf.blind(b"flu", oprf.gen_blind()) for _ in range(50)]
    assert len(set(points)) == 50
    assert oprf.map_to_point(b"flu") not in points
    # Half of the bits are set, whatever is blinded.
    assert abs(sum(int.from_bytes(point, "little").bit_count() for point in points) / 50 - 127.5) < 10
    assert len(set(oprf.evaluate(key, points))) == 50


def test_another_blind_gives_another_token() -> None:
    """Only the factor that blinded a value takes it away again."""
    key = oprf.gen_key()
    (evaluated,) = oprf.evaluate(key, [oprf.blind(b"flu", oprf.gen_blind())])
    assert oprf.finalize(oprf.inverse_of(oprf.gen_blind()), evaluated) != oprf.tokens(key, [b"flu"])[0]


def test_tokens_depend_on_key_and_text() -> None:
    """Neither two keys nor two texts share one."""
    texts = [b"", b"a", b"b", b"ab", b"a" * 10_000]
    found = [token for _ in range(5) for token in oprf.tokens(oprf.gen_key(), texts)]
    assert len(set(found)) == len(found)


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_every_clamped_inverse_works(seed: int) -> None:
    """A blinding factor and its inverse are both clamped, and multiply to one."""
    r = oprf.gen_blind(bytes_from(seed))
    inverse = oprf.inverse_of(r)
    for scalar in (r, inverse):
        number = int.from_bytes(scalar, "little")
        assert number % 8 == 0
        assert 2**254 <= number < 2**255
    assert int.from_bytes(r, "little") * int.from_bytes(inverse, "little") % ORDER in (1, ORDER - 1)
    assert oprf.inverse_of(inverse) is not None


@pytest.mark.parametrize("u", LOW_ORDER, ids=range(len(LOW_ORDER)))
def test_points_of_low_order_are_refused(u: int) -> None:
    """By who multiplies with a key, and by who takes the blinding away."""
    point = u.to_bytes(32, "little")
    with pytest.raises(oprf.BadPointError):
        oprf.evaluate(oprf.gen_key(), [oprf.dummy(), point])
    with pytest.raises(oprf.BadPointError):
        oprf.finalize(oprf.inverse_of(oprf.gen_blind()), point)


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_bytes_of_another_length_are_refused(length: int) -> None:
    """Points and scalars have 32."""
    raw = secrets.token_bytes(length)
    with pytest.raises(oprf.BadPointError):
        oprf.evaluate(oprf.gen_key(), [raw])
    with pytest.raises(oprf.BadPointError):
        oprf.evaluate(raw, [oprf.dummy()])
    with pytest.raises(oprf.BadPointError):
        oprf.finalize(raw, oprf.dummy())
    with pytest.raises(oprf.BadPointError):
        oprf.blind(b"flu", raw)
    with pytest.raises(oprf.BadPointError):
        oprf.tokens(raw, [b"flu"])


def test_dummies_look_like_blinded_points() -> None:
    """Both are multiples of eight of curve points, so of the group's order: the order times either is nothing."""
    for point in (oprf.dummy(), oprf.blind(b"flu", oprf.gen_blind())):
        u = int.from_bytes(point, "little")
        assert pow((u**3 + 486662 * u**2 + u) % P, (P - 1) // 2, P) in (0, 1)
        assert times(ORDER, u) is None


def times(scalar: int, u: int) -> int | None:
    """Montgomery's ladder; None is the neutral element."""
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in bin(scalar)[2:]:
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % P, b * b % P, d * a % P, c * b % P
        e = aa - bb
        x2, z2, x3, z3 = aa * bb % P, e * (aa + 121665 * e) % P, (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return x2 * pow(z2, -1, P) % P if z2 else None


def test_evaluation_is_multiplication_on_the_curve() -> None:
    """Against a ladder in Python integers."""
    key, point = oprf.gen_key(bytes_from(3)), oprf.map_to_point(b"flu")
    clamped = bytearray(key)
    clamped[0] &= 248
    clamped[31] = clamped[31] & 127 | 64
    expected = times(int.from_bytes(clamped, "little"), int.from_bytes(point, "little"))
    assert expected is not None
    assert oprf.evaluate(key, [point]) == [expected.to_bytes(32, "little")]
