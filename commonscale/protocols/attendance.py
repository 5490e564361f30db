"""Attendance: who had not sent a message of a round in time, said once by the coordinator.

1. The sites send; the coordinator waits for all of them, or for as long as the job says.
2. It announces whose message had not come. What it announced first stays, also after a restart of its own.
3. If anybody is missing, the round's sum is not formed; the others begin it anew, among themselves and with new masks.

A site that was called missing takes no more part. The announcement is bound to the transcript: sites that were told
different things would add masks that do not cancel.

Not in the papers.

Reveals: which sites were silent for too long, to everyone.
"""

from functools import partial

import anyio
from google.protobuf.message import Message

from commonscale.channel.channel import Channel
from commonscale.channel.transcript import Transcript
from commonscale.concurrency import concurrently
from commonscale.errors import BadMessage, SiteLost
from commonscale.v1.protocols_pb2 import Attendance


async def missing(
    ch: Channel, awaited: Channel, kind: type[Message], patience_s: float, transcript: Transcript
) -> tuple[str, ...]:
    """All roles: the sites among those of `awaited` whose message did not come in time."""
    if ch.is_coordinator:
        arrived: set[str] = set()

        async def one(site: str) -> None:
            await awaited.recv(kind, site)
            arrived.add(site)

        with anyio.move_on_after(patience_s):
            await concurrently([partial(one, site) for site in awaited.sites])  # 1.
        said = await ch.decide(Attendance(missing=[site for site in awaited.sites if site not in arrived]))  # 2.
    else:
        said = await ch.recv_broadcast(Attendance)
    transcript.add(said.SerializeToString(deterministic=True))
    if not set(said.missing) <= set(awaited.sites):
        raise BadMessage(f"The coordinator called sites missing in {ch.run} that take no part in it.")
    if ch.me in said.missing:
        raise SiteLost(f"{ch.me} was silent for too long, and the others went on without it.")
    return tuple(said.missing)
