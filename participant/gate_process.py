"""The process that holds the socket of a site's ML worker: whatever a peer makes libzmq do, it does it here.

`python -m participant.gate_process`, started by a participant (worker_gate) with one end of a pair of sockets as its
standard input. It ends with the participant, and keeps nothing.
"""

import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import anyio
import anyio.abc
from commonscale_worker import wire

from commonscale.config import WorkerConfig
from commonscale.daemon import configure_log
from commonscale.errors import ConfigError, WorkerFailed
from participant.attachment import Attachment
from participant.pipe import Parcel, Pipe

# Of what changes all the time, the page shows so many states per second.
VIEWS_PER_S = 20
# Without a change too, so that the participant knows that this process goes on.
VIEW_S = 5.0


class GateProcess:
    """Between the participant and its worker."""

    def __init__(self, pipe: Pipe, site: str, config: WorkerConfig, state: Path) -> None:
        self._pipe = pipe
        self._changed = anyio.Event()
        self._attachment = Attachment(site, config, state, self._note_change)
        # The number of the newest question, and how to give it up.
        self._asked: tuple[int, anyio.CancelScope] | None = None

    def _note_change(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Until the participant says stop, or ends."""
        try:
            async with self._attachment.serving(), anyio.create_task_group() as tasks:
                await self._say({"kind": "serving", "address": self._attachment.address})
                tasks.start_soon(self._show)
                while (parcel := await self._received()).said["kind"] != "stop":
                    self._take(tasks, parcel)
                tasks.cancel_scope.cancel()
        except ConfigError as error:
            await self._say({"kind": "config", "text": error.message, "remedy": error.remedy})

    async def _received(self) -> Parcel:
        try:
            return await self._pipe.receive()
        except (EOFError, OSError):
            _end_without_a_word()

    async def _say(self, said: dict[str, Any], parts: Sequence[Any] = ()) -> None:
        try:
            await self._pipe.send(said, parts)
        except OSError:
            _end_without_a_word()

    def _take(self, tasks: anyio.abc.TaskGroup, parcel: Parcel) -> None:
        if parcel.said["kind"] == "ask":
            # Here, not in the task: a cancel may be right behind.
            scope = anyio.CancelScope()
            self._asked = parcel.said["number"], scope
            tasks.start_soon(self._ask, parcel, scope)
        elif self._asked is not None and parcel.said["number"] == self._asked[0]:
            self._asked[1].cancel()

    async def _ask(self, parcel: Parcel, scope: anyio.CancelScope) -> None:
        number = parcel.said["number"]
        with scope:
            try:
                prepare = wire.parse(parcel.parts[:1]).body
                task = wire.parse(parcel.parts[1:]) if len(parcel.parts) > 1 else None
                body, arrays = (task.body, task.arrays) if task is not None else (None, {})
                answer = await self._attachment.ask((prepare, parcel.said["digest"]), body, arrays)
                await self._say({"kind": "answer", "number": number}, wire.frames(answer.body, answer.arrays))
            except WorkerFailed as error:
                said = {"kind": "failed", "number": number, "text": error.message, "remedy": error.remedy}
                await self._say(said)
            except wire.BadFramesError as error:
                # Of our own: too many columns, for example.
                text = f"The job is none that a worker can be told of: {error}."
                await self._say({"kind": "failed", "number": number, "text": text, "remedy": ""})

    async def _show(self) -> None:
        while True:
            with anyio.move_on_after(VIEW_S):
                await self._changed.wait()
            self._changed = anyio.Event()
            await self._say({"kind": "view", "view": asdict(self._attachment.view())})
            await anyio.sleep(1 / VIEWS_PER_S)


def _end_without_a_word() -> NoReturn:
    """The participant is gone. Its next process has a socket of the same name, perhaps: that is not ours to remove."""
    os._exit(1)


def main() -> None:
    """`SITE CONFIG STATE MOST_BYTES VERBOSE`, the configuration as JSON."""
    # A core file would hold a site's update.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where memory is short, this process goes before the participant.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # A service manager tells every process of a service to end: the participant says when this one does.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    site, worker, state, most_bytes, verbose = sys.argv[1:]
    config = WorkerConfig.model_validate_json(worker)
    # A peer may send frames without end, which libzmq keeps until a message is whole.
    limit = config.memory_mb << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    configure_log(verbose=verbose == "verbose")
    pipe = Pipe(socket.socket(fileno=sys.stdin.fileno()), int(most_bytes))
    gate = GateProcess(pipe, site, config, Path(state))
    anyio.run(gate.run)


if __name__ == "__main__":
    main()
