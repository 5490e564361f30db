"""The worker's loop: it attaches to the participant of its site, and trains what that asks for.

The socket stays in the main thread, which answers at any time; models run in one other thread.
"""

from __future__ import annotations

import platform
import queue
import secrets
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from commonscale_worker import registry, wire
from commonscale_worker.errors import Cancelled, DataError, Rejected, WorkerError, code_of, text_of
from commonscale_worker.jobs import Job
from commonscale_worker.v1 import worker_pb2 as pb
from commonscale_worker.vectors import Array, Tensors
from commonscale_worker.version import __version__

HEARTBEAT_MS = 500
HEARTBEAT_TIMEOUT_MS = 3000
LINGER_MS = 2000
QUEUED_MESSAGES = 4
PROGRESS_EVERY_S = 0.5
# Jobs whose data and model stay in memory.
KEPT_JOBS = 4
# A path of a Unix socket is no longer than that.
SOCKET_PATH_BYTES = 107
# How long user code may go on after Stop before the process ends around it.
STOPPING_S = 5.0


class Outcome(NamedTuple):
    """What a Prepare or a Task ended with: a message to send, again if it is asked for again."""

    id: str
    body: Any
    arrays: Tensors


@dataclass
class Work:
    """A Prepare or a Task on its way through the model's thread."""

    id: str
    message: wire.Message
    # When its progress was last told.
    told_at: float = float("-inf")
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Keys:
    """CURVE keys of a connection over TCP: the worker's own pair, and the participant's public one."""

    secret: bytes = field(repr=False)
    public: bytes
    server: bytes

    @classmethod
    def read(cls, own: str | Path, server: str | Path) -> Keys:
        """From files as zmq.auth writes them, or with nothing but the 40 characters of a key."""
        public, secret = _key_file(Path(own))
        if secret is None:
            # A file with one key alone: the worker's secret one.
            public, secret = zmq.curve_public(public), public
        return cls(secret, public, _key_file(Path(server))[0])


class Trainer(threading.Thread):
    """Runs models, one message at a time, and puts what comes of it where the main thread waits."""

    def __init__(self, context: zmq.Context[Any], wake_address: str) -> None:
        super().__init__(name="model", daemon=True)
        self.waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[Work, float | Outcome]] = queue.SimpleQueue()
        self.jobs: dict[str, Job] = {}
        self._context = context
        self._wake_address = wake_address

    def run(self) -> None:
        """Until a None arrives."""
        with self._context.socket(zmq.PUSH) as self._wake:
            self._wake.linger = 0
            self._wake.connect(self._wake_address)
            while (work := self.waiting.get()) is not None:
                self._tell(work, self._outcome(work))

    def _tell(self, work: Work, what: float | Outcome) -> None:
        self.done.put((work, what))
        # If there is no room, it has been woken already.
        with suppress(zmq.Again):
            self._wake.send(b"", zmq.NOBLOCK)

    def _outcome(self, work: Work) -> Outcome:
        try:
            if work.cancelled.is_set():
                raise Cancelled
            body, arrays = self._prepare(work) if work.message.kind == "prepare" else self._task(work)
            return Outcome(work.id, body, arrays)
        except Cancelled:
            return Outcome(work.id, pb.Cancelled(id=work.id), {})
        except BaseException as error:  # noqa: BLE001 - whatever a model raises is told, and the worker goes on
            if not isinstance(error, WorkerError):
                traceback.print_exc()
            return Outcome(work.id, pb.Failed(id=work.id, code=code_of(error), text=text_of(error)), {})

    def _prepare(self, work: Work) -> tuple[Any, Tensors]:
        wanted = work.message.body
        self.jobs.pop(work.id, None)
        while len(self.jobs) >= KEPT_JOBS:
            del self.jobs[next(iter(self.jobs))]
        job = self.jobs[work.id] = Job(registry.offered(wanted.model), wanted)
        return job.prepared, job.first

    def _task(self, work: Work) -> tuple[Any, Tensors]:
        task = work.message.body
        job = self.jobs.get(task.job)
        if job is None:
            raise DataError("a task came before its job was prepared")
        # The job that is used stays; the one that waited longest goes first.
        self.jobs[task.job] = self.jobs.pop(task.job)
        result = pb.Result(id=work.id)
        if task.kind == pb.Task.KIND_TRAIN:
            return result, job.train(task, work.message.arrays, lambda share: self._progress(work, share))
        if task.kind == pb.Task.KIND_EVALUATE:
            return result, job.evaluate(work.message.arrays)
        raise WorkerError("a task came whose kind this worker does not know")

    def _progress(self, work: Work, share: float) -> None:
        if work.cancelled.is_set():
            raise Cancelled
        now = time.monotonic()
        if now - work.told_at >= PROGRESS_EVERY_S:
            work.told_at = now
            self._tell(work, min(max(float(share), 0.0), 1.0))


class Attachment:
    """A worker at its participant, over all reconnections."""

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        self._context = zmq.Context()
        wake_address = f"inproc://wake-{id(self)}"
        self._wake = self._context.socket(zmq.PULL)
        self._wake.bind(wake_address)
        self._trainer = Trainer(self._context, wake_address)
        self._socket = self._context.socket(zmq.DEALER)
        self._set_options(keys)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self._address = address
        self._welcomed = False
        # Messages that the socket does not take yet.
        self._outbox: deque[list[Any]] = deque()
        self._works: dict[str, Work] = {}
        self._last: dict[str, Outcome] = {}

    def run(self) -> None:
        """Until the participant says Stop; Rejected if it does not take this worker."""
        self._trainer.start()
        self._socket.connect(self._address)
        try:
            while self._turn():
                pass
        finally:
            self._close()

    def _set_options(self, keys: Keys | None) -> None:
        # The same on every connection of this process: the participant sees who came back.
        self._socket.setsockopt(zmq.ROUTING_ID, f"worker-{secrets.token_hex(8)}".encode())
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        # Nothing is kept for a connection to come: the first message of every connection is a Hello.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if keys:
            self._socket.curve_secretkey, self._socket.curve_publickey = keys.secret, keys.public
            self._socket.curve_serverkey = keys.server

    def _turn(self) -> bool:
        """Wait for something, and answer it; False after Stop."""
        poller = zmq.Poller()
        poller.register(self._monitor, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if self._outbox else 0))
        # The time limit is for signals only.
        ready = dict(poller.poll(1000))
        if self._monitor in ready:
            self._connection_changed(recv_monitor_message(self._monitor)["event"])
        if self._wake in ready:
            self._wake.recv()
        self._tell_done()
        if ready.get(self._socket, 0) & zmq.POLLIN:
            return self._receive()
        self._flush()
        return True

    def _connection_changed(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            models = [pb.ModelOffer(name=offer.name, digest=offer.digest) for offer in registry.offers()]
            software = f"commonscale-worker {__version__}, Python {platform.python_version()}"
            self._outbox.clear()
            self._send(pb.Hello(versions=[wire.VERSION], models=models, software=software))
        elif event == zmq.EVENT_DISCONNECTED:
            if self._welcomed:
                say("the connection to the participant is lost; waiting for it")
            self._welcomed = False
            self._outbox.clear()
        else:
            say("the participant does not take this worker's key; trying again")

    def _receive(self) -> bool:
        try:
            message = wire.parse([frame.buffer for frame in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)])
        except zmq.Again:
            return True
        except wire.BadFramesError as error:
            say(f"a message is left out: {error}")
            return True
        if message.kind == "stop":
            return False
        if message.kind == "reject":
            raise Rejected(f"the participant does not take this worker: {message.body.reason}")
        if message.kind == "welcome":
            self._welcome(message.body)
        elif message.kind == "cancel":
            self._cancel(message.body.id)
        elif message.kind in {"prepare", "task"}:
            self._asked(message)
        return True

    def _welcome(self, body: Any) -> None:
        if body.version != wire.VERSION:
            raise Rejected(f"the participant speaks version {body.version} of the protocol, not {wire.VERSION}")
        # A participant says Welcome again to see whether somebody is there.
        if not self._welcomed:
            say(f"attached to {body.site or 'the participant'}")
        self._welcomed = True

    def _cancel(self, identity: str) -> None:
        if identity in self._works:
            self._works[identity].cancelled.set()

    def _asked(self, message: wire.Message) -> None:
        """Begin a Prepare or a Task; one that is under way goes on, one that ended is answered again."""
        identity = message.body.id
        if message.kind == "task":
            self._send(pb.Accepted(id=identity))
        if identity in self._works:
            return
        known = self._trainer.jobs.get(identity)
        if message.kind == "prepare" and known is not None and known.asked == message.body:
            # Asked again after a lost connection: what it trains goes on, and the model forgets nothing.
            self._send(known.prepared, known.first)
            return
        if message.kind == "task" and identity in self._last:
            self._send(self._last[identity].body, self._last[identity].arrays)
            return
        for other in self._works.values():
            # One at a time: the participant no longer waits for what it asked before.
            other.cancelled.set()
        work = self._works[identity] = Work(identity, message)
        self._trainer.waiting.put(work)

    def _tell_done(self) -> None:
        while not self._trainer.done.empty():
            work, what = self._trainer.done.get()
            if isinstance(what, float):
                # Progress is for people: it never waits, and never makes a result wait.
                if self._welcomed and not self._outbox:
                    self._send(pb.Progress(id=work.id, share=what))
                continue
            self._works.pop(work.id, None)
            self._last = {} if isinstance(what.body, pb.Cancelled) else {work.id: what}
            if isinstance(what.body, pb.Failed):
                say(f"{work.id}: failed ({what.body.code}): {what.body.text}")
            if self._welcomed:
                self._send(what.body, what.arrays)

    def _send(self, body: Any, arrays: Mapping[str, Array] | None = None) -> None:
        self._outbox.append(wire.frames(body, arrays))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            try:
                parts = self._outbox[0]
                large = any(len(part) > wire.ZERO_COPY_BYTES for part in parts)
                self._socket.send_multipart(parts, zmq.NOBLOCK, copy=not large)
            except zmq.Again:
                return
            self._outbox.popleft()

    def _close(self) -> None:
        for work in self._works.values():
            work.cancelled.set()
        self._trainer.waiting.put(None)
        self._trainer.join(STOPPING_S)
        self._socket.disable_monitor()
        self._socket.close()
        self._monitor.close()
        self._wake.close()
        if not self._trainer.is_alive():
            self._context.term()


def endpoint(socket: str, keys: Keys | None) -> str:
    """The address of a participant: a path, ipc:// or tcp://, the last one with keys only."""
    if socket.startswith("tcp://"):
        if keys is None:
            raise WorkerError("over tcp:// a worker attaches with CURVE keys only: give both key files")
        return socket
    if socket.startswith("inproc://") or ("://" in socket and not socket.startswith("ipc://")):
        raise WorkerError(f"{socket!r} is neither a path nor an address that begins with ipc:// or tcp://")
    path = socket[len("ipc://") :] if socket.startswith("ipc://") else str(Path(socket).absolute())
    if len(path.encode()) > SOCKET_PATH_BYTES:
        raise WorkerError(f"the socket's path is longer than {SOCKET_PATH_BYTES} bytes")
    return f"ipc://{path}"


def attach(socket: str, keys: Keys | None = None) -> None:
    """Offer the registered models to the participant at this address, and train until it says Stop."""
    if not registry.offers():
        raise WorkerError('no model is offered: mark a class with @cw.model("name")')
    Attachment(endpoint(socket, keys), keys).run()


def say(sentence: str) -> None:
    """A line for the person who started the worker."""
    sys.stderr.write(f"commonscale-worker: {sentence}\n")
    sys.stderr.flush()


def _key_file(path: Path) -> tuple[bytes, bytes | None]:
    """Public and secret key of a file; of a file with one bare key, that one and None."""
    try:
        text = path.read_text().strip()
        if len(text.split()) == 1 and len(text) == 40:
            return text.encode(), None
        from zmq.auth import load_certificate

        return load_certificate(path)
    except (OSError, ValueError) as error:
        raise WorkerError(f"the key file {path} cannot be read: {error}") from error
