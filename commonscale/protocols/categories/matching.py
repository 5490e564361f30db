"""`oprf`: tokens matched by the coordinator. The quick way to common identifiers, and the default.

1. Every site gets OPRF tokens of its values from the keyholder, the first site of the ring (see tokens).
2. It sends them to the coordinator, in order within each column, with random ones up to the column's public bound.
3. The coordinator finds equal tokens and gives each different one a position among as many as there could be: a
   pseudo-random permutation under a hash of all tokens. It tells each site the positions of its own tokens.

Positions of dummies stay unused; the layout then numbers those in use without gaps.

The key is fresh in every run, so tokens of two jobs cannot be compared. No site sees another's tokens: the keyholder
could try guesses on them.

Reveals: to the coordinator, per column and for each group of at least two sites, how many values exactly these have
in common; not which, not how many others there are. To the sites, nothing here: positions are random.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from commonscale.channel import Channel, parse
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, StateLost
from commonscale.protocols.categories import tokens
from commonscale.protocols.categories.items import Identifiers, Values
from commonscale.slot import HUB
from commonscale.v1.protocols_pb2 import TokenPositions, Tokens
from crypto import oprf

TOKEN_BYTES = 16

REVEALS = "how many values of each column exactly these sites have in common, for every two or more sites"

Halves = NDArray[np.uint64]


async def party(ch: Channel, values: Values, bounds: Sequence[int]) -> list[Identifiers]:
    """Role of a site: positions of my values, an array a column; columns have sites × bound positions."""
    keyholder, total = ch.parties[0], sum(bounds)
    # 1. Tokens.
    if ch.me == keyholder:
        key = await tokens.own_key(ch)
        mine = await offload(oprf.tokens, key, values.items())
        await tokens.answer_all(ch, key, ch.parties[1:], total)
    else:
        mine = await tokens.ask(ch, keyholder, values.items(), total)
    # 2. Send them among dummies; what was sent says where mine are.
    short = [token[:TOKEN_BYTES] for token in mine]

    def all_tokens() -> Tokens:
        return Tokens(tokens=mixed(values.sizes, short, bounds))

    sent = parse(Tokens, await ch.send(HUB, Tokens, partial(offload, all_tokens)), ch.slot(Tokens, ch.me, HUB))
    where = await offload(places, ch, sent.tokens, short)
    # 3. Positions.
    told = await ch.recv(TokenPositions, HUB)
    positions = _positions(ch, told.positions, bounds, len(ch.parties))
    return values.split(positions[where])


async def coordinator(ch: Channel, bounds: Sequence[int]) -> None:
    """Role of the coordinator: compares what it cannot read."""
    received = await ch.gather(Tokens)  # 2.
    sets = {site: _halves(ch, site, message.tokens, sum(bounds)) for site, message in received.items()}
    found = await offload(_match, ch, sets, bounds)  # 3.
    messages = {site: TokenPositions(positions=raw) for site, raw in found.items()}
    await ch.scatter(TokenPositions, {site: partial(_itself, message) for site, message in messages.items()})


def _itself(message: TokenPositions) -> TokenPositions:
    return message


def mixed(sizes: Sequence[int], short: Sequence[bytes], bounds: Sequence[int]) -> bytes:
    """Real and random tokens of each column, in order, so that their order says nothing."""
    found, at = [], 0
    for size, bound in zip(sizes, bounds, strict=True):
        dummies = [secrets.token_bytes(TOKEN_BYTES) for _ in range(bound - size)]
        found += sorted([*short[at : at + size], *dummies])
        at += size
    return b"".join(found)


def pieces(raw: bytes) -> list[bytes]:
    """Tokens one by one."""
    return [raw[at : at + TOKEN_BYTES] for at in range(0, len(raw), TOKEN_BYTES)]


def places(ch: Channel, sent: bytes, short: Sequence[bytes]) -> Identifiers:
    """Where my tokens stand among those that were sent."""
    where = {token: at for at, token in enumerate(pieces(sent))}
    if any(token not in where for token in short):
        raise StateLost(f"{ch.me} has sent other tokens in {ch.run} than it has now.", "Submit the job again.")
    return np.array([where[token] for token in short], dtype=np.int64)


def _positions(ch: Channel, raw: bytes, bounds: Sequence[int], sites: int) -> Identifiers:
    if len(raw) != 4 * sum(bounds):
        raise BadMessage(f"The coordinator sent {len(raw)} bytes in {ch.prefix}TokenPositions of {ch.run}.")
    positions = np.frombuffer(raw, "<u4").astype(np.int64)
    for column, bound in zip(np.split(positions, np.cumsum(bounds)[:-1]), bounds, strict=True):
        if len(np.unique(column)) != bound or column.max() >= sites * bound:
            raise BadMessage(f"The coordinator sent positions in {ch.run} that cannot be: one twice, or out of range.")
    return positions


def _halves(ch: Channel, site: str, raw: bytes, total: int) -> Halves:
    """A site's tokens, two numbers each."""
    if len(raw) != total * TOKEN_BYTES:
        raise BadMessage(
            f"{site} sent {len(raw) // TOKEN_BYTES} tokens in {ch.prefix}Tokens of {ch.run}; "
            f"the public bound is {total}."
        )
    return np.frombuffer(raw, ">u8").astype(np.uint64).reshape(total, 2)


def _match(ch: Channel, sets: Mapping[str, Halves], bounds: Sequence[int]) -> dict[str, bytes]:
    """For each site the positions of its tokens, column after column."""
    seed = hashlib.sha256(b"".join(halves.tobytes() for halves in sets.values())).digest()
    ends = np.cumsum(bounds)
    found: dict[str, list[Identifiers]] = {site: [] for site in sets}
    for number, (end, bound) in enumerate(zip(ends, bounds, strict=True)):
        columns = [halves[end - bound : end] for halves in sets.values()]
        together = np.vstack(columns)
        order = np.lexsort((together[:, 1], together[:, 0]))
        fresh = (together[order][1:] != together[order][:-1]).any(axis=1)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.concatenate([[0], np.cumsum(fresh)])
        positions = _permutation(len(order), seed, number)[rank]
        for site, part in zip(sets, np.split(positions, len(sets)), strict=True):
            if len(np.unique(part)) != bound:
                raise BadMessage(f"{site} sent a token twice in {ch.prefix}Tokens of {ch.run}.")
            found[site].append(part)
    return {site: np.concatenate(parts).astype("<u4").tobytes() for site, parts in found.items()}


def _permutation(length: int, seed: bytes, column: int) -> Identifiers:
    """Pseudo-random under the seed: the coordinator draws nothing, and must come to the same after a crash."""
    key = hashlib.sha256(b"commonscale/v1/positions\0" + seed + column.to_bytes(4, "big")).digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * length))
    return np.argsort(np.frombuffer(stream, "<u8"), kind="stable")
