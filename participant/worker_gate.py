"""A site's ML worker, as the participant sees it: behind a process that holds the socket (gate_process).

libzmq ends its process by an assertion when a peer that has sent too much hangs up at the wrong moment, and keeps
frames without end. So it runs apart from the site's keys and journal, with a limit on its memory; if it ends, it is
started again, the worker attaches anew, and what was under way is asked for again.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import structlog
from commonscale_worker import wire
from commonscale_worker.v1 import worker_pb2 as pb
from pydantic import TypeAdapter

from commonscale.concurrency import first_of, offload
from commonscale.config import WorkerConfig
from commonscale.database import now_ms
from commonscale.errors import ConfigError, WorkerFailed
from commonscale.link import Backoff
from commonscale.results import plain_text
from participant.attachment import MAX_DEATHS, MAX_MESSAGE_BYTES, NOT_ATTACHED, WorkerView
from participant.pipe import BadPipeError, Parcel, Pipe

log = structlog.get_logger()

MAX_BYTES = 2 * MAX_MESSAGE_BYTES
# A farewell to the worker takes a second at most.
ENDING_S = 5.0
# It shows its view every few seconds: after so long without one it is frozen.
SILENCE_S = 60.0
# A process that lived for so long was in order: the next one is started at once.
STEADY_S = 30.0
# The environment may hold the passphrase of a vault: the process gets what Python needs, and nothing else.
_ENVIRONMENT = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONUTF8",
)  # fmt: skip
_NOBODY = WorkerView(NOT_ATTACHED, "", {}, "", 0.0, "", 0)
_VIEW: TypeAdapter[WorkerView] = TypeAdapter(WorkerView)


@dataclass
class Waiting:
    """Somebody asked the worker."""

    number: int
    # What an answer must be, and to what.
    wanted: str
    id: str
    answer: wire.Message | None = None
    error: WorkerFailed | None = None
    done: anyio.Event = field(default_factory=anyio.Event)


@dataclass
class Running:
    """The process that holds the socket now."""

    process: "subprocess.Popen[bytes]"
    pipe: Pipe
    gone: anyio.Event = field(default_factory=anyio.Event)

    async def say(self, said: dict[str, Any], parts: Sequence[Any] = ()) -> None:
        """A process that takes nothing is ended; whoever reads what it says will notice."""
        try:
            await self.pipe.send(said, parts)
        except OSError:
            self.process.kill()


class WorkerGate:
    """The worker of this site, over all processes that hold its socket."""

    def __init__(self, site: str, config: WorkerConfig, state: Path) -> None:
        self._site = site
        self._config = config
        self._state = state
        self.address = ""
        self._running: Running | None = None
        self._started = anyio.Event()
        self._view = _NOBODY
        self._turn = anyio.Lock()
        self._number = 0
        self._waiting: Waiting | None = None
        self._stopping = False

    @property
    def models(self) -> Mapping[str, str] | None:
        """Digests of what the attached worker offers, by name; none without a worker."""
        return self._view.offered

    def view(self) -> WorkerView:
        """For the site's own eyes."""
        return self._view

    @property
    def pid(self) -> int | None:
        """Of the process that holds the socket now."""
        return self._running.process.pid if self._running is not None else None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Let a worker attach as long as this lasts."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._keep_running)
            yield
            with anyio.CancelScope(shield=True):
                await self._stop()
            tasks.cancel_scope.cancel()

    async def ask(self, prepare: tuple[pb.Prepare, str], task: pb.Task | None, arrays: wire.Arrays) -> wire.Message:
        """What the worker answers to a Prepare, or to a Task after that Prepare; waits until a worker is there.

        The Prepare comes with the digest that its model must have.
        """
        parts = [*wire.frames(prepare[0]), *(wire.frames(task, arrays) if task is not None else [])]
        what, wanted = (task.id, "result") if task is not None else (prepare[0].id, "prepared")
        async with self._turn:
            for _ in range(MAX_DEATHS):
                self._number += 1
                answer = await self._asked(Waiting(self._number, wanted, what), prepare[1], parts)
                if answer is not None:
                    return answer
        text = f"the process of its worker's socket ended {MAX_DEATHS} times over {what}."
        self._view = replace(self._view, last_error=text, last_error_ms=now_ms())
        raise WorkerFailed(f"{self._site}: {text}", "That site's log says more.")

    async def _asked(self, waiting: Waiting, digest: str, parts: list[Any]) -> wire.Message | None:
        """The answer; None if the process that was asked has ended."""
        while self._running is None:
            await self._started.wait()
        running, self._waiting = self._running, waiting
        try:
            await running.say({"kind": "ask", "number": waiting.number, "digest": digest}, parts)
            await first_of(waiting.done.wait, running.gone.wait)
        finally:
            self._waiting = None
            if not waiting.done.is_set() and not running.gone.is_set():
                with anyio.CancelScope(shield=True):
                    await running.say({"kind": "cancel", "number": waiting.number})
        if waiting.error is not None:
            raise waiting.error
        return waiting.answer

    async def _keep_running(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Start the process, and start it again whenever it ends; what cannot work the first time is an error."""
        backoff = Backoff(longest_s=5.0)
        while not self._stopping:
            first, began = not self.address, time.monotonic()
            try:
                why = await self._run_process(task_status.started if first else lambda: None)
                if not self.address:
                    raise ConfigError(f"The process of the worker's socket could not be started: {why}.")
            except ConfigError as error:
                # Later, the socket's place may be free again.
                if first:
                    raise
                why = error.message
            if not self._stopping:
                log.error("the process of the worker's socket has ended; starting it again", why=why)
                if time.monotonic() - began > STEADY_S:
                    backoff.reset()
                await backoff.wait()

    async def _run_process(self, serving: Callable[[], None]) -> str:
        """One process to its end; why it ended."""
        try:
            running = self._start()
        except OSError as error:
            return error.strerror or "it could not be started"
        try:
            self._serves(await running.pipe.receive(SILENCE_S))
            self._running = running
            self._started.set()
            serving()
            while True:
                self._take(await running.pipe.receive(SILENCE_S))
        except (EOFError, OSError, BadPipeError) as error:
            why = str(error)
        finally:
            if self._running is not None:
                # Whoever waits for an event that is not set goes on waiting for the same one.
                self._running, self._started = None, anyio.Event()
            self._view = replace(_NOBODY, last_error=self._view.last_error, last_error_ms=self._view.last_error_ms)
            code = await _ended(running)
        return f"it ended with {code}" + (f": {why}" if why else "")

    def _start(self) -> Running:
        # What was chosen stays.
        key = self._config.key.absolute() if self._config.key is not None else None
        config = self._config.model_copy(update={"listen": self.address or self._config.listen, "key": key})
        verbose = "verbose" if log.is_enabled_for(logging.DEBUG) else ""
        words = [self._site, config.model_dump_json(), str(self._state.absolute()), str(MAX_BYTES), verbose]
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as ends, theirs:
            ends.callback(ours.close)
            process = subprocess.Popen(
                [sys.executable, "-m", "participant.gate_process", *words], stdin=theirs.fileno(), stdout=2,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"OMP_NUM_THREADS": "1"},
                cwd="/",  # Python imports from where it starts, and a site may start us beside files of its own
                start_new_session=True,  # Ctrl-C at a terminal is for the daemon, which then ends this one
            )  # fmt: skip
            ends.pop_all()
        return Running(process, Pipe(ours, MAX_BYTES))

    def _serves(self, parcel: Parcel) -> None:
        said = parcel.said
        if said.get("kind") == "config":
            raise ConfigError(plain_text(str(said.get("text"))), plain_text(str(said.get("remedy"))))
        address = said.get("address")
        if said.get("kind") != "serving" or not isinstance(address, str):
            raise BadPipeError("a message that is none: it does not say where it serves")
        if not self.address:
            self.address = address
        elif address != self.address:
            raise BadPipeError("it serves at another address than before")

    def _take(self, parcel: Parcel) -> None:
        said, waiting = parcel.said, self._waiting
        try:
            if said["kind"] == "view":
                self._show(_VIEW.validate_python(said["view"]))
            elif waiting is not None and said["number"] == waiting.number:
                self._settle(waiting, parcel)
        except (KeyError, ValueError, OverflowError) as error:
            raise BadPipeError(f"a message that is none: {type(error).__name__}") from None

    def _show(self, view: WorkerView) -> None:
        if not view.last_error_ms:
            # An earlier process knew of one.
            view = replace(view, last_error=self._view.last_error, last_error_ms=self._view.last_error_ms)
        self._view = view

    @staticmethod
    def _settle(waiting: Waiting, parcel: Parcel) -> None:
        said = parcel.said
        if said["kind"] == "answer":
            answer = wire.parse(parcel.parts)
            if answer.kind != waiting.wanted or answer.body.id != waiting.id:
                raise BadPipeError(f"{answer.kind} is no answer to what was asked")
            waiting.answer = answer
        else:
            waiting.error = WorkerFailed(plain_text(str(said["text"])), plain_text(str(said["remedy"])))
        waiting.done.set()

    async def _stop(self) -> None:
        self._stopping = True
        if (running := self._running) is not None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(running.say, {"kind": "stop"})
                with anyio.move_on_after(ENDING_S):
                    await running.gone.wait()
                # Whether it listened or not.
                running.process.kill()


async def _ended(running: Running) -> int:
    """Whatever state it is in; how it ended."""
    with anyio.CancelScope(shield=True):
        await running.pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await offload(running.process.wait, ENDING_S)
        running.process.kill()
        code = await offload(running.process.wait)
        running.gone.set()
    return code
