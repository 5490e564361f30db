"""A federation in memory: real keys and certificates, all roles on one mailbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from commonscale.axis import Axis
from commonscale.categories import TextRules, canonical
from commonscale.channel.channel import Channel, Mailbox, Observer
from commonscale.channel.mailbox import MemoryMailbox, newest_checkpoint
from commonscale.channel.seal import JobKeys
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.identity import Authority, Identity, Role
from commonscale.pipeline import Pipeline
from commonscale.pki import CertificateAuthority, request
from commonscale.protocols import admission
from commonscale.reveal import Ledger
from commonscale.running import CoordinatorPool, SitePool, run_step
from commonscale.sources import queries
from commonscale.sources.queries import Query
from commonscale.statistics.layout import Remembered
from commonscale.statistics.training.standing import Standing
from commonscale.transforms import Transform
from commonscale.v1.protocols_pb2 import Column, ColumnKind, Signed
from crypto import signing
from tests.linear_worker import LinearWorker

JOB = "job-1"


class NumpySource:
    """A site's table as an array: what the participant's sources are compared with."""

    def __init__(self, columns: Sequence[str], rows: np.ndarray) -> None:
        self.columns = list(columns)
        self.rows = np.asarray(rows, dtype=float).reshape(-1, len(self.columns))

    def _present(self, column: str) -> np.ndarray:
        values = self.rows[:, self.columns.index(column)]
        return values[~np.isnan(values)]

    def answer(self, query: Query[Any]) -> Any:
        present = [self._present(column) for column in query.columns]
        with np.errstate(over="ignore"):
            return self._answer(query, present)

    def _answer(self, query: Query[Any], present: list[np.ndarray]) -> Any:
        match query:
            case queries.RowCount():
                return len(self.rows)
            case queries.Sums():
                return np.array([[len(x), x.sum(), np.square(x).sum()] for x in present]).T
            case queries.Deviations():
                deviations = [x - centre for x, centre in zip(present, query.around, strict=True)]
                return np.array([[d.sum(), np.square(d).sum()] for d in deviations]).T
            case queries.Extremes():
                return np.array([[x.min(), x.max()] if len(x) else [np.nan, np.nan] for x in present]).T
            case queries.CountsAt():
                return np.concatenate(
                    [_counts(present[cuts.column], cuts, query.axis(cuts.column)) for cuts in query.cuts]
                )
            case queries.Pieced():
                return query.fold([present])
        raise TypeError(type(query).__name__)


def _counts(values: np.ndarray, cuts: queries.Cuts, axis: Axis) -> np.ndarray:
    """By the positions of all values."""
    places = axis.positions(values).tolist()
    edges = (cuts.first + number * cuts.step for number in range(cuts.count))
    return np.array([sum(place <= edge for place in places) for edge in edges], dtype=np.uint64)


@dataclass(frozen=True)
class CategorySource:
    """A site's table as lists of cells, what earlier jobs left there by their id, and its models by name."""

    cells: Mapping[str, Sequence[Any]]
    memories: Mapping[str, Result] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, query: Query[Any]) -> Any:
        match query:
            case queries.Frequencies():
                return self.categories(query.columns, query.rules)
            case queries.TargetSums():
                return self._target_sums(query)
        raise TypeError(type(query).__name__)

    def categories(self, columns: Sequence[str], rules: TextRules) -> list[dict[str | None, int]]:
        found: list[dict[str | None, int]] = []
        for column in columns:
            counts: dict[str | None, int] = {}
            for cell in self.cells[column]:
                text = canonical(cell, rules)
                counts[text] = counts.get(text, 0) + 1
            found.append(counts)
        return found

    def _target_sums(self, query: queries.TargetSums) -> list[dict[str | None, tuple[int, float]]]:
        found: list[dict[str | None, tuple[int, float]]] = []
        for column in query.columns:
            sums: dict[str | None, tuple[int, float]] = {}
            for cell, number in zip(self.cells[column], self.cells[query.target], strict=True):
                count, total = sums.get(canonical(cell, query.rules), (0, 0.0))
                more = (0, 0.0) if number is None else (1, float(number))
                sums[canonical(cell, query.rules)] = (count + more[0], total + more[1])
            found.append(sums)
        return found

    def remembered(self, job_id: str, columns: Sequence[str], rules: TextRules) -> Remembered | None:
        result = self.memories.get(job_id)
        if result is None:
            return None
        assert result.step.columns == list(columns)
        assert result.step.rules == rules
        return Remembered(result.dictionaries, result.digest)

    def model(self, name: str) -> Any:
        return self.models[name]


Table = NumpySource | CategorySource | LinearWorker


@dataclass(frozen=True)
class Result:
    """What a role ends a step with."""

    step: Transform
    fitted: Any

    def parameters(self) -> dict[str, Any]:
        return self.step.parameters(self.fitted)

    def estimator(self) -> Any:
        return self.step.estimator(self.fitted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fitted, name)


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

    async def last(self, run: str, me: str) -> bytes | None:
        return newest_checkpoint(self.kept, run, me)

    async def keep(self, slot: Slot, payload: bytes, behind: Sequence[str]) -> None:
        self.kept = {other: kept for other, kept in self.kept.items() if other.run not in behind} | {slot: payload}


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

    def drop(self, name: str) -> None:
        self.sets.pop(name, None)

    def names(self) -> Sequence[str]:
        return list(self.sets)


def schema(pipeline: Pipeline) -> list[Column]:
    """The first step's columns, with kinds that fit: the same at all sites."""
    number, text = ColumnKind.COLUMN_KIND_NUMBER, ColumnKind.COLUMN_KIND_TEXT
    step = pipeline.steps[0]
    kinds = dict.fromkeys(step.numeric_columns, number) | dict.fromkeys(step.text_columns, text)
    return [Column(name=name, kind=kind) for name, kind in kinds.items()]


class Federation:
    """Members of one consortium, and their roles."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.ca = CertificateAuthority.create(directory, "test")
        self.authority = Authority(self.ca.certificate)
        self.members = {name: self.enrol(name) for name in names}
        self.mailbox = MemoryMailbox()
        self.shelves = {name: MemoryShelf() for name in (COORDINATOR, *names)}
        # What each role has seen opened.
        self.ledgers = {name: Ledger() for name in (COORDINATOR, *names)}
        # How far those who watch were told a training is.
        self.standings: list[Standing] = []

    def enrol(self, name: str, role: Role = Role.SITE) -> Member:
        key = signing.generate()
        return Member(name, key, self.ca.approve(request(Identity(role, name), [], key)))

    def channel(self, run: str, me: str, mailbox: Mailbox | None = None, observer: Observer | None = None) -> Channel:
        journal = self.members[me].journal if me in self.members else None
        return Channel(
            run,
            me,
            tuple(self.members),
            mailbox or self.mailbox,
            observer=observer or Observer(),
            shelf=self.shelves[me],
            ledger=self.ledgers[me],
            journal=journal,
            checkpoints=journal or self.mailbox,
        )

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
        signed = partial(admission.sign_answer, ch, answer, member.key, der)
        await ch.under(admission.VERDICTS).send(COORDINATOR, Signed, signed)
        return (await admission.site(ch, spec, keys, member.key, self.authority)).step(0)

    async def admitted_coordinator(self, mailbox: Mailbox | None = None, observer: Observer | None = None) -> Channel:
        """The coordinator's end of the first step."""
        return (await admission.coordinator(self.channel(JOB, COORDINATOR, mailbox, observer))).step(0)

    async def site(
        self, name: str, pipeline: Pipeline, table: Table, mailbox: Mailbox | None = None,
        observer: Observer | None = None, spec: bytes | None = None,
    ) -> Result:  # fmt: skip
        ch = await self.admitted_site(name, pipeline, mailbox, observer, spec)
        step = pipeline.steps[0]
        # A table that trains is its own worker.
        worker = table if isinstance(table, LinearWorker) else None
        return Result(step, await run_step(SitePool(ch, table, table, worker), step))

    async def coordinator(
        self, pipeline: Pipeline, mailbox: Mailbox | None = None, observer: Observer | None = None
    ) -> Result:
        step, ch = pipeline.steps[0], await self.admitted_coordinator(mailbox, observer)
        return Result(step, await run_step(CoordinatorPool(ch, self.standings.append), step))

    async def run(self, pipeline: Pipeline, tables: Mapping[str, Table]) -> dict[str, Result]:
        """All roles to their end; the coordinator's result is under COORDINATOR."""
        results: dict[str, Result] = {}

        async def role(name: str, work: Awaitable[Result]) -> None:
            results[name] = await work

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(role, COORDINATOR, self.coordinator(pipeline))
            for name in self.members:
                tasks.start_soon(role, name, self.site(name, pipeline, tables[name]))
        return results
