"""Shares of over-threshold intersection, and the field that they are in."""

import hashlib
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import field61, overthreshold
from crypto.field61 import PRIME
from crypto.overthreshold import EMPTY, LANES, TABLES, Shape

EDGES = [0, 1, 2, (1 << 29) - 1, 1 << 29, (1 << 32) - 1, 1 << 32, (1 << 60) + 7, PRIME - 2, PRIME - 1]
VECTORS = {
    "shares": "8bbdb144040af6f9a748f79d9d3e8b9d7295cac81a894956ac69809812ea6f0f",
    "place": "38a2caf9936537c86ce6a5b9360cb3ca5f2d6d933cff532cf35507dcb1ad612f",
    "occupants": "c9b8e467b2e88c799cc914d9195bf78300fc3129775800b26c5d49a98bb9a842",
}
field_elements = st.one_of(st.integers(0, PRIME - 1), st.sampled_from(EDGES))


def array(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.uint64)


def token(name: object) -> bytes:
    return hashlib.sha256(str(name).encode()).digest()


# The field


@given(st.lists(st.tuples(field_elements, field_elements), min_size=1, max_size=20))
def test_sums_and_products_are_those_of_integers(pairs: list[tuple[int, int]]) -> None:
    """Modulo 2^61 - 1, for whole arrays."""
    a, b = array(*(x for x, _ in pairs)), array(*(y for _, y in pairs))
    assert field61.add(a, b).tolist() == [(x + y) % PRIME for x, y in pairs]
    assert field61.multiply(a, b).tolist() == [x * y % PRIME for x, y in pairs]


def test_products_of_all_edges() -> None:
    """Halves and sums that just fit into 64 bits."""
    pairs = list(itertools.product(EDGES, EDGES))
    found = field61.multiply(array(*(x for x, _ in pairs)), array(*(y for _, y in pairs)))
    assert found.tolist() == [x * y % PRIME for x, y in pairs]


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([PRIME, 2 * PRIME, 2**64 - 1])), min_size=1))
def test_any_64_bits_are_reduced(numbers: list[int]) -> None:
    """The prime itself is zero."""
    assert field61.reduce(array(*numbers)).tolist() == [number % PRIME for number in numbers]


@given(st.lists(field_elements, min_size=1, max_size=5), st.sets(st.integers(1, 1000), min_size=5, max_size=8))
def test_interpolation_finds_the_value_at_zero(coefficients: list[int], points: set[int]) -> None:
    """From as many points as the polynomial has coefficients, or more."""
    values = [sum(c * pow(x, k, PRIME) for k, c in enumerate(coefficients)) % PRIME for x in sorted(points)]
    weights = field61.lagrange_at_zero(sorted(points))
    assert sum(w * v for w, v in zip(weights, values, strict=True)) % PRIME == coefficients[0]


@given(st.integers(1, PRIME - 1))
def test_an_inverse_is_one(x: int) -> None:
    """X · 1/x = 1."""
    assert x * field61.inverse(x) % PRIME == 1


# Shares


def test_vectors() -> None:
    """The same token has the same shares and places in every release."""
    shares = overthreshold.gen_shares([token("flu")], 2, 3)
    assert hashlib.sha256(overthreshold.to_bytes(shares)).hexdigest() == VECTORS["shares"]
    assert overthreshold.place_key(token("flu")).hex() == VECTORS["place"]
    occupied = overthreshold.occupants([overthreshold.place_key(token(i)) for i in range(5)], Shape(3, 5))
    assert hashlib.sha256(occupied.astype("<i8").tobytes()).hexdigest() == VECTORS["occupants"]


@pytest.mark.parametrize("threshold", [2, 3, 5])
def test_shares_are_a_polynomial_through_zero_in_every_table(threshold: int) -> None:
    """As Python integers compute it, coefficient for coefficient, lane for lane."""
    names = [token("a"), token("b")]
    for x in (1, 2, 7, 1000):
        shares = overthreshold.gen_shares(names, x, threshold)
        assert shares.shape == (2, TABLES, LANES)
        for name, of_token in zip(names, shares.tolist(), strict=True):
            raw = hashlib.shake_256(b"commonscale/v1/otmppsi/share\0" + name).digest(
                16 * TABLES * (threshold - 1) * LANES
            )
            numbers = [int.from_bytes(raw[at : at + 16], "little") % PRIME for at in range(0, len(raw), 16)]
            c = np.array(numbers, dtype=object).reshape(TABLES, threshold - 1, LANES)
            expected = [
                [sum(c[table, k, lane] * x ** (k + 1) for k in range(threshold - 1)) % PRIME for lane in range(LANES)]
                for table in range(TABLES)
            ]
            assert of_token == expected


@pytest.mark.parametrize("threshold", [3, 4])
def test_fewer_shares_than_the_threshold_fit_any_value_at_zero(threshold: int) -> None:
    """Shares of one site less interpolate to anything but zero, and in no two tables to the same."""
    shares = {x: overthreshold.gen_shares([token("flu")], x, threshold)[0] for x in range(1, threshold + 1)}

    def at_zero(xs: list[int]) -> list[int]:
        weights = field61.lagrange_at_zero(xs)
        return [
            sum(w * int(shares[x][table, 0]) for w, x in zip(weights, xs, strict=True)) % PRIME
            for table in range(TABLES)
        ]

    assert at_zero(list(range(1, threshold + 1))) == [0] * TABLES
    few = at_zero(list(range(1, threshold)))
    assert 0 not in few
    assert len(set(few)) == TABLES


def test_no_share_comes_twice() -> None:
    """In another table, lane or token, or at another site: a number that comes back cannot be a random one."""
    names = [token(i) for i in range(20)]
    everything = np.concatenate([overthreshold.gen_shares(names, x, 3).ravel() for x in (1, 2, 3)])
    assert len(np.unique(everything)) == len(everything)


def test_places_do_not_give_shares_away() -> None:
    """The place of a token is another hash of it: no shares come of it."""
    assert overthreshold.place_key(token("flu")) != token("flu")
    from_place = overthreshold.gen_shares([overthreshold.place_key(token("flu"))], 1, 3)
    assert not np.isin(from_place, overthreshold.gen_shares([token("flu")], 1, 3)).any()


# Tables


def tables_of(sets: list[set[int]], shape: Shape, seed: int = 0) -> dict[int, np.ndarray]:
    made = {}
    for site, names in enumerate(sets):
        found = [token(name) for name in sorted(names)]
        occupied = overthreshold.occupants(list(map(overthreshold.place_key, found)), shape)
        shares = overthreshold.gen_shares(found, site + 1, shape.threshold)
        made[site] = overthreshold.fill(shares, occupied, random.Random(100 * seed + site).randbytes)
    return made


def cell_names(sets: list[set[int]], shape: Shape) -> list[list[int | None]]:
    """Which value each site has in each cell."""
    found = []
    for names in sets:
        ordered = sorted(names)
        occupied = overthreshold.occupants([overthreshold.place_key(token(n)) for n in ordered], shape).ravel()
        found.append([None if at == EMPTY else ordered[at] for at in occupied.tolist()])
    return found


@settings(max_examples=40)
@given(
    sets=st.lists(st.sets(st.integers(0, 12), max_size=8), min_size=3, max_size=5),
    threshold=st.integers(2, 5),
    seed=st.integers(0, 1000),
)
def test_exactly_the_values_of_enough_sites_are_found(sets: list[set[int]], threshold: int, seed: int) -> None:
    """Each with all its holders, and no cell is a hit but for such a value."""
    threshold = min(threshold, len(sets))
    shape = Shape(threshold, 8)
    hits = overthreshold.reconstruct(tables_of(sets, shape, seed), threshold)
    names, found = cell_names(sets, shape), {}
    for hit in hits:
        values = {names[site][hit.cell] for site in hit.members}
        assert len(values) == 1, "all members of a hit hold one value"
        (value,) = values
        assert value is not None
        found.setdefault(value, set()).update(hit.members)
    holders = {value: {s for s, held in enumerate(sets) if value in held} for value in range(13)}
    assert found == {value: sites for value, sites in holders.items() if len(sites) >= threshold}


def test_all_sites_full_and_equal() -> None:
    """No value is lost where every site fills its bound."""
    shape, names = Shape(3, 200), set(range(200))
    hits = overthreshold.reconstruct(tables_of([names] * 3, shape), 3)
    (first, *_) = cell_names([names], shape)
    assert {first[hit.cell] for hit in hits} == names


def test_empty_tables_have_no_hits() -> None:
    """Random numbers are none."""
    assert overthreshold.reconstruct(tables_of([set(), set(), set()], Shape(2, 16)), 2) == []


def test_a_hit_in_one_lane_is_none() -> None:
    """Both lanes must interpolate to zero."""
    shape = Shape(2, 4)
    tables = tables_of([{1}, {1}, set()], shape)
    assert overthreshold.reconstruct(tables, 2)
    for lane in range(LANES):
        spoiled = {site: table.copy() for site, table in tables.items()}
        spoiled[0][:, lane] = field61.add(spoiled[0][:, lane], np.ones(shape.cells, np.uint64))
        assert overthreshold.reconstruct(spoiled, 2) == []


def test_two_values_in_one_cell_are_two_hits() -> None:
    """Groups of sites that have no site in common stay apart; with one in common they are one value."""
    groups: list[set[int]] = []
    for chosen in ({0, 1}, {2, 3}, {4, 5}, {1, 2}):
        overthreshold._join(groups, set(chosen))
    assert sorted(map(sorted, groups)) == [[0, 1, 2, 3], [4, 5]]


def test_the_miss_rate_of_a_pair_of_tables() -> None:
    """3/e - 1 = 0.104 for a value that t sites hold, with sets that fill their bound."""
    shape, common, missed, tried = Shape(3, 200), 10, 0, 0
    for round_ in range(40):
        present = np.ones((common, TABLES), dtype=bool)
        for site in range(3):
            shared = [f"{round_}/{i}" for i in range(common)]
            own = [f"{round_}/{site}/{i}" for i in range(200 - common)]
            occupied = overthreshold.occupants([token(name) for name in (*shared, *own)], shape)
            present &= np.array([[item in table for table in occupied] for item in range(common)])
        pairs = present[:, 0::2] | present[:, 1::2]
        missed, tried = missed + int((~pairs).sum()), tried + pairs.size
    expected = 3 / math.e - 1
    assert tried == 40 * 10 * 15
    assert abs(missed / tried - expected) < 4 * math.sqrt(expected * (1 - expected) / tried)


def test_a_bin_goes_to_the_smaller_hash_first_and_to_the_larger_then() -> None:
    """In one bin alone, one item has the first table of a pair and another the second; no item is in a table twice."""
    occupied = overthreshold.occupants([token(i) for i in range(6)], Shape(1, 1))
    assert occupied.shape == (TABLES, 1)
    assert (occupied[0::2] != occupied[1::2]).all()
    spread = overthreshold.occupants([token(i) for i in range(6)], Shape(3, 6))
    for table in spread:
        items = table[table != EMPTY]
        assert len(np.unique(items)) == len(items)


def test_tables_are_filled_up_with_field_elements() -> None:
    """Random ones wherever no share is, as many cells as the shape says."""
    shape = Shape(3, 16)
    (table,) = tables_of([{1, 2}], shape).values()
    assert table.shape == (shape.cells, LANES) == (30 * 48, 2)
    assert len(overthreshold.to_bytes(table)) == shape.size_bytes
    assert (table < PRIME).all()
    assert len(np.unique(table)) == table.size
    np.testing.assert_allclose((table / PRIME).mean(), 0.5, atol=0.03)


def test_tables_take_their_randomness_as_an_argument() -> None:
    """The same bytes make the same tables."""
    shape = Shape(2, 4)
    one, same, other = (tables_of([{1}], shape, seed)[0] for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize("raw", [b"", bytes(16), bytes(33), bytes(48)], ids=len)
def test_shares_of_another_length_are_refused(raw: bytes) -> None:
    """Sixteen bytes a row."""
    with pytest.raises(ValueError, match="instead of 32"):
        overthreshold.from_bytes(raw, 2)


@pytest.mark.parametrize("number", [PRIME, PRIME + 1, 2**64 - 1])
def test_numbers_beyond_the_field_are_refused(number: int) -> None:
    """A second spelling of an element could be told from the first."""
    with pytest.raises(ValueError, match="below the prime"):
        overthreshold.from_bytes(bytes(8) + number.to_bytes(8, "little"), 1)
    assert overthreshold.from_bytes(bytes(8) + (PRIME - 1).to_bytes(8, "little"), 1).tolist() == [[0, PRIME - 1]]
