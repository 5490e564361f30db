"""A daemon that sends one damaged message in each job named mutate-ROLE-SEED-NUMBER, and is honest in all others.

python -m tests.misbehaving.mutating participant --config …
python -m tests.misbehaving.mutating coordinator --config …

The participant damages the NUMBER-th message that it makes, before it is journaled; the coordinator the NUMBER-th slot
that sites fetch, for all of them or for the first that asks. In jobs named count-… every message is only noted.
FUZZ_MARKS is the directory of the notes: ROLE.noted and ROLE.delivered, a line of JSON each.
"""

import hashlib
import json
import os
import random
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError, Message

from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.cli import main
from commonscale.v1 import protocols_pb2

ROLE = sys.argv[1]
MARKS = Path(os.environ["FUZZ_MARKS"])
INLINE_BYTES = 64 << 10
# What the bytes of a whole message or of one field in it become.
DAMAGES: dict[str, Callable[[bytes, list[bytes], random.Random], bytes]] = {
    "flip": lambda raw, _, r: _with(raw, r.randrange(max(len(raw), 1)), 1 << r.randrange(8)),
    "truncate": lambda raw, _, r: raw[: r.randrange(max(len(raw), 1))],
    "extend": lambda raw, _, r: raw + r.randbytes(r.choice([1, 8, 32, 1000])),
    "random": lambda raw, _, r: r.randbytes(len(raw)),
    "ones": lambda raw, _, r: b"\xff" * len(raw),
    "empty": lambda raw, _, r: b"",
    "replay": lambda raw, others, r: r.choice(others) if others else b"",
    # One number of eight bytes, such as a coefficient, that no modulus allows.
    "coefficient": lambda raw, _, r: _at(raw, 8 * r.randrange(max(len(raw) // 8, 1)), b"\xff" * 8),
}


def _with(raw: bytes, at: int, bit: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :] if raw else b"\x01"


def _at(raw: bytes, at: int, new: bytes) -> bytes:
    return raw[:at] + new + raw[at + len(new) :]


def note(name: str, slot: Slot, **more: Any) -> None:
    """One line, in one write: several jobs run at once."""
    line = {"job": slot.job_id, "kind": slot.kind, "sender": slot.sender, "receiver": slot.receiver, **more}
    with (MARKS / f"{ROLE}.{name}").open("a") as file:
        file.write(json.dumps(line) + "\n")


def fields(message: Message) -> Iterator[tuple[bytes, Callable[[bytes], None]]]:
    """Every bytes field inside a message, and how to replace it."""
    for field, value in message.ListFields():
        if isinstance(value, bytes):
            yield value, lambda new, name=field.name: setattr(message, name, new)
        elif isinstance(value, Message):
            yield from fields(value)
        elif field.message_type is not None:
            for one in value:
                yield from fields(one)
        elif field.type == field.TYPE_BYTES:
            for at, one in enumerate(value):
                yield one, lambda new, of=value, at=at: of.__setitem__(at, new)


def in_a_field(slot: Slot, payload: bytes, damage: Callable[[bytes], bytes], choice: random.Random) -> bytes:
    """The message with one field damaged, well formed around it; the whole one damaged where it has no field."""
    sealed = slot.sender != COORDINATOR and slot.receiver not in (COORDINATOR, ALL)
    kind = protocols_pb2.Signed if sealed else getattr(protocols_pb2, slot.kind.rpartition(".")[2])
    try:
        message = kind.FromString(payload)
    except DecodeError:
        return damage(payload)
    found = list(fields(message))
    if not found:
        return damage(payload)
    raw, put = choice.choice(found)
    put(damage(raw))
    return bytes(message.SerializeToString(deterministic=True))


class Job:
    """One job's messages, in their order, and what is damaged among them."""

    def __init__(self, seed: str, number: int) -> None:
        self.random = random.Random(seed)
        self.number = number
        self.to_all = self.random.random() < 0.5
        self.slots: list[Slot] = []
        self.payloads: list[bytes] = []
        self.target: Slot | None = None
        self.what = ""
        self.damaged = b""
        self.shown = 0

    def see(self, slot: Slot, payload: Callable[[], bytes]) -> bool:
        """Whether this is the message to damage; the first of its kind decides."""
        if slot not in self.slots:
            self.slots.append(slot)
            raw = payload()
            if len(self.slots) - 1 == self.number:
                self.target = slot
                self._damage(slot, raw)
            self.payloads.append(raw)
        return slot == self.target

    def _damage(self, slot: Slot, payload: bytes) -> None:
        while not self.what or self.damaged == payload:
            name, where = self.random.choice(list(DAMAGES)), self.random.choice(["whole", "field"])

            def damage(raw: bytes, name: str = name) -> bytes:
                return DAMAGES[name](raw, self.payloads, self.random)

            inside = where == "field"
            self.damaged = in_a_field(slot, payload, damage, self.random) if inside else damage(payload)
            self.what = f"{name} {where}"


_jobs: dict[str, Job | None] = {}


def job_of(slot: Slot) -> Job | None:
    """The job to misbehave in, if the slot is of one."""
    if slot.job_id.startswith("count-"):
        return None
    if slot.job_id not in _jobs:
        match = re.fullmatch(rf"mutate-{ROLE}-(\d+)-(\d+)", slot.job_id)
        _jobs[slot.job_id] = Job(match[1], int(match[2])) if match else None
    return _jobs[slot.job_id]


def as_participant() -> None:
    """Damage a message between its making and its journal."""
    from participant.jobs import AuditedMailbox
    from participant.journal import Journal

    once, put = Journal.once, AuditedMailbox.put

    async def damaged_once(self: Journal, slot: Slot, make: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        async def made() -> bytes:
            payload = await make()
            if slot.sender == slot.receiver:
                return payload
            job = job_of(slot)
            if job is None:
                if slot.job_id.startswith("count-"):
                    note("noted", slot)
                return payload
            return job.damaged if job.see(slot, lambda: payload) else payload

        return await once(self, slot, made)

    async def noted_put(self: AuditedMailbox, slot: Slot, payload: bytes) -> None:
        await put(self, slot, payload)
        job = job_of(slot)
        if job is not None and slot == job.target:
            note("delivered", slot, what=job.what, size=len(payload))

    Journal.once = damaged_once  # type: ignore[method-assign]
    AuditedMailbox.put = noted_put  # type: ignore[method-assign]


def as_coordinator() -> None:
    """Show sites other bytes than the store holds; the coordinator's own roles read the true ones."""
    from coordinator.blobs import FileBlobs
    from coordinator.relay import Mailroom
    from coordinator.slots import Stored

    wait = Mailroom.wait
    noted: set[Slot] = set()

    async def damaged_wait(self: Mailroom, slot: Slot, timeout_s: float) -> Stored | None:
        stored = await wait(self, slot, timeout_s)
        if stored is None or slot.receiver == COORDINATOR:
            return stored
        job = job_of(slot)
        if job is None:
            if slot.job_id.startswith("count-") and slot not in noted:
                noted.add(slot)
                note("noted", slot)
            return stored
        if not job.see(slot, stored.read) or (job.shown and not job.to_all):
            return stored
        job.shown += 1
        if job.shown == 1:
            note("delivered", slot, what=job.what, size=len(job.damaged), to_all=job.to_all)
        return _stored(stored, job.damaged, slot)

    def _stored(stored: Stored, payload: bytes, slot: Slot) -> Stored:
        changed = replace(stored, size_bytes=len(payload), sha256=hashlib.sha256(payload).digest())
        if len(payload) <= INLINE_BYTES:
            return replace(changed, payload=payload, blob=None)
        name = f"{slot.job_id}.payload"
        (MARKS / name).write_bytes(payload)
        return replace(changed, payload=None, blob=name, blobs=FileBlobs(MARKS))

    Mailroom.wait = damaged_wait  # type: ignore[method-assign]


if ROLE == "participant":
    as_participant()
else:
    as_coordinator()

main()
