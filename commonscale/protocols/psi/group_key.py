"""A secret that all sites have and the coordinator has not.

1. The first site of the ring draws a key and sends it, sealed, to every other site.

It masks sums that only the sites may read, and keys the hash of the layout that they agree on: a hash without a key
could be tried against guesses.

Reveals: nothing.
"""

import secrets

from commonscale.channel.channel import Channel
from commonscale.errors import BadMessage
from commonscale.v1.protocols_pb2 import GroupKey

KEY_BYTES = 32


async def share(ch: Channel) -> bytes:
    """All roles: the key, at a site; nothing at the coordinator."""
    first, *others = ch.sites
    if ch.is_coordinator:
        return b""
    if ch.me == first:
        key = await ch.keep("OwnGroupKey", lambda: secrets.token_bytes(KEY_BYTES))
        await ch.scatter(GroupKey, {site: lambda: GroupKey(key=key) for site in others})
        return key
    key = (await ch.recv(GroupKey, first)).key
    if len(key) != KEY_BYTES:
        raise BadMessage(f"{first} sent a key of {len(key)} bytes in {ch.prefix}GroupKey of {ch.run}.")
    return key
