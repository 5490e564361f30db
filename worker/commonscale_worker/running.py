"""`cw.run()`: what a script of a data scientist calls, and what a command line calls after importing one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commonscale_worker.attaching import Keys, attach, say
from commonscale_worker.errors import Rejected, WorkerError

SOCKET = "COMMONSCALE_WORKER_SOCKET"
OWN_KEY = "COMMONSCALE_WORKER_CURVE_KEY"
SERVER_KEY = "COMMONSCALE_WORKER_CURVE_SERVER"
REJECTED_EXIT = 3

# While a command imports a module, run() in it only registers: the command goes on from there.
_importing = False


@contextmanager
def importing() -> Iterator[None]:
    """A module is imported to see what it offers."""
    global _importing  # noqa: PLW0603
    _importing = True
    try:
        yield
    finally:
        _importing = False


def run(
    socket: str | None = None,
    *,
    flower_client: Any = None,
    flower_app: Any = None,
    name: str = "flower",
    rows: int | None = None,
    evaluation_rows: int | None = None,
    parameters: Any = None,
    node_config: dict[str, Any] | None = None,
    run_config: dict[str, Any] | None = None,
    curve_key: str | None = None,
    curve_server: str | None = None,
) -> None:
    """Attach to the participant and train until it says Stop; the process ends with 3 if it is rejected.

    The address is the argument, or the environment's COMMONSCALE_WORKER_SOCKET. With `flower_client` or `flower_app` a
    Flower client is offered under `name`; `parameters` are its first weights, or a function that gives them, if it
    has none of its own, and the configs are what an app finds in its context.
    """
    if flower_client is not None or flower_app is not None:
        from commonscale_worker.flower import offer

        offer(
            name, flower_client, flower_app, rows=rows, evaluation_rows=evaluation_rows, parameters=parameters,
            node_config=node_config, run_config=run_config,
        )  # fmt: skip
    if not _importing:
        code = serve(socket or os.environ.get(SOCKET), curve_key, curve_server)
        if code:
            raise SystemExit(code)


def serve(socket: str | None, curve_key: str | None = None, curve_server: str | None = None) -> int:
    """The exit code: 0 after Stop, 3 when rejected, 2 when it could not begin."""
    try:
        if not socket:
            raise WorkerError(f"give the participant's socket, as an argument or as {SOCKET}")
        own, server = curve_key or os.environ.get(OWN_KEY), curve_server or os.environ.get(SERVER_KEY)
        if bool(own) != bool(server):
            raise WorkerError("CURVE takes two files: the worker's own key and the participant's public one")
        attach(socket, Keys.read(own, server) if own and server else None)
    except Rejected as error:
        say(str(error))
        return REJECTED_EXIT
    except WorkerError as error:
        say(str(error))
        return 2
    return 0
