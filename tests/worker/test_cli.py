"""The `commonscale-worker` command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

OFFERED = Path(__file__).parent / "offered.py"
README = Path(__file__).parents[2] / "worker" / "README.md"
ROOT = Path(__file__).parents[2]


def command(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    full = [sys.executable, "-m", "commonscale_worker.cli", *map(str, arguments)]
    return subprocess.run(full, capture_output=True, text=True, cwd=cwd, check=False, timeout=120)


def test_models_are_listed() -> None:
    """By a path and by a module's name, the same digests; as text and as JSON."""
    listed = json.loads(command("models", OFFERED, "--format", "json").stdout)
    assert [model["name"] for model in listed] == ["softmax", "slow", "broken"]
    text = command("models", "tests.worker.offered").stdout
    assert text.split() == [word for model in listed for word in (model["name"], model["digest"])]


def test_a_model_that_is_right() -> None:
    """Is said to be ok, with its size, for every kind of target."""
    found = command("check", OFFERED, "--model", "softmax")
    assert found.returncode == 0, found.stderr
    sizes = re.findall(r"softmax: (.*): ok, (\d+) parameters, [\d.]+ seconds\n", found.stdout)
    assert sizes == [("2 classes", "10"), ("3 classes", "15"), ("a number", "5")]


def test_a_model_that_is_wrong() -> None:
    """Is told why, with exit code 1."""
    found = command("check", OFFERED, "--model", "broken")
    assert found.returncode == 1
    assert "broken: 2 classes: wrong: ValueError: row 17 is strange" in found.stdout


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("def fit(self, round): round.progress(1)", "changed no weight"),
        ("def fit(self, round): self.weights += 1", "never called round.progress"),
        (
            "def fit(self, round): self.weights += np.random.rand(); round.progress(1)",
            "random from the seed",
        ),
        ("def get_weights(self): return {'w': np.array([np.nan])}", "no finite numbers"),
        ("def evaluate(self): return cw.Metrics(1.0)", "has no confusion"),
    ],
)
def test_what_check_finds(folder: Path, body: str, sentence: str) -> None:
    """Mistakes that would otherwise show in the middle of a job."""
    (folder / "mine.py").write_text(
        "import numpy as np\nimport commonscale_worker as cw\nfrom tests.worker.offered import Softmax\n"
        f"@cw.model('mine')\nclass Mine(Softmax):\n    {body}\n"
    )
    found = command("check", folder / "mine.py", "--model", "mine")
    assert found.returncode == 1
    assert sentence in found.stdout


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "offers no model"),
        ("import nothing_of_that_name", "no module 'nothing_of_that_name'"),
        ("1 / 0", "ZeroDivisionError"),
        ("import commonscale_worker as cw\ncw.model('UPPER')(object)", "is no name of a model"),
    ],
)
def test_modules_that_cannot_be_used(folder: Path, content: str, sentence: str) -> None:
    """A sentence and exit code 2."""
    (folder / "mine.py").write_text(content)
    found = command("check", folder / "mine.py")
    assert found.returncode == 2
    assert sentence in found.stderr


def test_files_that_cannot_be_used(folder: Path) -> None:
    """One that is not there, and one that hides a module."""
    assert "there is no file" in command("models", folder / "nowhere.py").stderr
    (folder / "json.py").write_text("")
    assert "another name" in command("models", folder / "json.py").stderr


def test_run_without_an_address() -> None:
    """Says how to give one."""
    found = command("run", OFFERED)
    assert found.returncode == 2
    assert "COMMONSCALE_WORKER_SOCKET" in found.stderr


def test_the_example_of_the_readme_is_right(folder: Path) -> None:
    """As it stands there."""
    pytest.importorskip("torch")
    (example,) = re.findall(r"```python\n# models\.py\n(.*?)```", README.read_text(), re.DOTALL)
    (folder / "models.py").write_text(example)
    found = command("check", folder / "models.py")
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(": ok, ") >= 5
