"""`oprf`: tokens matched by the coordinator. The quick way to common identifiers, and the default.

1. Every site gets OPRF tokens of its values from the keyholder, the first site of the ring (see tokens).
2. It sends them to the coordinator, in order within each column, with random ones up to the column's public bound.
3. The coordinator finds equal tokens and gives each different one a position among as many as there could be: a
   pseudo-random permutation under a hash of all tokens. It sends each site the positions of its own tokens.

Positions of dummies stay unused; the layout then numbers those in use without gaps.

The key is fresh in every run, so tokens of two jobs cannot be compared. No site sees another's tokens: the keyholder
could try guesses on them.

Reveals: to the coordinator, per column and for each group of at least two sites, how many values exactly these have
in common; not which, not how many others there are. To the sites, nothing here: positions are random.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import offload
from commonscale.errors import BadMessage
from commonscale.hidden import HIDDEN, Hidden, known
from commonscale.protocols.psi import tokens
from commonscale.protocols.psi.items import Identifiers, Values
from commonscale.reveal import Reveal
from commonscale.v1.protocols_pb2 import TokenPositions

REVEALS = Reveal(
    "match",
    "how many values of each column exactly these sites have in common, for every two or more sites",
    "coordinator",
)


async def match(ch: Channel, values: Values | Hidden, bounds: Sequence[int]) -> Identifiers | Hidden:
    """All roles: positions of a site's values, column after column; columns have sites × bound positions."""
    ch = ch.under(REVEALS)
    if ch.is_coordinator:
        sets = await tokens.gather_mixed(ch, sum(bounds))
        found = await offload(_match, ch, sets, bounds)
        for site, positions in zip(ch.sites, found, strict=True):
            await ch.deliver(site, TokenPositions(positions=positions.astype("<u4").tobytes()))  # 3.
        return HIDDEN
    own = known(values)
    mine = await tokens.tokens_of(ch, own.items(), sum(bounds))  # 1.
    _, where = await tokens.send_mixed(ch, COORDINATOR, mine, own.sizes, bounds)  # 2.
    announced = await ch.recv(TokenPositions, COORDINATOR)
    return _positions(ch, announced.positions, bounds)[where]


def _positions(ch: Channel, raw: bytes, bounds: Sequence[int]) -> Identifiers:
    if len(raw) != 4 * sum(bounds):
        raise BadMessage(f"The coordinator sent {len(raw)} bytes in {ch.prefix}TokenPositions of {ch.run}.")
    positions = np.frombuffer(raw, "<u4").astype(np.int64)
    for column, bound in zip(np.split(positions, np.cumsum(bounds)[:-1]), bounds, strict=True):
        if len(np.unique(column)) != bound or column.max() >= len(ch.sites) * bound:
            raise BadMessage(f"The coordinator sent positions in {ch.run} that cannot be: one twice, or out of range.")
    return positions


def _match(ch: Channel, sets: Sequence[bytes], bounds: Sequence[int]) -> Identifiers:
    """The positions of every site's tokens, column after column: one row per site."""
    seed = hashlib.sha256(b"".join(sets)).digest()
    together = np.array([np.frombuffer(raw, f"S{tokens.SHORT_BYTES}") for raw in sets])
    found = []
    for number, column in enumerate(np.split(together, np.cumsum(bounds)[:-1], axis=1)):
        _, rank = np.unique(column, return_inverse=True)
        positions = _permutation(column.size, seed, number)[rank].reshape(column.shape)
        for site, of_site in zip(ch.sites, positions, strict=True):
            if len(np.unique(of_site)) != len(of_site):
                raise BadMessage(f"{site} sent a token twice in {ch.prefix}Tokens of {ch.run}.")
        found.append(positions)
    return np.concatenate(found, axis=1)


def _permutation(length: int, seed: bytes, column: int) -> Identifiers:
    """Pseudo-random under the seed: the coordinator draws nothing, and must come to the same after a crash."""
    key = hashlib.sha256(b"commonscale/v1/positions\0" + seed + column.to_bytes(4, "big")).digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * length))
    return np.argsort(np.frombuffer(stream, "<u8"), kind="stable")
