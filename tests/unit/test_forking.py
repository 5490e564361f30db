"""Programs that begin as forks are processes like others."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from commonscale.forking import ForkedProgram
from tests.patience import PATIENCE_S, eventually

PROGRAM = """
import os, sys, time
print(sys.argv[1:], os.environ.get("MARK"), os.getcwd(), __name__, sys.stdin.read(), flush=True)
print("complaint", file=sys.stderr, flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "forked_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    return [sys.executable, "-m", "forked_program"]


def test_a_fork_is_given_what_a_program_is_given(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments, today's environment and directory, an empty input, and a log for both of its outputs."""
    monkeypatch.setenv("MARK", "today's")
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    assert ForkedProgram([*command, "3", "b"], log).wait(PATIENCE_S) == 3
    assert log.read_text() == f"['3', 'b'] today's {tmp_path} __main__ \ncomplaint\n"


def test_a_fork_has_a_death_of_its_own(command: list[str], tmp_path: Path) -> None:
    """It is killed alone, at once, and its end is seen with the signal."""
    killed, other = (ForkedProgram([*command, "wait"], tmp_path / name) for name in ("killed", "other"))
    assert killed.pid != other.pid != os.getpid()
    assert killed.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0.01)
    killed.kill()
    assert killed.wait(PATIENCE_S) == killed.returncode == -signal.SIGKILL
    assert other.poll() is None
    other.terminate()
    assert other.wait(PATIENCE_S) == -signal.SIGTERM
    other.kill()
    eventually(lambda: not psutil.pid_exists(other.pid))


def test_what_is_no_module_of_this_python_is_no_fork() -> None:
    """A worker of another Python is started as ever."""
    assert ForkedProgram.can_run([sys.executable, "-m", "commonscale"])
    assert not ForkedProgram.can_run(["/usr/bin/python", "-m", "commonscale"])
    assert not ForkedProgram.can_run([sys.executable, "commonscale"])
