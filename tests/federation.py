"""A federation in memory: real keys and certificates, all roles on one mailbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from commonscale import steps
from commonscale.channel import Channel, Mailbox, NoObserver, Observer
from commonscale.identity import Authority, Identity, Role
from commonscale.mailbox import MemoryMailbox
from commonscale.pipeline import Pipeline
from commonscale.pki import CertificateAuthority, request
from commonscale.protocols import admission
from commonscale.seal import JobKeys
from commonscale.slot import HUB, Slot
from commonscale.transforms.results import Fitted
from commonscale.v1.protocols_pb2 import Column, ColumnKind, Signed
from crypto import signing

JOB = "job-1"


class NumpyTable:
    """A site's table as an array: what the participant's DuckDB source is compared with."""

    def __init__(self, columns: Sequence[str], rows: np.ndarray) -> None:
        self.columns = list(columns)
        self.rows = np.asarray(rows, dtype=float).reshape(-1, len(self.columns))

    def _present(self, column: str) -> np.ndarray:
        values = self.rows[:, self.columns.index(column)]
        return values[~np.isnan(values)]

    def sums(self, columns: Sequence[str]) -> list[tuple[int, float, float]]:
        present = [self._present(column) for column in columns]
        with np.errstate(over="ignore"):
            return [(len(x), float(x.sum()), float(np.square(x).sum())) for x in present]

    def extremes(self, columns: Sequence[str]) -> list[tuple[float, float] | None]:
        present = [self._present(column) for column in columns]
        return [(float(x.min()), float(x.max())) if len(x) else None for x in present]

    def ordered(self, columns: Sequence[str]) -> list[np.ndarray]:
        return [np.sort(self._present(column)) for column in columns]

    def deviations(self, columns: Sequence[str], means: Sequence[float]) -> list[tuple[float, float]]:
        present = [self._present(column) - mean for column, mean in zip(columns, means, strict=True)]
        return [(float(d.sum()), float(np.square(d).sum())) for d in present]


class MemoryJournal:
    """What survives a crash of a party, and a count of how often each message was made."""

    def __init__(self) -> None:
        self.kept: dict[Slot, bytes] = {}
        self.made: dict[Slot, int] = {}

    async def once(self, slot: Slot, make: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        if slot in self.kept:
            return self.kept[slot], False
        payload = await make()
        self.kept[slot] = payload
        self.made[slot] = self.made.get(slot, 0) + 1
        return payload, True


@dataclass
class Member:
    """A site with its certificate."""

    name: str
    key: signing.SigningKey
    certificate: x509.Certificate
    journal: MemoryJournal = field(default_factory=MemoryJournal)


class MemoryShelf:
    """Key sets that outlive a job, in memory."""

    def __init__(self) -> None:
        self.sets: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self.sets.get(name)

    def put(self, name: str, content: bytes) -> None:
        self.sets[name] = content


class Federation:
    """Members of one consortium, and their roles."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.ca = CertificateAuthority.create(directory, "test")
        self.authority = Authority(self.ca.certificate)
        self.members = {name: self.enrol(name) for name in names}
        self.mailbox = MemoryMailbox()
        self.shelves = {name: MemoryShelf() for name in (HUB, *names)}

    def enrol(self, name: str, role: Role = Role.SITE) -> Member:
        key = signing.generate()
        return Member(name, key, self.ca.approve(request(Identity(role, name), [], key)))

    def channel(self, run: str, me: str, mailbox: Mailbox | None = None, observer: Observer | None = None) -> Channel:
        journal = {} if me == HUB else {"journal": self.members[me].journal}
        return Channel(
            run,
            me,
            tuple(self.members),
            mailbox or self.mailbox,
            observer=observer or NoObserver(),
            shelf=self.shelves[me],
            **journal,
        )

    async def site(
        self, name: str, pipeline: Pipeline, table: NumpyTable, mailbox: Mailbox | None = None,
        observer: Observer | None = None, spec: bytes | None = None,
    ) -> Fitted:  # fmt: skip
        member = self.members[name]
        spec = spec or pipeline.to_bytes()
        ch = self.channel(JOB, name, mailbox, observer)
        keys = JobKeys.from_bytes(await ch.keep("Keys", lambda: JobKeys.generate().to_bytes()))
        columns = [Column(name=c, kind=ColumnKind.COLUMN_KIND_NUMBER) for c in pipeline.steps[0].columns]
        der = member.certificate.public_bytes(serialization.Encoding.DER)
        answer = admission.acceptance(spec, keys, columns)
        await ch.send(HUB, Signed, lambda: admission.sign_answer(ch, answer, member.key, der))
        ch = await admission.party(ch, spec, keys, member.key, self.authority)
        return await steps.party(ch.step(0), pipeline.steps[0], table)

    async def hub(self, pipeline: Pipeline, mailbox: Mailbox | None = None, observer: Observer | None = None) -> Fitted:
        ch = await admission.coordinator(self.channel(JOB, HUB, mailbox, observer))
        return await steps.coordinator(ch.step(0), pipeline.steps[0])

    async def run(self, pipeline: Pipeline, tables: dict[str, NumpyTable]) -> dict[str, Fitted]:
        """All roles to their end; the coordinator's result is under HUB."""
        results: dict[str, Fitted] = {}

        async def role(name: str, work: Awaitable[Fitted]) -> None:
            results[name] = await work

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(role, HUB, self.hub(pipeline))
            for name in self.members:
                tasks.start_soon(role, name, self.site(name, pipeline, tables[name]))
        return results
