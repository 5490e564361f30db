"""Labeled asymmetric PSI, both sides in one process: results against a dict, hostile bytes, noise, secrets."""

import random
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import apsi
from crypto.apsi import holder, items, parameters, polynomials
from crypto.apsi.context import context_of
from crypto.apsi.parameters import PLAIN_MODULUS, RING_DIM
from crypto.ckks.skeleton import BadCoefficientsError

SMALL = apsi.choose(12, 12)


def tokens_of(count: int, seed: int = 0) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(32) for _ in range(count)]


def run(chosen: apsi.Parameters, queried: Sequence[bytes], held: dict[bytes, int]) -> list[int | None]:
    key = apsi.QueryKey.generate(chosen)
    database = apsi.Database.build(chosen, list(held), list(held.values()))
    answer = apsi.gen_answer(database, apsi.gen_query(chosen, key, database.hash_seed, queried))
    return apsi.extract(chosen, key, database.hash_seed, queried, answer)


@settings(max_examples=15, deadline=None)
@given(
    st.sets(st.integers(0, 20), max_size=12),
    st.dictionaries(st.integers(0, 20), st.integers(0, 2**32 - 1), max_size=12),
)
def test_labels_are_those_of_a_dict(queried: set[int], held: dict[int, int]) -> None:
    """Whatever both sides hold, the querier gets what a dict would give."""
    tokens = tokens_of(21)
    table = {tokens[item]: label for item, label in held.items()}
    asked = [tokens[item] for item in sorted(queried)]
    assert run(SMALL, asked, table) == [table.get(token) for token in asked]


@pytest.mark.parametrize("size", [1, 10, 200, 2_000])
def test_sets_of_all_sizes(size: int) -> None:
    """Half of the items are common, and each gets its label."""
    tokens = tokens_of(size + size // 2, seed=size)
    held = {token: (7 * at) % 2**32 for at, token in enumerate(tokens[size // 2 :])}
    assert run(apsi.choose(size, size), tokens[:size], held) == [held.get(token) for token in tokens[:size]]


def test_a_small_set_against_a_large_one() -> None:
    """Many bundles of many items, with clashes among their field elements."""
    tokens = tokens_of(20_000)
    held = {token: at for at, token in enumerate(tokens[5:])}
    assert run(apsi.choose(10, 20_000), tokens[:10], held) == [held.get(token) for token in tokens[:10]]


def test_a_large_set_against_a_small_one() -> None:
    """More rows than items."""
    tokens = tokens_of(1_000)
    assert run(apsi.choose(1_000, 1), tokens, {tokens[3]: 5}) == [None] * 3 + [5] + [None] * 996


def test_nothing_in_common() -> None:
    """No label comes from foreign items."""
    tokens = tokens_of(24)
    assert run(SMALL, tokens[:12], dict.fromkeys(tokens[12:], 1)) == [None] * 12


def test_everything_in_common_and_extreme_labels() -> None:
    """0 and 2^32 - 1 are labels like any other."""
    tokens = tokens_of(12)
    labels = [0, 2**32 - 1, 0xFFFF, 0x10000, *range(1, 9)]
    assert run(SMALL, tokens, dict(zip(tokens, labels, strict=True))) == labels


def test_extraction_needs_no_memory_of_the_query() -> None:
    """After a crash, the stored key and the tokens in any order suffice."""
    tokens = tokens_of(12)
    key = apsi.QueryKey.generate(SMALL)
    database = apsi.Database.build(SMALL, tokens[6:], range(6))
    answer = apsi.gen_answer(database, apsi.gen_query(SMALL, key, database.hash_seed, tokens))
    stored = apsi.QueryKey.from_bytes(SMALL, key.to_bytes())
    found = apsi.extract(SMALL, stored, database.hash_seed, tokens[::-1], answer)
    assert found == [5, 4, 3, 2, 1, 0, None, None, None, None, None, None]


def test_a_database_is_made_again_from_its_seed() -> None:
    """The same random bytes give the same database, and so the same answer to a query."""
    tokens = tokens_of(12)
    one, same, other = (
        apsi.Database.build(SMALL, tokens, range(12), apsi.seeded(seed)) for seed in (b"1" * 32, b"1" * 32, b"2" * 32)
    )
    query = apsi.gen_query(SMALL, apsi.QueryKey.generate(SMALL), one.hash_seed, tokens)
    assert apsi.gen_answer(one, query) == apsi.gen_answer(same, query)
    assert one.hash_seed != other.hash_seed


def test_threads_may_share_the_context() -> None:
    """Runs at the same time give the results of runs one after the other."""

    def one(seed: int) -> bool:
        tokens = tokens_of(300, seed)
        held = {token: at for at, token in enumerate(tokens[100:])}
        return run(apsi.choose(200, 200), tokens[:200], held) == [held.get(token) for token in tokens[:200]]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(8)))


class Exchange:
    """One query and its answer, to be spoiled."""

    def __init__(self) -> None:
        self.tokens = tokens_of(12)
        self.key = apsi.QueryKey.generate(SMALL)
        self.database = apsi.Database.build(SMALL, self.tokens, range(12))
        self.query = apsi.gen_query(SMALL, self.key, self.database.hash_seed, self.tokens)
        self.answer = apsi.gen_answer(self.database, self.query)

    def extract(self, answer: Sequence[bytes]) -> list[int | None]:
        return apsi.extract(SMALL, self.key, self.database.hash_seed, self.tokens, answer)


@pytest.fixture(scope="module")
def exchange() -> Exchange:
    return Exchange()


def spoiled(messages: Sequence[bytes], source: random.Random) -> list[bytes]:
    made = list(messages)
    at = source.randrange(len(made))
    raw = bytearray(made[at])
    match source.randrange(6):
        case 0:
            raw[source.randrange(len(raw))] ^= 1 << source.randrange(8)
        case 1:
            del raw[source.randrange(len(raw)) :]
        case 2:
            raw += b"\0" * source.choice([1, 8, 8 * RING_DIM])
        case 3:
            raw = bytearray(len(raw))
        case 4:
            raw[:8] = b"\xff" * 8
        case _:
            return [*made, made[0]] if source.random() < 0.5 else made[:at]
    made[at] = bytes(raw)
    return made


@pytest.mark.parametrize("seed", range(40))
def test_spoiled_bytes_are_never_a_wrong_label(exchange: Exchange, seed: int) -> None:
    """A changed, cut or grown query or answer is an error."""
    source = random.Random(seed)
    with pytest.raises((BadCoefficientsError, apsi.NoiseExhaustedError)):
        exchange.extract(spoiled(exchange.answer, source))
    with pytest.raises((BadCoefficientsError, apsi.NoiseExhaustedError)):
        exchange.extract(apsi.gen_answer(exchange.database, spoiled(exchange.query, source)))


def test_ciphertexts_in_another_order_are_noticed(exchange: Exchange) -> None:
    """Each ciphertext of an answer carries its number."""
    with pytest.raises(apsi.NoiseExhaustedError):
        exchange.extract(exchange.answer[::-1])


def test_an_answer_to_another_key_is_noticed(exchange: Exchange) -> None:
    """Decryption with the wrong key finds no sentinel."""
    exchange_key = apsi.QueryKey.generate(SMALL)
    with pytest.raises(apsi.NoiseExhaustedError):
        apsi.extract(SMALL, exchange_key, exchange.database.hash_seed, exchange.tokens, exchange.answer)


class Unchecked(apsi.Parameters):
    """Parameters that nobody looked at."""

    def __post_init__(self) -> None:
        pass


@pytest.mark.parametrize("bits", [36, 40, 43])
def test_exhausted_noise_is_an_error_and_not_an_empty_result(bits: int) -> None:
    """With too small a modulus the sentinel is spoiled."""
    bad = Unchecked(queried=200, held=200, rows=1, powers=7, bundles=1, modulus_bits=bits)
    assert bad.margin_bits < 0
    with pytest.raises(apsi.NoiseExhaustedError):
        run(bad, tokens_of(200), dict.fromkeys(tokens_of(200), 1))


def test_the_noise_estimate_is_close() -> None:
    """One bit of margin, by the estimate, decrypts: for few powers and for many."""
    for powers, bits in ((7, 47), (89, 50)):
        tight = Unchecked(queried=200, held=200, rows=1, powers=powers, bundles=1, modulus_bits=bits)
        assert 0.5 < tight.margin_bits < 2
        tokens = tokens_of(200)
        assert run(tight, tokens, dict.fromkeys(tokens, 1)) == [1] * 200


def test_unusable_parameters_are_refused() -> None:
    """Too little room for noise, too large a modulus for 128 bits, too few bins, sets out of bounds."""
    good = apsi.choose(200, 200)
    for change in (
        {"modulus_bits": 46},
        {"modulus_bits": 55},
        {"powers": 500},
        {"powers": 1},
        {"bundles": 0},
        {"rows": 0},
        {"queried": 273},
        {"held": 0},
    ):
        with pytest.raises(apsi.ParametersError):
            replace(good, **change)
    for queried, held in ((0, 1), (1, 0), (200_001, 1), (1, 200_001)):
        with pytest.raises(apsi.ParametersError):
            apsi.choose(queried, held)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200_000), st.integers(1, 200_000))
def test_any_bounds_have_parameters(queried: int, held: int) -> None:
    """Within the allowed bounds there is always a choice, and its noise has room."""
    chosen = apsi.choose(queried, held)
    assert chosen.bins >= 1.5 * queried
    assert chosen.powers * chosen.bundles * chosen.bins >= 3 * held


def test_the_modulus_is_the_one_the_estimate_is_about() -> None:
    """One prime of 51 bits, in a ring that allows 54."""
    (modulus,) = context_of(SMALL).polynomial.moduli
    assert modulus.bit_length() == SMALL.modulus_bits == 51


def test_bad_items_are_refused() -> None:
    """Too many, twice the same, of another length; labels of more than 32 bits."""
    key = apsi.QueryKey.generate(SMALL)
    tokens = tokens_of(13)
    for bad in (tokens, [tokens[0]] * 2, [b"short"]):
        with pytest.raises(ValueError):
            apsi.gen_query(SMALL, key, bytes(16), bad)
        with pytest.raises(ValueError):
            apsi.Database.build(SMALL, bad, [0] * len(bad))
    for labels in ([2**32], [-1], []):
        with pytest.raises(ValueError):
            apsi.Database.build(SMALL, tokens[:1], labels)
    with pytest.raises(ValueError):
        apsi.gen_query(SMALL, key, b"short", tokens[:1])


def test_secrets_stay_out_of_logs(exchange: Exchange) -> None:
    """A key or a database logged by mistake shows no secret."""
    assert repr(exchange.key) == "QueryKey()"
    assert repr(exchange.database) == f"Database(parameters={SMALL!r}, hash_seed={exchange.database.hash_seed!r})"


def test_two_queries_for_the_same_set_differ(exchange: Exchange) -> None:
    """Even with the same filling of empty bins, no message repeats."""
    one, other = (
        apsi.gen_query(SMALL, exchange.key, exchange.database.hash_seed, exchange.tokens, apsi.seeded(bytes(32)))
        for _ in range(2)
    )
    assert not set(one) & set(other)


def test_sizes_follow_from_the_public_bounds(exchange: Exchange) -> None:
    """A set of one item looks like a set of twelve."""
    database = apsi.Database.build(SMALL, exchange.tokens[:1], [1])
    query = apsi.gen_query(SMALL, exchange.key, database.hash_seed, exchange.tokens[:1])
    assert [len(m) for m in query] == [len(m) for m in exchange.query]
    assert [len(m) for m in apsi.gen_answer(database, query)] == [len(m) for m in exchange.answer]


def test_cuckoo_hashing_fills_a_tight_table() -> None:
    """Each token in one of its three bins, no bin twice, at 1.5 bins an item and beyond."""
    for count in (272, 360):
        tokens = tokens_of(count)
        placed = items.place(tokens, bytes(16), 409)
        bins = items.bins_of(tokens, bytes(16), 409)
        assert len(set(placed.tolist())) == count
        assert (bins == placed[:, np.newaxis]).any(axis=1).all()
        assert all(len(set(row)) == 3 for row in bins.tolist())


def test_items_without_a_place_are_an_error() -> None:
    """Four items in three bins fit with no hash seed."""
    with pytest.raises(apsi.PlacementError):
        items.place(tokens_of(4), bytes(16), 3)
    tight = Unchecked(queried=12, held=200, rows=1, powers=2, bundles=1)
    with pytest.raises(apsi.PlacementError):
        apsi.Database.build(tight, tokens_of(200), [0] * 200)


def test_points_of_a_bundle_differ() -> None:
    """Clashing items move to other bundles, clashing fillings are drawn again."""
    felts = np.zeros((4, 5), dtype=np.uint16)
    felts[:] = np.arange(4)[:, np.newaxis]
    felts[1, 2] = felts[0, 2]
    owner = np.array([[[0, 1, -1], [2, 3, -1]]])
    assert holder._regroup(owner, felts)
    assert sorted(owner.ravel().tolist()) == [-1, -1, 0, 1, 2, 3]
    assert {0, 1} - set(owner[0, 0].tolist())
    points = np.zeros((1, 2, 3, 5), dtype=np.uint16)
    holder._separate(points, np.zeros((1, 2, 3), dtype=bool), secrets.token_bytes)
    assert not holder._clashes(points).any()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), min_size=1, max_size=9, unique_by=lambda p: p[0])
)
def test_polynomials_go_through_their_points(points: list[tuple[int, int]]) -> None:
    """M is zero and L is the value at every point."""
    z, y = (np.array(column, dtype=np.int64)[:, np.newaxis] for column in zip(*points, strict=True))
    match, label = polynomials.from_roots(z), polynomials.interpolate(z, y)
    for x, value in points:
        at = [pow(x, k, PLAIN_MODULUS) for k in range(len(points) + 1)]
        assert (np.dot(match[:, 0], at[:-1]) + at[-1]) % PLAIN_MODULUS == 0
        assert np.dot(label[:, 0], at[:-1]) % PLAIN_MODULUS == value


def test_the_fullest_bin_is_as_estimated() -> None:
    """About nine of ten hash seeds leave no bin above the estimate."""
    load = parameters.fullest_bin(2_000, 8 * 409)
    tokens = tokens_of(2_000)
    fullest = [np.bincount(items.bins_of(tokens, secrets.token_bytes(16), 8 * 409).ravel()).max() for _ in range(100)]
    assert sum(most <= load for most in fullest) > 70
    assert max(fullest) >= load - 1
