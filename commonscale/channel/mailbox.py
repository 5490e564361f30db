"""A mailbox in memory: for tests, simulations, and roles that share a process."""

import hashlib
from collections.abc import Mapping, Sequence

import anyio

from commonscale.channel.slot import Slot, step_run
from commonscale.errors import Equivocation, StateLost


class MemoryMailbox:
    """Slots in a dictionary, with the same rules as the relay."""

    def __init__(self) -> None:
        self.slots: dict[Slot, bytes] = {}
        # Hashes of what was dropped behind a checkpoint.
        self.trimmed: dict[Slot, bytes] = {}
        self._changed = anyio.Event()

    async def put(self, slot: Slot, payload: bytes) -> None:
        """Fill a slot once."""
        trimmed = self.trimmed.get(slot)
        held = (
            trimmed == hashlib.sha256(payload).digest() if trimmed else self.slots.setdefault(slot, payload) == payload
        )
        if not held:
            raise Equivocation(f"{slot} holds another message.")
        self._changed.set()
        self._changed = anyio.Event()

    async def get(self, slot: Slot) -> bytes:
        """Wait for a slot."""
        while slot not in self.slots:
            if slot in self.trimmed:
                raise StateLost(f"{slot} lies behind the last checkpoint.")
            await self._changed.wait()
        return self.slots[slot]

    async def last(self, run: str, me: str) -> bytes | None:
        """The newest checkpoint of a step's session."""
        return newest_checkpoint(self.slots, run, me)

    async def keep(self, slot: Slot, payload: bytes, behind: Sequence[str]) -> None:
        """Store a checkpoint, and drop what lies behind it."""
        await self.put(slot, payload)
        for gone in [other for other in self.slots if other.run in behind and other != slot]:
            self.trimmed[gone] = hashlib.sha256(self.slots.pop(gone)).digest()


def newest_checkpoint(slots: Mapping[Slot, bytes], run: str, me: str) -> bytes | None:
    """Of one role, in the rounds of one step."""
    found = [slot for slot in slots if (step_run(slot.run), slot.kind, slot.sender) == (run, "Checkpoint", me)]
    return slots[max(found, key=lambda slot: int(slot.run.rpartition("/")[2]))] if found else None
