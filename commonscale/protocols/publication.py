"""Publication: something that all sites hold alike is shown to everyone.

1. The first site sends it to the coordinator.
2. The coordinator sends it to all sites.
3. Each site compares it with what it holds itself.

Not in the papers.

Reveals: the content, to everyone.
"""

from collections.abc import Callable
from functools import partial

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.channel.transcript import Transcript
from commonscale.concurrency import offload
from commonscale.errors import Disagreement
from commonscale.v1.protocols_pb2 import Published


async def publish(ch: Channel, mine: Callable[[], bytes], transcript: Transcript) -> bytes:
    """All roles: the content."""
    first = ch.sites[0]
    if ch.is_coordinator:
        said = await ch.recv(Published, first)
        await ch.broadcast(said)  # 2.
    else:
        own = await offload(mine)
        if ch.me == first:
            await ch.send(COORDINATOR, Published, lambda: Published(content=own))  # 1.
        said = await ch.recv_broadcast(Published)
        if said.content != own:  # 3.
            raise Disagreement(
                f"What was published for {first} in {ch.prefix}Published of {ch.run} is not what {ch.me} has."
            )
    await offload(partial(transcript.add, said.content))
    return said.content
