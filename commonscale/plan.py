"""A plan: the same `fit`, run on nothing, to see beforehand what a step would ask, open and need.

The policy, the approval page, the disclosure report's wording and the tables of the documentation come out of it. Where
a `fit` branches on what is opened, a plan takes one branch; what the transform's class declares beside that is listed
as what it may open.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from commonscale.errors import DataError
from commonscale.hidden import HIDDEN, Hidden
from commonscale.options import CkksOptions
from commonscale.ordering import Floats
from commonscale.pool import CAPACITY, Counter, PlainCounter, Pool, Session
from commonscale.protocols import sums
from commonscale.protocols.ckks.levels import REUSE, STAND_IN, Circuit, PlannedCircuit
from commonscale.protocols.sums import Mine, Yes
from commonscale.reveal import Reveal
from commonscale.sources.queries import AnyValue, CountsAt, Frequencies, Integers, Query
from commonscale.statistics.identifiers import IdentifierOptions
from commonscale.statistics.layout import Layout
from commonscale.statistics.texts import ModelFile
from crypto.ckks.profiles import profile_for
from crypto.rings import FIELD61, Ring, Vector

if TYPE_CHECKING:
    from commonscale.transforms.base import Transform

A = TypeVar("A")
T = TypeVar("T")

# What every pooled count is in a plan: enough for every rank to exist.
_COUNT = 3


@dataclass(frozen=True)
class Plan:
    """What one step asks of the rows, opens, and needs, with a given number of sites."""

    queries: tuple[Query[Any], ...]
    # Asked only where what was opened before asks for it.
    may_ask: tuple[type[Query[Any]], ...]
    reveals: tuple[Reveal, ...]
    # Opened only where what was opened before asks for it.
    may_reveal: tuple[Reveal, ...]
    # How numbers are pooled: masks, shares, ckks, oprf …
    methods: frozenset[str]
    # Encryption parameters: standard, high-latency or test.
    profiles: frozenset[str]

    @property
    def titles(self) -> list[str]:
        """What may be asked of the rows, for people."""
        return list(dict.fromkeys([query.title for query in self.queries] + [kind.title for kind in self.may_ask]))

    def allows(self, query: Query[Any]) -> bool:
        """Whether it says that this may be asked, of these columns."""
        kinds = {type(planned) for planned in self.queries} | {*self.may_ask}
        columns = {column for planned in self.queries for column in (*planned.numeric_columns, *planned.text_columns)}
        return type(query) in kinds and columns.issuperset((*query.numeric_columns, *query.text_columns))

    @property
    def all_reveals(self) -> tuple[Reveal, ...]:
        """Everything that may be opened."""
        return self.reveals + self.may_reveal


@lru_cache(maxsize=1024)
def _plan_of(kind: type[Transform], options: str, sites: int) -> Plan:
    step = kind.model_validate_json(options)
    pool = PlanPool(sites)
    with contextlib.suppress(DataError):
        # A fit may refuse to go on without any value: what it would open then is declared.
        _run(step.fit(pool))
    noted = tuple(dict.fromkeys(pool.reveals))
    scopes = {reveal.scope for reveal in noted}
    # Of several wordings for one scope, a run uses one.
    declared = (*kind.declared_reveals(), *pool.may_reveal)
    may = tuple(reveal for reveal in dict.fromkeys(declared) if reveal.scope not in scopes)
    methods, profiles = frozenset(pool.methods), frozenset(pool.profiles)
    return Plan(tuple(pool.queries), kind.may_ask, noted, may, methods, profiles)


def plan_of(step: Transform, sites: int) -> Plan:
    """The plan of a step."""
    return _plan_of(type(step), step.model_dump_json(), sites)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """A coroutine that waits for nothing, without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    work.close()
    raise RuntimeError("a plan waits for something")


class PlanPool(Pool):
    """A pool of nothing, which notes what it is asked for."""

    def __init__(self, sites: int) -> None:
        self.sites = [f"site-{number}" for number in range(1, sites + 1)]
        # Each once: a search may ask the same for many rounds.
        self.queries: dict[Query[Any], None] = {}
        self.reveals: list[Reveal] = []
        self.may_reveal: list[Reveal] = []
        self.methods: set[str] = set()
        self.profiles: set[str] = set()

    def _note(self, reveal: Reveal, method: str = "") -> None:
        self.reveals.append(reveal)
        if method:
            self.methods.add(method)

    def ask(self, query: Query[A]) -> Callable[[], A]:
        """Noted."""
        self.queries[query] = None
        return super().ask(query)

    async def add(
        self, reveal: Reveal, ring: Ring, length: int, mine: Mine, *, method: str = "masks", number: int = 0
    ) -> Vector:
        """Zeros."""
        self._note(reveal, method)
        if also := sums.METHODS[method].also:
            self._note(also)
        return ring.zeros(length)

    async def add_hidden(self, reveal: Reveal, ring: Ring, length: int, mine: Mine) -> Vector | Hidden:
        """Nothing that this role would see."""
        self._note(reveal, "masks")
        return HIDDEN

    async def add_hidden_in_time(
        self, reveal: Reveal, absence: Reveal, ring: Ring, length: int, mine: Mine, patience_s: float, number: int
    ) -> Vector | Hidden | tuple[str, ...]:
        """Everyone comes in time."""
        self._note(absence)
        return await self.add_hidden(reveal, ring, length, mine)

    def lose(self, sites: Sequence[str]) -> None:
        """Nobody."""

    async def announce(self, reveal: Reveal, length: int, mine: Callable[[], Floats], number: int = 0) -> Floats:
        """Zeros of everyone."""
        self._note(reveal, "clear")
        return np.zeros((len(self.sites), length))

    async def publish(self, reveal: Reveal, mine: Callable[[], bytes]) -> bytes:
        """Nothing."""
        self._note(reveal)
        return b""

    async def any_says(self, reveal: Reveal, length: int, mine: Callable[[], Yes], number: int = 0) -> Yes:
        """Nobody says anything."""
        self._note(reveal, "masks")
        return np.zeros(length, dtype=bool)

    async def any_value(self, reveal: Reveal, query: AnyValue) -> list[Yes]:
        """Yes to everything: then there is a search for every digit."""
        self.ask(query)
        self._note(reveal, "masks")
        return [np.ones(length, dtype=bool) for length in query.lengths]

    async def sum(
        self, reveal: Reveal, query: Query[Floats], *, rows: int | None = None, method: str = "masks", number: int = 0
    ) -> list[list[Fraction]]:
        """Some values, which are all zero."""
        names = query.rows[:rows]
        self.ask(query)
        await self.add(reveal, FIELD61, 0, lambda: np.empty(0, np.uint64), method=method)
        return [[Fraction(_COUNT if name == "count" else 0)] * len(query.columns) for name in names]

    async def count(self, reveal: Reveal, query: CountsAt, *, method: str = "masks", number: int = 0) -> Integers:
        """Some values."""
        self.ask(query)
        self._note(reveal, method)
        return np.full(query.length, _COUNT, dtype=np.uint64)

    async def add_counts(
        self, reveal: Reveal, length: int, mine: Callable[[], ArrayLike], *, method: str = "masks", number: int = 0
    ) -> Integers:
        """As many at each site."""
        self._note(reveal, method)
        return np.full(length, _COUNT * len(self.sites), dtype=np.uint64)

    @asynccontextmanager
    async def counter(self, method: str, options: CkksOptions) -> AsyncIterator[Counter]:
        """Counts by any method."""
        if method == "ckks":
            # Counts have no escrow.
            self._note_keys(options.model_copy(update={"recovery": False}))
        capacity = profile_for(options.profile, "counts").slots if method == "ckks" else CAPACITY
        yield PlainCounter(self, method, capacity)

    @asynccontextmanager
    async def circuit(
        self, options: CkksOptions, purpose: str, rotations: Sequence[int] = ()
    ) -> AsyncIterator[Circuit]:
        """On nothing."""
        self.methods.add("ckks")
        self._note_keys(options)
        yield PlannedCircuit(profile_for(options.profile, purpose), self.sites, self._note)

    def _note_keys(self, options: CkksOptions) -> None:
        self.profiles.add(options.profile)
        if options.keys == "reuse":
            self._note(REUSE)
        if options.recovery:
            self.may_reveal.append(STAND_IN)

    async def identifiers(self, query: Frequencies, options: IdentifierOptions) -> Layout:
        """What the options say of themselves."""
        self.ask(query)
        self.reveals += options.reveals()
        self.methods |= options.methods
        nothing = (0,) * len(query.columns)
        return Layout(nothing, nothing, b"", HIDDEN)

    async def session(self) -> Session:
        """Of two rounds: the others open the same, or what is declared."""
        return PlannedSession(self)

    async def same_model(self, reveal: Reveal, name: str) -> ModelFile:
        """Of no hash."""
        self._note(reveal)
        return ModelFile("")


@dataclass(frozen=True)
class PlannedSession:
    """A session of which two rounds are looked at."""

    pool: PlanPool
    state: bytes = b""

    def rounds(self, count: int) -> Iterator[tuple[int, Pool]]:
        """The first and the last: what a step does every few rounds, or in a half of them, it does in one of these."""
        yield 1, self.pool
        yield count, self.pool

    async def checkpoint(self, state: bytes) -> None:
        """Opens nothing."""
