"""Python programs that begin as forks of one process, which has already imported what they need.

For the demo and the tests, on one machine: to import its libraries costs a daemon seconds of a core, and there they
start by the dozen. What is forked is a process like any other, with its own configuration, keys, files and death. What
it shares with the other forks is the seed of Python's hashes, so some tests start theirs anew.
"""

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# What the programs of a federation import; a module that is not installed is passed over.
PRELOADED = (
    "commonscale.cli",
    "coordinator.daemon",
    "participant.daemon",
    "commonscale_worker.cli",
    "sklearn.linear_model",
    "skops.io",
)
# gRPC's, set as it was imported (commonscale.grpc_loading).
_KEPT_VARIABLES = ("GRPC_SSL_CIPHER_SUITES", "GRPC_VERBOSITY")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(PRELOADED))


class ForkedProgram:
    """`python -m module arguments…`, with the part of subprocess.Popen's interface that supervisors use."""

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        _, _, module, *arguments = command
        # Ends with this process at the latest.
        self._process = _context.Process(
            target=_become, args=(module, arguments, str(log_path), dict(os.environ), os.getcwd()), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @staticmethod
    def can_run(command: Sequence[str]) -> bool:
        """Whether a command is a module for this Python."""
        return list(command[:2]) == [sys.executable, "-m"]

    @property
    def returncode(self) -> int | None:
        """As poll."""
        return self.poll()

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended, which may not be known here yet."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.send_signal(signal.SIGKILL)


def _become(
    module: str, arguments: Sequence[str], log_path: str, environment: Mapping[str, str], directory: str
) -> None:
    """In the fork: what the system would have set up for a new program, then the program."""
    with open(os.devnull, "rb") as nothing, open(log_path, "ab") as log:
        for taken, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(taken.fileno(), number)
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    os.environ.clear()
    os.environ.update({**kept, **environment})
    os.chdir(directory)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
