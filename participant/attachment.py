"""Where a site's ML worker attaches: a ZeroMQ socket on this machine, in a process of its own (worker_gate).

One worker at a time, one task at a time. A worker is alive as long as its connection is: libzmq's own heartbeats notice
the end of a process in milliseconds and a frozen one in seconds, also while Python code holds the interpreter; there is
no other time limit but the job's. A worker that comes back gets what was under way again. Whatever it sends is checked;
what makes no sense is answered with a Reject, and the daemon goes on serving.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import anyio.lowlevel
import structlog
import zmq
import zmq.asyncio
from commonscale_worker import wire
from commonscale_worker.v1 import worker_pb2 as pb
from pydantic import Field
from zmq.auth.asyncio import AsyncioAuthenticator

from commonscale.concurrency import first_of
from commonscale.config import WorkerConfig
from commonscale.errors import ConfigError, WorkerFailed
from commonscale.names import NAME_PATTERN
from commonscale.results import plain_text

log = structlog.get_logger()

HEARTBEAT_MS = 500
SILENCE_MS = 3_000
HIGH_WATER = 4
# Of peers' messages libzmq keeps so many: an honest worker's are never held up, which is when it aborts (worker_gate).
# What they may take together is the process's memory limit.
RECEIVED_HIGH_WATER = 1000
# A model of 250 million parameters in double precision.
MAX_MESSAGE_BYTES = 2 << 30
# So often a worker may die over one task.
MAX_DEATHS = 3
# Of refused messages, so many are logged one by one.
LOGGED_REFUSALS = 10
# Between two attempts to hand a worker what it has no room for.
FULL_PAUSE_S = 0.05
# After a connection's end: libzmq tells of it a moment before it lets go of the connection.
LOOKS_S = (0.0, 0.05, 0.5)
MAX_IPC_PATH = 107
NOT_ATTACHED: Final = "not attached"
CODES = frozenset({"memory", "data", "model", "diverged", "other"})
_DIGITS = frozenset("0123456789abcdef")


@dataclass
class Attached:
    """The worker that is attached now."""

    identity: bytes
    software: str
    # Digests by name.
    models: Mapping[str, str]
    # The id of what it is prepared for.
    prepared: str = ""
    gone: anyio.Event = field(default_factory=anyio.Event)


@dataclass
class Exchange:
    """A request that waits for its answer."""

    id: str
    accepts: frozenset[str]
    answer: wire.Message | None = None
    fault: str = ""
    done: anyio.Event = field(default_factory=anyio.Event)

    def settle(self, answer: wire.Message | None, fault: str = "") -> None:
        """The first answer counts."""
        if not self.done.is_set():
            self.answer, self.fault = answer, fault
            self.done.set()


@dataclass(frozen=True)
class WorkerView:
    """What the site's own page shows of its worker."""

    state: Literal["not attached", "waiting", "working"]
    software: str
    models: Mapping[str, str]
    # What it works on, and which share of that is done.
    task: str
    share: Annotated[float, Field(ge=0, le=1)]
    # The newest, which may show a cell, and when that was; 0: none since this daemon began.
    last_error: str
    last_error_ms: int

    @property
    def offered(self) -> Mapping[str, str] | None:
        """Digests of what the attached worker offers, by name; none without a worker."""
        return self.models if self.state != NOT_ATTACHED else None


class Attachment:
    """The socket, and the worker behind it."""

    def __init__(
        self, site: str, config: WorkerConfig, state: Path, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._site = site
        # Called when the view of the worker is another one.
        self._on_change = on_change
        self._config = config
        self.address = config.listen or f"ipc://{state.absolute() / 'worker.sock'}"
        self._attached: Attached | None = None
        self._attached_changed = anyio.Event()
        self._exchange: Exchange | None = None
        self._turn = anyio.Lock()
        self._refusals = 0
        self._connection_ended = anyio.Event()
        self._authenticator: AsyncioAuthenticator | None = None
        self._bound = False
        self._task, self._share = "", 0.0
        self._last_error, self._last_error_ms = "", 0

    @property
    def models(self) -> Mapping[str, str] | None:
        """Digests of what the attached worker offers, by name; none without a worker."""
        return self.view().offered

    def view(self) -> WorkerView:
        """For the site's own eyes."""
        worker = self._attached
        told = self._task, self._share, self._last_error, self._last_error_ms
        if worker is None:
            return WorkerView(NOT_ATTACHED, "", {}, *told)
        return WorkerView("waiting" if self._exchange is None else "working", worker.software, worker.models, *told)

    def _note_error(self, text: str) -> None:
        """For the site's own eyes."""
        self._last_error, self._last_error_ms = text, time.time_ns() // 1_000_000
        self._on_change()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen for a worker as long as this lasts."""
        context = zmq.asyncio.Context()
        context.max_sockets = 64
        self._socket = context.socket(zmq.ROUTER)
        for option, value in {
            zmq.ROUTER_MANDATORY: 1, zmq.ROUTER_HANDOVER: 1, zmq.LINGER: 500, zmq.SNDHWM: HIGH_WATER,
            zmq.RCVHWM: RECEIVED_HIGH_WATER, zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES, zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: SILENCE_MS, zmq.HEARTBEAT_TTL: SILENCE_MS, zmq.HANDSHAKE_IVL: SILENCE_MS,
        }.items():  # fmt: skip
            self._socket.setsockopt(option, value)
        monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self._bind(context)
            log.info("a worker may attach", address=self.address)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._receive)
                tasks.start_soon(self._watch, monitor)
                tasks.start_soon(self._look)
                yield
                with anyio.CancelScope(shield=True):
                    await self._farewell()
                tasks.cancel_scope.cancel()
        finally:
            if self._authenticator is not None:
                self._authenticator.stop()
            self._socket.disable_monitor()
            self._socket.close()
            context.destroy(linger=500)
            if self._bound:
                self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return Path(self.address.removeprefix("ipc://"))

    def _bind(self, context: zmq.asyncio.Context) -> None:
        """Only this site's user reaches the file; over TCP only the keys that the configuration lists."""
        if self.address.startswith("tcp://"):
            self._guard(context)
        else:
            self._make_room()
        with _only_for_us():
            try:
                self._socket.bind(self.address)
            except zmq.ZMQError as error:
                raise ConfigError(f"No worker can attach at {self.address}: {error.strerror or error}.") from None
        if self.address.startswith("tcp://"):
            # With the port that was chosen, if the configuration says 0.
            self.address = self._socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
            return
        self._bound = True
        if stat.S_IMODE(self._path.stat().st_mode) & 0o077:
            raise ConfigError(f"{self._path} can be opened by other users of this machine.")

    def _guard(self, context: zmq.asyncio.Context) -> None:
        """CURVE, for listed keys only."""
        keys = _curve_key(self._config)
        self._authenticator = AsyncioAuthenticator(context)
        self._authenticator.start()
        allowed = {key.encode() for key in self._config.allowed_keys}
        self._authenticator.configure_curve_callback(credentials_provider=_Allowed(allowed))
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = keys

    def _make_room(self) -> None:
        """What an earlier process has left of its socket goes; anything else in that place stays."""
        shorter = 'Name a shorter one: listen = "ipc:///run/commonscale/worker.sock" under [worker].'
        if len(os.fsencode(self._path)) > MAX_IPC_PATH:
            raise ConfigError(f"{self._path} is too long for a socket: at most {MAX_IPC_PATH} bytes.", shorter)
        try:
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise ConfigError(
                    f"{self._path} is there already, and is no socket.", "Name another one under [worker]."
                )
            self._path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(f"No worker can attach at {self.address}: {error.strerror}.") from None

    async def ask(self, prepare: tuple[pb.Prepare, str], task: pb.Task | None, arrays: wire.Arrays) -> wire.Message:
        """What the worker answers to a Prepare, or to a Task after that Prepare; waits until a worker is there.

        The Prepare comes with the digest that its model must have.
        """
        async with self._turn:
            what = task or prepare[0]
            self._task, self._share = _title(prepare[0], task), 0.0
            self._on_change()
            try:
                for _ in range(MAX_DEATHS):
                    worker = await self._worker()
                    self._check_offer(worker, *prepare)
                    answer = None
                    if task is None or worker.prepared != prepare[0].id:
                        answer = await self._exchanged(worker, prepare[0], {}, "prepared")
                        worker.prepared = prepare[0].id if answer is not None else ""
                    if task is not None and worker.prepared:
                        answer = await self._exchanged(worker, task, arrays, "result")
                    if answer is not None:
                        return answer
            finally:
                self._task = ""
                self._on_change()
        self._note_error(f"It ended {MAX_DEATHS} times while it worked on {what.id}.")
        raise WorkerFailed(
            f"{self._site}: its worker ended {MAX_DEATHS} times while it worked on {what.id}.",
            "The worker's own log says more.",
        )

    async def _worker(self) -> Attached:
        while self._attached is None:
            log.warning("waiting for a worker to attach", address=self.address)
            await self._attached_changed.wait()
        return self._attached

    def _check_offer(self, worker: Attached, prepare: pb.Prepare, digest: str) -> None:
        if worker.models.get(prepare.model) != digest:
            raise WorkerFailed(
                f"{self._site}: the worker that attached does not offer model {prepare.model!r} as the policy pins it."
            )

    async def _exchanged(self, worker: Attached, body: Any, arrays: wire.Arrays, wanted: str) -> wire.Message | None:
        """The answer to a request; None if the worker is gone."""
        exchange = self._exchange = Exchange(body.id, frozenset({wanted, "failed", "cancelled"}))
        self._on_change()
        try:
            if not await self._send(worker, body, arrays):
                return None
            await first_of(exchange.done.wait, worker.gone.wait)
        finally:
            self._exchange = None
            self._on_change()
            if not exchange.done.is_set() and not worker.gone.is_set():
                with anyio.CancelScope(shield=True):
                    # Without waiting for a worker that does not listen: what it is asked next ends this too.
                    await self._hand(worker, wire.frames(pb.Cancel(id=body.id)))
        if exchange.fault:
            self._note_error(f"It sent what makes no sense: {exchange.fault}.")
            raise WorkerFailed(f"{self._site}: its worker sent what makes no sense: {exchange.fault}.")
        answer = exchange.answer
        if answer is None or answer.kind == wanted:
            return answer
        text = plain_text(getattr(answer.body, "text", answer.kind))
        self._note_error(text)
        code = getattr(answer.body, "code", "other")
        code = code if code in CODES else "other"
        # The text may show a cell: it stays in this site's log, and on its own page.
        log.error("worker failed", task=body.id, code=code, text=text)
        raise WorkerFailed(
            f"{self._site}: its worker could not go on ({code}).",
            "That site's log and its page say more.",
        )

    async def _send(self, worker: Attached, body: Any, arrays: wire.Arrays) -> bool:
        """Whether it could be handed on; waits for a worker that is there and does not listen."""
        parts = wire.frames(body, arrays)
        while not worker.gone.is_set():
            if await self._hand(worker, parts, copy=not arrays):
                return True
            await anyio.sleep(FULL_PAUSE_S)
        return False

    async def _hand(self, worker: Attached, parts: list[Any], copy: bool = True) -> bool:
        """Whether there was room for it; never waits, since one queue serves all peers."""
        try:
            await self._socket.send_multipart([worker.identity, *parts], flags=zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._lose(worker)
            return False
        return True

    async def _welcome(self, worker: Attached) -> bool:
        """Whether it was told; said again, it shows whether somebody is there."""
        return await self._hand(worker, wire.frames(pb.Welcome(version=wire.VERSION, site=self._site)))

    def _lose(self, worker: Attached) -> None:
        if not worker.gone.is_set():
            worker.gone.set()
            log.warning("worker is gone", software=worker.software)
        if self._attached is worker:
            self._attached = None
            self._on_change()

    async def _watch(self, monitor: Any) -> None:
        while True:
            await monitor.recv_multipart()
            self._connection_ended.set()
            await anyio.lowlevel.checkpoint()

    async def _look(self) -> None:
        """Some connection has ended: if it was the worker's, nothing can be sent to it any more."""
        while True:
            await self._connection_ended.wait()
            self._connection_ended = anyio.Event()
            for pause_s in LOOKS_S:
                await anyio.sleep(pause_s)
                if self._attached is not None:
                    await self._welcome(self._attached)

    async def _receive(self) -> None:
        while True:
            identity, *received = await self._socket.recv_multipart(copy=False)
            await self._handle(identity.bytes, [frame.buffer for frame in received])
            # A message that is there already is received without a pause: others would never have their turn.
            await anyio.lowlevel.checkpoint()

    async def _handle(self, sender: bytes, received: list[Any]) -> None:
        try:
            message = wire.parse(received)
        except wire.BadFramesError as error:
            return await self._refuse(sender, str(error))
        except (ValueError, OverflowError):
            return await self._refuse(sender, "an array has a shape that cannot be")
        if message.kind == "hello":
            return await self._greet(sender, message)
        if self._attached is None or sender != self._attached.identity:
            return await self._refuse(sender, "it did not begin with a Hello that was welcomed")
        if message.version != wire.VERSION:
            return await self._refuse(sender, f"it is not of version {wire.VERSION} of the worker's protocol")
        return await self._take(sender, message)

    async def _greet(self, sender: bytes, message: wire.Message) -> None:
        hello = message.body
        present = self._attached
        if present is not None and present.identity != sender:
            # Perhaps it is gone, and nobody has noticed yet.
            await self._welcome(present)
            if self._attached is not None:
                return await self._refuse(sender, "another worker is attached; a site has one at a time")
        if wire.VERSION not in hello.versions:
            return await self._refuse(sender, f"it does not speak version {wire.VERSION} of the worker's protocol")
        models = {offer.name: offer.digest for offer in hello.models}
        if (
            not models
            or len(models) != len(hello.models)
            or len(models) > 100
            or not all(map(_is_offer, models.items()))
        ):
            return await self._refuse(sender, "it must offer 1 to 100 models, each with a name and a digest")
        worker = Attached(sender, plain_text(hello.software)[:200], models)
        if present is not None:
            # The same process on a new connection: what is under way is asked for again.
            self._lose(present)
        if await self._welcome(worker):
            log.info("worker attached", software=worker.software, models=sorted(models))
            self._attached = worker
            self._on_change()
            self._attached_changed.set()
            self._attached_changed = anyio.Event()
        return None

    async def _take(self, sender: bytes, message: wire.Message) -> None:
        exchange = self._exchange
        task = getattr(message.body, "id", None)
        if message.kind not in ("prepared", "accepted", "progress", "result", "failed", "cancelled"):
            return await self._refuse(sender, f"a worker sends no {message.kind}")
        if exchange is None or task != exchange.id:
            # Of a task that was cancelled, or a second answer.
            return None
        if message.kind == "progress":
            # In this order also if it is no number.
            self._share = min(max(0.0, message.body.share), 1.0)
            self._on_change()
        elif message.kind in exchange.accepts:
            exchange.settle(message)
        elif message.kind != "accepted":
            await self._refuse(sender, f"{message.kind} is no answer to what it was asked")
        return None

    async def _refuse(self, sender: bytes, why: str) -> None:
        """Say why, without waiting for a peer that does not listen."""
        self._refusals += 1
        if self._refusals <= LOGGED_REFUSALS or self._refusals % 1000 == 0:
            log.warning("worker message refused", why=why, refusals=self._refusals)
        worker, exchange = self._attached, self._exchange
        if worker is not None and sender == worker.identity and exchange is not None:
            exchange.settle(None, why)
        with contextlib.suppress(zmq.ZMQError):
            await self._socket.send_multipart([sender, *wire.frames(pb.Reject(reason=why))], flags=zmq.NOBLOCK)

    async def _farewell(self) -> None:
        if self._attached is not None:
            with anyio.move_on_after(1.0):
                await self._send(self._attached, pb.Stop(), {})


def _title(prepare: pb.Prepare, task: pb.Task | None) -> str:
    if task is None:
        return f"{prepare.model}: gets ready"
    doing = "evaluates" if task.kind == pb.Task.KIND_EVALUATE else "trains"
    return f"{prepare.model}: {doing}, round {task.round} of {task.rounds}"


def _is_offer(offer: tuple[str, str]) -> bool:
    name, digest = offer
    return bool(NAME_PATTERN.fullmatch(name)) and len(digest) == 64 and _DIGITS.issuperset(digest)


@contextlib.contextmanager
def _only_for_us() -> Iterator[None]:
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


@dataclass(frozen=True)
class _Allowed:
    """For pyzmq: whether a worker's key is listed."""

    keys: set[bytes]

    def callback(self, _domain: str, key: bytes) -> bool:
        """Keys come as text of 40 characters."""
        return key in self.keys


def _curve_key(config: WorkerConfig) -> tuple[bytes, bytes]:
    import zmq.auth

    assert config.key is not None
    try:
        public, secret = zmq.auth.load_certificate(config.key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config.key} is no key of a worker's socket: {error}.") from None
    if secret is None:
        raise ConfigError(f"{config.key} holds no secret key.")
    return public, secret
