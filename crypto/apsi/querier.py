"""The querier's steps: it has the key, its tokens, and the holder's hash seed.

query    cuckoo hashing puts each token into one of its bins, random numbers fill the others; x is the row of all
         field elements. Enc(x^k) for k = 1 … d, every row of the table; as (seed, c0, c0, …)
extract  the bin of a token is a match in a bundle if M(x) = 0 in all its field elements. Then L(x) ⊕ pad is
         (label, 48 zero bits), or the match was by chance.

Learns the labels of common items. The holder learns nothing but the public bounds.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.apsi import items, polynomials
from crypto.apsi.context import SEED_BYTES, SENTINELS, USED_SLOTS, Context, context_of, sentinel_intact
from crypto.apsi.items import Felts, Indices, RandomBytes
from crypto.apsi.parameters import BINS_PER_ROW, FELTS, Parameters
from crypto.apsi.polynomials import Integers
from crypto.ckks.skeleton import BadCoefficientsError, Coefficients, to_bytes


class NoiseExhaustedError(ValueError):
    """An answer that does not decrypt: too much noise in it, or made from something else than the query."""


@dataclass(frozen=True, eq=False)
class QueryKey:
    """s: the secret key of one query."""

    secret: Coefficients = field(repr=False)

    @classmethod
    def generate(cls, parameters: Parameters) -> QueryKey:
        """A fresh key."""
        ctx = context_of(parameters)
        return cls(ctx.secret.strip(ctx.cc.KeyGen().secretKey))

    def to_bytes(self) -> bytes:
        """For the site's own, encrypted storage; never for a wire."""
        return to_bytes(self.secret)

    @classmethod
    def from_bytes(cls, parameters: Parameters, raw: bytes) -> QueryKey:
        """From the site's own, authenticated storage."""
        return cls(context_of(parameters).polynomial.parse(raw))


def gen_query(
    parameters: Parameters,
    key: QueryKey,
    hash_seed: bytes,
    tokens: Sequence[bytes],
    random_bytes: RandomBytes = secrets.token_bytes,
) -> list[bytes]:
    """A seed, then the polynomials of x^1 … x^d of the first row, then of the second, and so on.

    `random_bytes` fills the empty bins. The seed is always a fresh one: two queries that share it and the key would
    show the difference of their messages.
    """
    items.check(tokens, parameters.queried)
    ctx = context_of(parameters)
    felts, _ = items.felts_and_pads(tokens)
    table = items.random_felts((parameters.bins, FELTS), random_bytes)
    table[items.place(tokens, hash_seed, parameters.bins)] = felts
    seed = secrets.token_bytes(SEED_BYTES)
    secret_key = ctx.secret.wrap(key.secret)
    query = [seed]
    for row, used in enumerate(table.reshape(parameters.rows, USED_SLOTS)):
        x = np.concatenate([used.astype(np.int64), SENTINELS])
        for k, slots in enumerate(polynomials.powers(x, parameters.powers)):
            query.append(to_bytes(ctx.encrypt(secret_key, key.secret, slots, ctx.expand(seed, row, k))))
    return query


def extract(
    parameters: Parameters, key: QueryKey, hash_seed: bytes, tokens: Sequence[bytes], answer: Sequence[bytes]
) -> list[int | None]:
    """Each token's label, or None if the holder does not have it."""
    items.check(tokens, parameters.queried)
    if len(answer) != parameters.answer_messages:
        raise BadCoefficientsError(f"{len(answer)} ciphertexts instead of {parameters.answer_messages}")
    ctx = context_of(parameters)
    _, pads = items.felts_and_pads(tokens)
    placed = items.place(tokens, hash_seed, parameters.bins)
    secret_key = ctx.secret.wrap(key.secret)
    labels: list[int | None] = [None] * len(tokens)
    of_row = _by_row(placed, parameters.rows)
    for number in range(0, len(answer), 2):
        # Ciphertexts without a match are opened as well: each must have its sentinel intact.
        match = _opened(ctx, secret_key, answer[number], parameters.powers, number)
        values = _opened(ctx, secret_key, answer[number + 1], parameters.powers - 1, number + 1)
        mine = of_row[number // (2 * parameters.bundles)]
        at = placed[mine] % BINS_PER_ROW
        found = (match[at] == 0).all(axis=1)
        for index, value in zip(mine[found], values[at[found]], strict=True):
            label = _label(value, pads[index])
            labels[index] = label if label is not None else labels[index]
    return labels


def _by_row(placed: Indices, rows: int) -> list[NDArray[np.int64]]:
    """The tokens of each row of the table."""
    row = placed // BINS_PER_ROW
    order = np.argsort(row, kind="stable")
    return np.split(order, np.searchsorted(row[order], np.arange(1, rows)))


def _opened(ctx: Context, secret_key: Any, raw: bytes, degree: int, number: int) -> Integers:
    """The numbers of one ciphertext of the answer, one line per bin."""
    ciphertext = ctx.ciphertext.wrap(ctx.ciphertext.shape.parse(raw))
    slots = ctx.decrypt(secret_key, ciphertext)
    if not sentinel_intact(slots, degree, number):
        raise NoiseExhaustedError(f"ciphertext {number} of the answer does not decrypt")
    return slots[:USED_SLOTS].reshape(BINS_PER_ROW, FELTS)


def _label(value: Integers, pad: Felts) -> int | None:
    """The label under a pad, if 48 zero bits follow it."""
    low, high, *zeros = (value ^ pad).tolist()
    # A number of 17 bits is none that the holder put there.
    if any(zeros) or max(low, high) > 0xFFFF:
        return None
    return int(low) | int(high) << 16
