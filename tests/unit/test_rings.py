"""Arithmetic of the rings, against Python's integers."""

import secrets
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import field61
from crypto.rings import FIELD61, Z256, BadElementsError, Ring, Vector, Wide

RINGS: dict[str, tuple[Ring, int]] = {
    "field61": (FIELD61, field61.PRIME),
    "z256": (Z256, 2**256),
    **{f"wide{width}": (Wide(width), 256**width) for width in (1, 7, 8, 9, 40, 20_008)},
}
every_ring = pytest.mark.parametrize(("ring", "modulus"), RINGS.values(), ids=RINGS)


def vector_of(ring: Ring, values: list[int]) -> Vector:
    """Elements below the modulus."""
    raw = b"".join(value.to_bytes(ring.element_bytes, "little") for value in values)
    return ring.from_bytes(raw, len(values))


def integers_of(ring: Ring, vector: Vector) -> list[int]:
    """The inverse, from the bytes on the wire."""
    raw, width = ring.to_bytes(vector), ring.element_bytes
    return [int.from_bytes(raw[at : at + width], "little") for at in range(0, len(raw), width)]


def elements(modulus: int) -> st.SearchStrategy[int]:
    """Elements, and many of those at which carries run far: 2^k, 2^k - 1, -2^k."""
    powers = st.integers(0, modulus.bit_length() - 1).map(lambda k: 1 << k)
    edges = powers.flatmap(lambda power: st.sampled_from([power, power - 1, modulus - power])).map(
        lambda x: x % modulus
    )
    return st.one_of(st.integers(0, modulus - 1), edges)


def rows(modulus: int, most: int = 20) -> st.SearchStrategy[list[list[int]]]:
    """Vectors of one length."""
    return st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(elements(modulus), min_size=n, max_size=n), min_size=1, max_size=most)
    )


@every_ring
@given(data=st.data())
def test_sums_and_differences_are_those_of_integers(ring: Ring, modulus: int, data: st.DataObject) -> None:
    """Modulo the modulus, however far a carry has to run."""
    vectors = data.draw(rows(modulus))
    made = [vector_of(ring, values) for values in vectors]
    first, last = vectors[0], vectors[-1]
    assert integers_of(ring, ring.add_all(made)) == [sum(row) % modulus for row in zip(*vectors, strict=True)]
    assert integers_of(ring, ring.add(made[0], made[-1])) == [
        (a + b) % modulus for a, b in zip(first, last, strict=True)
    ]
    assert integers_of(ring, ring.subtract(made[0], made[-1])) == [
        (a - b) % modulus for a, b in zip(first, last, strict=True)
    ]


@every_ring
def test_a_thousand_largest_elements_add_up(ring: Ring, modulus: int) -> None:
    """Reductions and carries that are put off are not put off too long."""
    values = [modulus - 1, modulus - 2]
    total = ring.add_all([vector_of(ring, values)] * 1000)
    assert integers_of(ring, total) == [1000 * value % modulus for value in values]


@every_ring
def test_arguments_are_not_changed(ring: Ring, modulus: int) -> None:
    """Also not where the sum has one addend."""
    one, other = vector_of(ring, [modulus - 1]), vector_of(ring, [1])
    ring.add(one, other), ring.subtract(other, one)
    alone = ring.add_all([one])
    alone += np.uint64(1)
    assert (integers_of(ring, one), integers_of(ring, other)) == ([modulus - 1], [1])


@every_ring
@given(data=st.data())
def test_bytes_round_trip(ring: Ring, modulus: int, data: st.DataObject) -> None:
    """What is read is what was written, also in pieces of a vector and without any element."""
    values = data.draw(st.lists(elements(modulus), max_size=5))
    vector = vector_of(ring, values)
    assert integers_of(ring, vector) == values
    assert integers_of(ring, vector[::-1]) == values[::-1]
    assert (ring.from_bytes(memoryview(ring.to_bytes(vector)), len(values)) == vector).all()


@every_ring
@pytest.mark.parametrize("wrong", [-1, 1])
def test_other_numbers_of_bytes_are_refused(ring: Ring, modulus: int, wrong: int) -> None:
    """Truncated or longer bytes are no vector."""
    for read in (ring.from_bytes, ring.uniform):
        with pytest.raises(BadElementsError, match="are not 3 elements"):
            read(bytes(3 * ring.element_bytes + wrong), 3)


@pytest.mark.parametrize("value", [field61.PRIME, field61.PRIME + 1, 2**64 - 1])
def test_the_field_has_no_elements_from_p_on(value: int) -> None:
    """One element has one form: other numbers are refused, not reduced."""
    assert FIELD61.from_bytes((field61.PRIME - 1).to_bytes(8, "little"), 1) == [field61.PRIME - 1]
    with pytest.raises(BadElementsError, match="no element"):
        FIELD61.from_bytes(bytes(8) + value.to_bytes(8, "little"), 2)


@every_ring
def test_vectors_of_different_lengths_are_not_added(ring: Ring, modulus: int) -> None:
    """Adding them would silently broadcast."""
    operations: list[Callable[[Vector, Vector], Vector]] = [ring.add, ring.subtract, lambda a, b: ring.add_all([a, b])]
    for operation in operations:
        with pytest.raises(ValueError, match="cannot be added"):
            operation(ring.zeros(1), ring.zeros(2))


@every_ring
def test_zeros_are_zero(ring: Ring, modulus: int) -> None:
    """On the wire too."""
    assert ring.to_bytes(ring.zeros(3)) == bytes(3 * ring.element_bytes)


@every_ring
def test_random_elements_cover_the_ring(ring: Ring, modulus: int) -> None:
    """Every bit of an element comes up both ways, and the source may be chosen."""
    found = integers_of(ring, ring.random(60))
    either, all_of = 0, modulus - 1
    for value in found:
        either, all_of = either | value, all_of & value
    # With 160,064 bits, one that is the same in 60 numbers has a probability of 3e-13.
    assert either == 2 ** (modulus - 1).bit_length() - 1
    assert all_of == 0
    assert (ring.random(2, bytes) == ring.zeros(2)).all()


@given(st.lists(st.integers(0, 2**64 - 1), max_size=8))
def test_uniform_elements_of_the_field_are_the_low_bits(words: list[int]) -> None:
    """61 bits, of which p itself counts as 0."""
    words += [field61.PRIME, 2**64 - 1, field61.PRIME - 1]
    raw = b"".join(word.to_bytes(8, "little") for word in words)
    assert FIELD61.uniform(raw, len(words)).tolist() == [(word % 2**61) % field61.PRIME for word in words]


@pytest.mark.parametrize("width", [1, 8, 10, 32, 4001])
@given(data=st.data())
def test_integers_go_in_and_come_out(width: int, data: st.DataObject) -> None:
    """Modulo 256^width, and with a sign if asked."""
    half = 256**width // 2
    values = data.draw(
        st.lists(st.one_of(st.integers(-half, half - 1), st.sampled_from([-half, half - 1, -1])), max_size=4)
    )
    ring = Wide(width)
    vector = ring.from_integers(values)
    assert ring.to_integers(vector, signed=True) == values
    assert ring.to_integers(vector) == [value % 256**width for value in values]
    assert (ring.from_integers([value + 256**width for value in values]) == vector).all()


def test_a_carry_runs_through_two_mebibytes() -> None:
    """-1 + 1 = 0 in an integer of any size, and does not run on into the next number."""
    ring = Wide(2**21 + 3)
    total = ring.add(ring.from_integers([-1, -1, 5]), ring.from_integers([1, 0, 1]))
    assert ring.to_integers(total, signed=True) == [0, -1, 6]


def test_no_integer_has_no_bytes() -> None:
    """A width is positive."""
    with pytest.raises(ValueError, match="0 bytes"):
        Wide(0)


@given(st.lists(st.tuples(*[st.one_of(st.integers(0, field61.PRIME - 1), st.just(field61.PRIME - 1))] * 2), min_size=1))
def test_products_of_the_field(pairs: list[tuple[int, int]]) -> None:
    """As Python's integers give them."""
    a, b = (np.array(column, dtype=np.uint64) for column in zip(*pairs, strict=True))
    assert field61.multiply(a, b).tolist() == [x * y % field61.PRIME for x, y in pairs]


def test_random_takes_the_bytes_it_says() -> None:
    """One call, element_bytes per element."""
    for ring, _ in RINGS.values():
        asked: list[int] = []
        ring.random(7, lambda size, asked=asked: asked.append(size) or secrets.token_bytes(size))  # type: ignore[misc,func-returns-value]
        assert asked == [7 * ring.element_bytes]
