"""What follows from a token: field elements, the pad of its label, its bins.

felts, pad  the first and the second 10 bytes of SHAKE-256("item", token): five numbers of 16 bits each. Felts show
            nothing of the pad.
bins        three different bins from SHAKE-256("bins", hash seed, token)
place       cuckoo hashing: one item a bin, each in one of its three. Only a set without any such placing fails:
            with 1.5 bins an item, about one in 2^40.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from crypto.apsi.parameters import FELTS, HASHES

TOKEN_BYTES = 32
HASH_SEED_BYTES = 16
RandomBytes = Callable[[int], bytes]
Felts = NDArray[np.uint16]
Indices = NDArray[np.int64]


class PlacementError(ValueError):
    """Items that do not fit into their bins; another hash seed would do."""


def check(tokens: Sequence[bytes], bound: int) -> None:
    """Different tokens, and no more than agreed."""
    if len(tokens) > bound:
        raise ValueError(f"{len(tokens)} items, but at most {bound} were agreed")
    if any(len(token) != TOKEN_BYTES for token in tokens):
        raise ValueError(f"a token has {TOKEN_BYTES} bytes")
    if len(set(tokens)) != len(tokens):
        raise ValueError("an item occurs twice")


def felts_and_pads(tokens: Sequence[bytes]) -> tuple[Felts, Felts]:
    """One row of FELTS numbers a token, of each."""
    both = np.frombuffer(_expanded(b"commonscale/v1/apsi/item\0", tokens, 4 * FELTS), "<u2").reshape(-1, 2 * FELTS)
    return both[:, :FELTS].astype(np.uint16), both[:, FELTS:].astype(np.uint16)


def bins_of(tokens: Sequence[bytes], hash_seed: bytes, bins: int) -> Indices:
    """Three different bins a token."""
    if len(hash_seed) != HASH_SEED_BYTES:
        raise ValueError(f"a hash seed has {HASH_SEED_BYTES} bytes")
    prefix = b"commonscale/v1/apsi/bins\0" + hash_seed
    drawn = np.frombuffer(_expanded(prefix, tokens, 8 * HASHES), "<u8").reshape(-1, HASHES)
    first, second, third = ((drawn[:, k] % np.uint64(bins - k)).astype(np.int64) for k in range(HASHES))
    # Each is drawn from the bins that are left: numbers from a taken one on move up by one.
    second += second >= first
    third += third >= np.minimum(first, second)
    third += third >= np.maximum(first, second)
    return np.stack([first, second, third], axis=1)


def place(tokens: Sequence[bytes], hash_seed: bytes, bins: int) -> Indices:
    """A bin for each token, no bin twice. The order of the tokens does not matter."""
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    choices: list[list[int]] = bins_of(tokens, hash_seed, bins).tolist()
    owner: dict[int, int] = {}
    for item in order:
        _insert(item, choices, owner)
    placed = np.empty(len(tokens), dtype=np.int64)
    for taken, item in owner.items():
        placed[item] = taken
    return placed


def _insert(item: int, choices: list[list[int]], owner: dict[int, int]) -> None:
    """Moves as few items as possible: breadth first, from the item to a free bin."""
    came_from: dict[int, int] = {}  # bin → the item that would move there
    queue = [item]
    for mover in queue:
        for option in choices[mover]:
            if option in came_from:
                continue
            came_from[option] = mover
            if option not in owner:
                _shift(option, item, came_from, owner)
                return
            queue.append(owner[option])
    raise PlacementError("the items do not fit into the table")


def _shift(free: int, item: int, came_from: dict[int, int], owner: dict[int, int]) -> None:
    """Moves every item on the path by one bin, the last into the free one."""
    # Where each item of the path stood: the bin through which the search reached it.
    stood = {owner[option]: option for option in came_from if option in owner}
    while True:
        mover = came_from[free]
        owner[free] = mover
        if mover == item:
            return
        free = stood[mover]


def seeded(seed: bytes) -> RandomBytes:
    """A source of random bytes that gives the same again for the same seed: AES-256-CTR under SHAKE-256(seed).

    One source a purpose, and not shared between threads.
    """
    if len(seed) < 32:
        raise ValueError("a seed has at least 32 bytes")
    key = hashlib.shake_256(b"commonscale/v1/apsi/seeded\0" + seed).digest(32)
    # The key serves this one stream only, so the counter may start at zero.
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return lambda size: stream.update(bytes(size))


def random_felts(shape: tuple[int, ...], random_bytes: RandomBytes) -> Felts:
    """Uniform numbers of 16 bits."""
    size = int(np.prod(shape))
    return np.frombuffer(random_bytes(2 * size), "<u2").astype(np.uint16).reshape(shape)


def _expanded(prefix: bytes, tokens: Sequence[bytes], size: int) -> bytes:
    """SHAKE-256(prefix, token) of each, one after the other."""
    return b"".join(hashlib.shake_256(prefix + token).digest(size) for token in tokens)
