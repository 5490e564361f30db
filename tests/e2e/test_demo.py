"""`commonscale demo`, as a newcomer runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commonscale.cli.demo import SITES, show
from commonscale.cli.demo_training import worker
from commonscale.localnet import Worker
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What it says to a program."""
    command = [sys.executable, "-m", "commonscale", "demo", "--format", "json"]
    keep = ["--keep", str(tmp_path_factory.mktemp("demo"))]
    done = subprocess.run([*command, *keep], capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout) | {"directory": Path(keep[1]), "said": done.stderr}
    return found


def test_the_demo_finds_what_the_pooled_table_gives(summary: dict[str, Any]) -> None:
    """Scale and categories, at every hospital; and it says nothing else."""
    assert summary["as_pooled"]
    assert summary["max_rel_error"] < 1e-12
    assert summary["categories"]["consistent"]
    assert "warn" not in summary["said"].lower()


def test_the_demo_trains_a_better_model_than_any_hospital_alone(summary: dict[str, Any]) -> None:
    """As good as one of the pooled table, on patients that were in no table; and every hospital has it."""
    found = summary["training"]
    assert found["federated"] >= 0.98
    assert abs(found["federated"] - found["pooled"]) < 2.5 / found["unseen_rows"]
    assert set(found["local"]) == set(SITES)
    assert found["federated"] > max(found["local"].values())
    assert found["same_at_all_sites"]
    models = list(summary["directory"].glob("*/state/results/*/model.safetensors"))
    assert {path.parents[3].name for path in models} == set(SITES)


def test_the_demo_shows_its_figures(summary: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """For people, the accuracies stand beside each other."""
    show(summary)
    shown = capsys.readouterr().out
    (line,) = [line.split() for line in shown.splitlines() if line.strip().startswith("accuracy")]
    training = summary["training"]
    parts = [training["pooled"], training["federated"], *training["local"].values()]
    assert line == ["accuracy", *(f"{part:.1%}" for part in parts)]


def test_the_demos_digest_is_what_the_workers_command_prints() -> None:
    """The participants pin the file that the workers load."""
    assert worker() == Worker.of("commonscale.cli.demo_model")
