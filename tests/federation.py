"""A federation in memory: real keys and certificates, all roles on one mailbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from commonscale.protocols.categories.layout import Remembered
from commonscale.seal import JobKeys
from commonscale.slot import HUB, Slot
from commonscale.transforms.categories import TextRules, canonical
from commonscale.transforms.encodings import FittedIdentifiers
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


@dataclass(frozen=True)
class CategoryTable:
    """A site's table as lists of cells, what earlier jobs left there by their id, and its models by name."""

    cells: Mapping[str, Sequence[Any]]
    memories: Mapping[str, FittedIdentifiers] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)

    def categories(self, columns: Sequence[str], rules: TextRules) -> list[dict[str | None, int]]:
        found: list[dict[str | None, int]] = []
        for column in columns:
            counts: dict[str | None, int] = {}
            for cell in self.cells[column]:
                text = canonical(cell, rules)
                counts[text] = counts.get(text, 0) + 1
            found.append(counts)
        return found

    def target_sums(
        self, columns: Sequence[str], target: str, rules: TextRules
    ) -> list[dict[str | None, tuple[int, float]]]:
        found: list[dict[str | None, tuple[int, float]]] = []
        for column in columns:
            sums: dict[str | None, tuple[int, float]] = {}
            for cell, number in zip(self.cells[column], self.cells[target], strict=True):
                count, total = sums.get(canonical(cell, rules), (0, 0.0))
                more = (0, 0.0) if number is None else (1, float(number))
                sums[canonical(cell, rules)] = (count + more[0], total + more[1])
            found.append(sums)
        return found

    def remembered(self, job_id: str, columns: Sequence[str], rules: TextRules) -> Remembered | None:
        fitted = self.memories.get(job_id)
        if fitted is None:
            return None
        assert fitted.columns == tuple(columns)
        assert fitted.rules == rules
        return Remembered(fitted.dictionaries, fitted.layout)

    def model(self, name: str) -> Any:
        return self.models[name]


Table = NumpyTable | CategoryTable


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


def schema(pipeline: Pipeline) -> list[Column]:
    """The first step's columns, with kinds that fit: the same at all sites."""
    number, text = ColumnKind.COLUMN_KIND_NUMBER, ColumnKind.COLUMN_KIND_TEXT
    step = pipeline.steps[0]
    kinds = dict.fromkeys(step.numeric_columns, number) | dict.fromkeys(step.categorical_columns, text)
    return [Column(name=name, kind=kind) for name, kind in kinds.items()]


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
        self, name: str, pipeline: Pipeline, table: Table, mailbox: Mailbox | None = None,
        observer: Observer | None = None, spec: bytes | None = None,
    ) -> Fitted:  # fmt: skip
        ch = await self.admitted_site(name, pipeline, mailbox, observer, spec)
        return await steps.party(ch, pipeline.steps[0], table)

    async def admitted_site(
        self, name: str, pipeline: Pipeline, mailbox: Mailbox | None = None,
        observer: Observer | None = None, spec: bytes | None = None,
    ) -> Channel:  # fmt: skip
        """A site's end of the first step, after all have confirmed who takes part."""
        member = self.members[name]
        spec = spec or pipeline.to_bytes()
        ch = self.channel(JOB, name, mailbox, observer)
        keys = JobKeys.from_bytes(await ch.keep("Keys", lambda: JobKeys.generate().to_bytes()))
        der = member.certificate.public_bytes(serialization.Encoding.DER)
        answer = admission.acceptance(spec, keys, schema(pipeline))
        await ch.send(HUB, Signed, lambda: admission.sign_answer(ch, answer, member.key, der))
        return (await admission.party(ch, spec, keys, member.key, self.authority)).step(0)

    async def hub(self, pipeline: Pipeline, mailbox: Mailbox | None = None, observer: Observer | None = None) -> Fitted:
        return await steps.coordinator(await self.admitted_coordinator(mailbox, observer), pipeline.steps[0])

    async def admitted_coordinator(self, mailbox: Mailbox | None = None, observer: Observer | None = None) -> Channel:
        """The coordinator's end of the first step."""
        return (await admission.coordinator(self.channel(JOB, HUB, mailbox, observer))).step(0)

    async def run(self, pipeline: Pipeline, tables: Mapping[str, Table]) -> dict[str, Fitted]:
        """All roles to their end; the coordinator's result is under HUB."""
        results: dict[str, Fitted] = {}

        async def role(name: str, work: Awaitable[Fitted]) -> None:
            results[name] = await work

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(role, HUB, self.hub(pipeline))
            for name in self.members:
                tasks.start_soon(role, name, self.site(name, pipeline, tables[name]))
        return results
