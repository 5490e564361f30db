"""A mailbox in memory: for tests, simulations, and roles that share a process."""

import anyio

from commonscale.channel.slot import Slot
from commonscale.errors import Equivocation


class MemoryMailbox:
    """Slots in a dictionary, with the same rules as the relay."""

    def __init__(self) -> None:
        self.slots: dict[Slot, bytes] = {}
        self._changed = anyio.Event()

    async def put(self, slot: Slot, payload: bytes) -> None:
        """Fill a slot once."""
        if self.slots.setdefault(slot, payload) != payload:
            raise Equivocation(f"{slot} holds another message.")
        self._changed.set()
        self._changed = anyio.Event()

    async def get(self, slot: Slot) -> bytes:
        """Wait for a slot."""
        while slot not in self.slots:
            await self._changed.wait()
        return self.slots[slot]
