"""Pooled statistics, by the same call at every role.

A transform's `fit` is one function that all roles run over a Pool. A site's pool has a source of rows, the
coordinator's has none (commonscale.running), and a plan's has nothing at all and only notes what it is asked for
(commonscale.plan). What a site alone knows stands in functions that only a site calls; what only the sites learn is
HIDDEN at the coordinator.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Overflow
from commonscale.hidden import HIDDEN, Hidden
from commonscale.options import CkksOptions
from commonscale.ordering import Floats
from commonscale.reveal import Reveal
from commonscale.sources.queries import AnyValue, CountsAt, Frequencies, Integers, Query
from crypto import fixed_point
from crypto.rings import FIELD61, Z256, Ring, Vector

if TYPE_CHECKING:
    from commonscale.protocols.ckks.levels import Circuit
    from commonscale.protocols.sums import Mine, Yes
    from commonscale.statistics.identifiers import IdentifierOptions
    from commonscale.statistics.layout import Layout
    from commonscale.statistics.texts import ModelFile
    from commonscale.statistics.training.standing import Standing
    from commonscale.statistics.training.worker import Arrays, Local, Order, Ready

A = TypeVar("A")
T = TypeVar("T")

# More values than any column can have.
MAX_COUNT = 1 << 60
# Counts in one message of a search: it stays one chunk on the wire.
CAPACITY = (1 << 20) // FIELD61.element_bytes


class Counter(Protocol):
    """A way to add counts, round after round of a search."""

    @property
    def capacity(self) -> int:
        """How many counts one round takes without extra cost."""

    async def count(self, reveal: Reveal, query: CountsAt, number: int = 0) -> Integers:
        """The pooled counts that a query asks for."""


class Session(Protocol):
    """Many rounds over one roster: behind a checkpoint nothing is kept, and a restart goes on from the last one.

    Everything that decides what comes next belongs into the state, also that it is time to stop: after a restart only
    the state is there.
    """

    @property
    def state(self) -> bytes:
        """What the last checkpoint kept; empty at the beginning."""

    def rounds(self, count: int) -> Iterator[tuple[int, Pool]]:
        """The rounds that are left up to a number, counted from 1, each with its own pool."""

    async def checkpoint(self, state: bytes) -> None:
        """Let the sites agree on the rounds so far and on the state to go on from; the coordinator keeps its own."""


class Pool(ABC):
    """What a transform is fitted on."""

    # In ring order.
    sites: Sequence[str]
    # The owner of the rows, for messages; "" at a role without rows.
    me: str = ""
    # Known to everyone, and fixed before anyone could choose: what lots are drawn from.
    public_seed: bytes = b""

    def ask(self, query: Query[A]) -> Callable[[], A]:
        """A function that answers the query, to be called at a site only."""

        def none() -> NoReturn:
            raise RuntimeError(f"this role has no rows to answer {type(query).__name__}")

        return none

    async def at_sites(self, work: Callable[[], T]) -> T | Hidden:
        """What only a role with data computes, in a thread."""
        return HIDDEN

    @abstractmethod
    async def add(
        self, reveal: Reveal, ring: Ring, length: int, mine: Mine, *, method: str = "masks", number: int = 0
    ) -> Vector:
        """The sum of the sites' vectors, opened to everyone; rounds under one Reveal are numbered from 1."""

    @abstractmethod
    async def add_hidden(self, reveal: Reveal, ring: Ring, length: int, mine: Mine) -> Vector | Hidden:
        """The sum of the sites' vectors, opened to the sites."""

    @abstractmethod
    async def add_hidden_in_time(
        self, reveal: Reveal, absence: Reveal, ring: Ring, length: int, mine: Mine, patience_s: float, number: int
    ) -> Vector | Hidden | tuple[str, ...]:
        """The same, or the names of sites that were silent for too long."""

    @abstractmethod
    def lose(self, sites: Sequence[str]) -> None:
        """These sites are out of this job."""

    @abstractmethod
    async def announce(self, reveal: Reveal, length: int, mine: Callable[[], Floats], number: int = 0) -> Floats:
        """Every site's own vector, one row per site in ring order, shown to everyone."""

    @abstractmethod
    async def publish(self, reveal: Reveal, mine: Callable[[], bytes]) -> bytes:
        """Something that all sites hold alike, shown to everyone."""

    @abstractmethod
    async def any_says(self, reveal: Reveal, length: int, mine: Callable[[], Yes], number: int = 0) -> Yes:
        """For each question, whether any site says yes."""

    @abstractmethod
    def counter(self, method: str, options: CkksOptions) -> AbstractAsyncContextManager[Counter]:
        """A way to add counts: by masks, shares or ckks."""

    @abstractmethod
    def circuit(
        self, options: CkksOptions, purpose: str, rotations: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[Circuit]:
        """A computation under encryption, with its keys in place."""

    @abstractmethod
    async def identifiers(self, query: Frequencies, options: IdentifierOptions) -> Layout:
        """Common identifiers of categorical values."""

    @abstractmethod
    async def session(self) -> Session:
        """The rounds of this step, from the beginning or from the last checkpoint."""

    @abstractmethod
    async def same_model(self, reveal: Reveal, name: str) -> ModelFile:
        """A model file that all sites have alike."""

    def among(self, sites: Sequence[str]) -> Pool:
        """The same pool where only some sites have something to add; the others see the sums too."""
        return self

    async def prepare(self, local: Local) -> Ready | Hidden:
        """Let the site's ML worker get ready to train; what it says of model and rows."""
        return HIDDEN

    async def work(self, order: Callable[[], Order]) -> Arrays | Hidden:
        """What the site's ML worker answers to an order, once per round and kind; after a restart the same."""
        return HIDDEN

    def report(self, standing: Standing) -> None:  # noqa: B027 - most roles have nobody to tell
        """Tell those who watch how far a training is."""

    # What follows from these, the same at every role.

    async def sum(
        self, reveal: Reveal, query: Query[Floats], *, rows: int | None = None, method: str = "masks", number: int = 0
    ) -> list[list[Fraction]]:
        """The exact pooled sums of a query's rows (or of its first ones): one list per row, one number per column."""
        names, width = query.rows[:rows], len(query.columns)
        answer = self.ask(query)

        def what(at: int) -> str:
            return f"the {names[at // width]} of column {query.columns[at % width]!r}"

        def mine() -> Vector:
            exact = np.repeat([name == "count" for name in names], width)
            return self.encoded(answer()[: len(names)].ravel(), exact, what)

        total = await self.add(reveal, Z256, len(names) * width, mine, method=method, number=number)
        numbers = await offload(fixed_point.decode, total)
        found = [numbers[at : at + width] for at in range(0, len(numbers), width)]
        for name, row in zip(names, found, strict=True):
            if name == "count":
                check_counts(query.columns, row)
        return found

    def encoded(self, numbers: Floats, exact: NDArray[np.bool_], what: Callable[[int], str]) -> Vector:
        """Floats are spread over their last digit, counts stay exact (decision 0005); `what` names one of them."""
        try:
            return fixed_point.encode(numbers, addends=len(self.sites), spread=secrets.token_bytes, exact=exact)
        except fixed_point.FixedPointOverflowError as error:
            raise Overflow(
                f"{self.me}: {what(error.index)} is too large to be added securely (over 1e38 in all).",
                "Rescale that column at every site; none of this was sent.",
            ) from None

    async def any_value(self, reveal: Reveal, query: AnyValue) -> list[Yes]:
        """For each question about each column, whether any value of any site is such."""
        answer = self.ask(query)
        found = await self.any_says(reveal, sum(query.lengths), lambda: np.concatenate(answer()))
        return np.split(found, np.cumsum(query.lengths)[:-1])

    async def count(self, reveal: Reveal, query: CountsAt, *, method: str = "masks", number: int = 0) -> Integers:
        """The pooled counts that a query asks for."""
        answer = self.ask(query)
        return await self.add_counts(reveal, query.length, answer, method=method, number=number)

    async def add_counts(
        self, reveal: Reveal, length: int, mine: Callable[[], ArrayLike], *, method: str = "masks", number: int = 0
    ) -> Integers:
        """The sums of the sites' counts, opened to everyone."""

        def vector() -> Vector:
            return np.asarray(mine(), dtype=np.uint64)

        total = await self.add(reveal, FIELD61, length, vector, method=method, number=number)
        if (total >= MAX_COUNT).any():
            raise BadMessage(f"The sums in {reveal.scope} are no counts.", "A site sent a damaged addend.")
        return total


@dataclass(frozen=True)
class PlainCounter:
    """Counts by a method of Sums."""

    pool: Pool
    method: str
    capacity: int = CAPACITY

    async def count(self, reveal: Reveal, query: CountsAt, number: int = 0) -> Integers:
        """The pooled counts that a query asks for."""
        return await self.pool.count(reveal, query, method=self.method, number=number)


def check_counts(columns: Sequence[str], counts: Sequence[Fraction]) -> None:
    """Raise unless sums of counts are counts."""
    for column, count in zip(columns, counts, strict=True):
        if count.denominator != 1 or not 0 <= count < MAX_COUNT:
            raise BadMessage(
                f"What the sites sent adds up to no count of column {column!r}.", "A site sent a damaged addend."
            )
