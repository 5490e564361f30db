"""Keys that are kept in order: never more than their bound, and those that are asked for stay."""

from collections.abc import Iterator, Sequence

import numpy as np

from commonscale.ordering import Floats, Keys, to_keys
from commonscale.sources.cuts import OrderedKeys

ROWS = 100
COLUMN_BYTES = 8 * ROWS


class Reader:
    """Columns of random numbers, in pieces; remembers what was read."""

    def __init__(self) -> None:
        self.read: list[list[str]] = []

    def values(self, column: str) -> Floats:
        return np.random.default_rng(ord(column)).normal(size=ROWS)

    def pieces(self, columns: Sequence[str]) -> Iterator[list[Floats]]:
        self.read.append(list(columns))
        for start in range(0, ROWS, 30):
            yield [self.values(column)[start : start + 30] for column in columns]


def ask(kept: OrderedKeys, reader: Reader, columns: str, snapshot: str = "s") -> dict[str, Keys]:
    found = kept.of(snapshot, list(columns), ROWS, reader.pieces)
    for column, keys in found.items():
        assert keys.tolist() == sorted(to_keys(reader.values(column)).tolist())
    return found


def test_a_second_round_reads_nothing() -> None:
    """All columns of the first are kept, read in one pass."""
    kept, reader = OrderedKeys(3 * COLUMN_BYTES), Reader()
    for _ in range(3):
        assert set(ask(kept, reader, "abc")) == set("abc")
    assert reader.read == [["a", "b", "c"]]


def test_what_does_not_fit_is_not_kept() -> None:
    """As many columns as fit, the same in every round; the others are the caller's to pass over."""
    kept, reader = OrderedKeys(2 * COLUMN_BYTES + 7), Reader()
    for _ in range(3):
        assert set(ask(kept, reader, "abcd")) == set("ab")
        assert kept.kept_bytes <= 2 * COLUMN_BYTES
    assert reader.read == [["a", "b"]]
    assert ask(OrderedKeys(COLUMN_BYTES - 1), reader, "a") == {}
    assert ask(OrderedKeys(0), reader, "a") == {}


def test_columns_that_were_not_asked_for_longest_go_first() -> None:
    """Never those of the query itself."""
    kept, reader = OrderedKeys(3 * COLUMN_BYTES), Reader()
    ask(kept, reader, "abc")
    ask(kept, reader, "a")
    assert set(ask(kept, reader, "d")) == {"d"}
    ask(kept, reader, "acd")
    assert set(ask(kept, reader, "bcd")) == set("bcd")
    assert reader.read == [["a", "b", "c"], ["d"], ["b"]]
    assert kept.kept_bytes == 3 * COLUMN_BYTES


def test_keys_of_another_snapshot_are_forgotten() -> None:
    """Both ways: the bound holds over all snapshots."""
    kept, reader = OrderedKeys(3 * COLUMN_BYTES), Reader()
    ask(kept, reader, "ab", "before")
    ask(kept, reader, "a", "after")
    assert kept.kept_bytes == COLUMN_BYTES
    ask(kept, reader, "a", "before")
    assert reader.read == [["a", "b"], ["a"], ["a"]]


def test_missing_values_take_no_memory() -> None:
    """Only present values have keys."""
    kept = OrderedKeys(COLUMN_BYTES)
    (keys,) = kept.of("s", ["a"], ROWS, lambda _: iter([[np.array([2.0])], [np.empty(0)], [np.array([1.0])]])).values()
    assert keys.tolist() == to_keys(np.array([1.0, 2.0])).tolist()
    assert kept.kept_bytes == 16
    assert not keys.flags.writeable
