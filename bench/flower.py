"""Flower's SecAgg+ beside our rounds, by another Python: `flwr` wants other versions of libraries than ours."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("flower_secagg.py")
# It takes much longer than ours, and its rounds differ little.
MAX_ROUNDS = 3


def rows(
    python: Path | None, *, parties: int, parameters: Sequence[int], rounds: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row per number of parameters; one that says why there is none without such a Python."""
    if python is None:
        return [{"protocol": "training", "variant": "flower-secagg+", "left_out": "no --flower-python with flwr"}]
    found = []
    for size in parameters:
        say(f"measuring Flower's SecAgg+ with {size:,} parameters")
        figures = _measured(python, parties, size, min(rounds, MAX_ROUNDS))
        about = {"protocol": "training", "variant": "flower-secagg+", "parties": parties, "parameters": size}
        found.append(about | figures)
    return found


def _measured(python: Path, parties: int, size: int, rounds: int) -> dict[str, Any]:
    command = [str(python), str(SCRIPT), *map(str, (parties, size, rounds))]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=quiet)
    if done.returncode:
        # What was measured before is worth more than this.
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return {"left_out": f"{python} could not run Flower's SecAgg+: {why}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
