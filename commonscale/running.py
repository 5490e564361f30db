"""Pools of a real run: a site's, over its source of rows, and the coordinator's, over nothing.

Everything announced in a run is bound to its transcript; `finish` lets the sites agree on it before anything is used
outside the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from commonscale.channel.channel import Channel
from commonscale.channel.transcript import Transcript
from commonscale.concurrency import offload
from commonscale.errors import ConfigError, Unplanned
from commonscale.hidden import HIDDEN, Hidden
from commonscale.options import CkksOptions
from commonscale.ordering import Floats
from commonscale.plan import Plan, plan_of
from commonscale.pool import Counter, PlainCounter, Pool
from commonscale.protocols import agreement, announcement, attendance, publication, session, sums
from commonscale.protocols.psi import group_key
from commonscale.protocols.sums import Mine, Yes
from commonscale.reveal import Reveal
from commonscale.sources.queries import Frequencies, Query
from commonscale.statistics import identifiers, texts
from commonscale.statistics.training.worker import packed, unpacked
from commonscale.v1.protocols_pb2 import MaskedVector
from crypto.rings import Ring, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commonscale.categories import TextRules
    from commonscale.protocols.ckks.levels import Circuit
    from commonscale.statistics.identifiers import IdentifierOptions
    from commonscale.statistics.layout import Layout, Remembered
    from commonscale.statistics.texts import ModelFile
    from commonscale.statistics.training.standing import Standing
    from commonscale.statistics.training.worker import Arrays, Local, Order, Ready, Worker
    from commonscale.transforms.base import Transform

A = TypeVar("A")
T = TypeVar("T")


class Answers(Protocol):
    """What answers a step's queries: a source, or a view of it after earlier steps."""

    def answer(self, query: Query[A]) -> A:
        """A query's answer."""


class Keepsakes(Protocol):
    """What a site has beside its rows: what earlier jobs left, and model files."""

    def remembered(self, job_id: str, columns: Sequence[str], rules: TextRules) -> Remembered | None:
        """This site's identifiers of these columns in an earlier job; None if it was not in it."""

    def model(self, name: str) -> ModelFile:
        """A model file by its name."""


class RunningPool(Pool):
    """What both roles share."""

    # At a site only.
    keepsakes: Keepsakes

    def __init__(self, ch: Channel) -> None:
        self.ch = ch
        self.sites = ch.sites
        self.public_seed = ch.roster_digest + ch.run.encode()
        self.plan: Plan | None = None
        self.transcript = Transcript()
        self._group_key: bytes | None = None
        self._has_session = False
        # Of a round: the pool of the step that the session belongs to.
        self._step: RunningPool | None = None

    async def session(self) -> RunningSession:
        """The rounds of this step, from the beginning or from the last checkpoint."""
        if self._has_session or self._step is not None:
            raise RuntimeError(f"{self.ch.run} has a session already: rounds are numbered once per step")
        self._has_session = True
        return RunningSession(self, await session.resume(self.ch, self.transcript.digest))

    def round(self, number: int) -> RunningPool:
        """The same pool in one round of a session; everything announced stands in one transcript."""
        found = copy(self)
        found.ch, found._step = self.ch.round(number), self
        return found

    def among(self, sites: Sequence[str]) -> RunningPool:
        """The same pool where only some sites have something to add."""
        found = copy(self)
        found.sites = list(sites)
        found.ch = replace(self.ch, sites=tuple(sites))
        return found

    async def add(
        self, reveal: Reveal, ring: Ring, length: int, mine: Mine, *, method: str = "masks", number: int = 0
    ) -> Vector:
        """The sum of the sites' vectors, opened to everyone."""
        return await sums.add(self.ch.under(reveal, number), ring, length, mine, self.transcript, method)

    async def add_hidden(self, reveal: Reveal, ring: Ring, length: int, mine: Mine) -> Vector | Hidden:
        """The sum of the sites' vectors, opened to the sites."""
        key = await self.group_key()
        total = await sums.add_hidden(self.ch.under(reveal), ring, length, mine, self.transcript, key)
        assert not isinstance(total, tuple)
        return HIDDEN if total is None else total

    async def add_hidden_in_time(
        self, reveal: Reveal, absence: Reveal, ring: Ring, length: int, mine: Mine, patience_s: float, number: int
    ) -> Vector | Hidden | tuple[str, ...]:
        """The same, or the names of sites that were silent for too long; they are out of this job."""
        key, ch = await self.group_key(), self.ch.under(reveal, number)
        told = self.ch.under(absence, number)
        absent = partial(attendance.missing, told, ch, MaskedVector, patience_s, self.transcript)
        total = await sums.add_hidden(ch, ring, length, mine, self.transcript, key, absent)
        return HIDDEN if total is None else total

    def lose(self, sites: Sequence[str]) -> None:
        """These sites are out of this job."""
        for site in sites:
            self.ch.losses.note(site, "")

    @property
    def left(self) -> Channel:
        """The channel without the sites that were lost."""
        return replace(self.ch, sites=tuple(site for site in self.ch.sites if site not in self.ch.losses.stand_ins))

    async def group_key(self) -> bytes:
        """A secret of the sites, one per run or session; nothing at the coordinator."""
        if self._step is not None:
            return await self._step.group_key()
        if self._group_key is None:
            self._group_key = await group_key.share(self.ch)
        return self._group_key

    async def announce(self, reveal: Reveal, length: int, mine: Callable[[], Floats], number: int = 0) -> Floats:
        """Every site's own vector, shown to everyone."""
        return await announcement.announce(self.ch.under(reveal, number), length, mine, self.transcript)

    async def publish(self, reveal: Reveal, mine: Callable[[], bytes]) -> bytes:
        """Something that all sites hold alike, shown to everyone."""
        return await publication.publish(self.ch.under(reveal), mine, self.transcript)

    async def any_says(self, reveal: Reveal, length: int, mine: Callable[[], Yes], number: int = 0) -> Yes:
        """For each question, whether any site says yes."""
        return await sums.any_says(self.ch.under(reveal, number), length, mine, self.transcript)

    def counter(self, method: str, options: CkksOptions) -> AbstractAsyncContextManager[Counter]:
        """A way to add counts: by masks, shares or ckks."""
        if method != "ckks":
            return nullcontext(PlainCounter(self, method))
        with _openfhe_is_there():
            from commonscale.protocols.ckks import counts

        return counts.counter(self, options)

    def circuit(
        self, options: CkksOptions, purpose: str, rotations: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[Circuit]:
        """A computation under encryption, with its keys in place."""
        with _openfhe_is_there():
            from commonscale.protocols.ckks.circuit import with_keys

        return with_keys(self.ch, self.transcript, options, purpose, tuple(rotations))

    async def identifiers(self, query: Frequencies, options: IdentifierOptions) -> Layout:
        """Common identifiers of categorical values."""
        return await identifiers.identify(self, query, options)

    async def same_model(self, reveal: Reveal, name: str) -> ModelFile:
        """A model file that all sites have alike."""
        return await texts.same_model(self, reveal, name)

    async def finish(self) -> None:
        """Let the sites that are left agree on everything announced."""
        if self.transcript.open:
            await agreement.agree(self.left.scope("finish"), self.transcript.digest)


class RunningSession:
    """A session of a real run."""

    def __init__(self, pool: RunningPool, progress: session.Progress) -> None:
        self._pool = pool
        self._progress = progress
        self._number = progress.number
        if progress.number:
            pool.transcript.resume(progress.transcript)

    @property
    def state(self) -> bytes:
        """What the last checkpoint kept."""
        return self._progress.state

    def rounds(self, count: int) -> Iterator[tuple[int, Pool]]:
        """The rounds that are left."""
        while self._number < count:
            self._number += 1
            yield self._number, self._pool.round(self._number)

    async def checkpoint(self, state: bytes) -> None:
        """Agree, keep, and forget what lies behind."""
        key, transcript = await self._pool.group_key(), self._pool.transcript
        self._progress = await session.checkpoint(
            self._pool.left, self._progress, self._number, transcript.digest, state, key
        )
        transcript.settle()


class SitePool(RunningPool):
    """A site's: it has rows."""

    def __init__(self, ch: Channel, source: Answers, keepsakes: Keepsakes, worker: Worker | None = None) -> None:
        super().__init__(ch)
        self.me = ch.me
        self.keepsakes = keepsakes
        self._source = source
        self._worker = worker

    def ask(self, query: Query[A]) -> Callable[[], A]:
        """A function that answers the query, if the step's plan, which was approved, names it."""
        if self.plan is not None and not self.plan.allows(query):
            raise Unplanned(
                f"{self.ch.run} would ask what its plan does not name: {query.title}.",
                "This is a fault of the software.",
            )
        return lambda: self._source.answer(query)

    async def at_sites(self, work: Callable[[], T]) -> T | Hidden:
        """Here."""
        return await offload(work)

    async def prepare(self, local: Local) -> Ready:
        """By the worker of this site."""
        assert self._worker is not None
        return await self._worker.prepare(local)

    async def work(self, order: Callable[[], Order]) -> Arrays | Hidden:
        """By the worker of this site, if it is among those that have something to add.

        The answer is kept: several sums may come from it, and training again would give other numbers.
        """
        if not self.ch.is_site:
            return HIDDEN
        assert self._worker is not None
        wanted = order()
        answer = await self.ch.keep_awaited(f"{wanted.kind}.Answer", partial(_answer, self._worker, wanted))
        return await offload(unpacked, answer)


async def _answer(worker: Worker, order: Order) -> bytes:
    return packed(await worker.work(order))


class CoordinatorPool(RunningPool):
    """The coordinator's: it has none, and follows the same arithmetic on what is opened.

    A watcher, if there is one, hears how far a training is.
    """

    def __init__(self, ch: Channel, watcher: Callable[[Standing], None] | None = None) -> None:
        super().__init__(ch)
        self._watcher = watcher

    def report(self, standing: Standing) -> None:
        """To whoever watches the job."""
        if self._watcher is not None:
            self._watcher(standing)


@contextmanager
def _openfhe_is_there() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"This daemon cannot compute under encryption: {error}.",
            "OpenFHE needs Python 3.10 on Linux (x86-64) and the library libgomp (Debian package libgomp1).",
        ) from None


async def run_step(pool: RunningPool, step: Transform) -> Any:
    """All roles: fit a step, and let the sites agree on everything announced in it."""
    pool.plan = plan_of(step, len(pool.sites))
    fitted = await step.fit(pool)
    await pool.finish()
    return fitted
