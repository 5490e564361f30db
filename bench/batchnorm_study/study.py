"""The study from outside: processes with torch that train, and one row for each cell from what they find.

torch is not among commonscale's dependencies: the runs take place in an environment of the worker's, `make torch`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from bench.batchnorm_study import data
from bench.batchnorm_study.plan import NO_ATTACK, Example, Plan, Run
from commonscale.errors import ConfigError

ROOT = Path(__file__).parents[2]
SIDES = {"paper": 32, "small": 16}
# Behind what the environment has of its own: beside this file there may be numpy for another Python.
START = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module("bench.batchnorm_study.runs", run_name="__main__", alter_sys=True)
"""

Found = dict[str, Any]


def torch_python(named: Path | None) -> Path:
    """A Python that has torch."""
    made = ROOT / ".venv" / "torch" / "bin" / "python"
    if named is None and made.exists():
        return made
    if named is None and find_spec("torch"):
        return Path(sys.executable)
    if named is None or not named.exists():
        missing = "There is no Python with PyTorch here." if named is None else f"There is no {named}."
        raise ConfigError(missing, "'make torch' makes an environment with it; --python names another one.")
    return named


def run(
    plan: Plan,
    directory: Path,
    python: Path,
    *,
    seed: int = 0,
    processes: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[Found], list[Found]]:
    """Rows of the example of Section 3, and of the trainings: mean and spread over the seeds."""
    examples, runs = plan.examples(seed), plan.runs(seed)
    if runs:
        data.check(directory)
    todo: list[Run | Example] = [*examples, *runs]
    found = _results(todo, directory, python, SIDES[plan.setup.model], processes, say)
    return (
        [_example_row(group) for group in _groups(list(zip(examples, found, strict=False)))],
        [_row(group) for group in _groups(list(zip(runs, found[len(examples) :], strict=True)))],
    )


def _results(
    todo: Sequence[Run | Example], directory: Path, python: Path, side: int, processes: int, say: Callable[[str], None]
) -> list[Found]:
    """In their order; each thread talks to a process of its own."""
    idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
    done = 0

    def result(wanted: Run | Example) -> Found:
        nonlocal done
        process = idle.get()
        try:
            found = _ask(process, wanted)
        finally:
            idle.put(process)
        done += 1
        say(f"{done}/{len(todo)}: {wanted}")
        return found

    with _started(python, directory, side, min(processes, len(todo))) as started:
        for process in started:
            idle.put(process)
        with ThreadPoolExecutor(len(started)) as pool:
            try:
                return list(pool.map(result, todo))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                # A thread that waits for an answer gets none.
                for process in started:
                    process.kill()
                raise


@contextmanager
def _started(python: Path, directory: Path, side: int, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    command = [str(python), "-c", START, str(ROOT), str(directory), str(side)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.communicate()


def _ask(process: subprocess.Popen[str], wanted: Run | Example) -> Found:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(wanted.plain()) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise ConfigError(
            "A process of the study ended.",
            "Its message is above; the environment needs PyTorch and the worker's package ('make torch').",
        )
    found: Found = json.loads(line)
    return found


Pair = tuple[Any, Found]


def _groups(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Those that differ in nothing but their seed."""
    groups: dict[Any, list[Pair]] = {}
    for wanted, found in pairs:
        groups.setdefault(str(replace(wanted, seed=0)), []).append((wanted, found))
    return list(groups.values())


def _row(group: Sequence[Pair]) -> Found:
    run: Run = group[0][0]
    accuracies = [100 * found["accuracy"] for _, found in group]
    curves = [100 * np.array([accuracy for _, accuracy in found["curve"]]) for _, found in group]
    return {
        "split": str(run.split),
        "method": run.method,
        "attack": run.attack,
        "defence": "-" if run.attack == NO_ATTACK else str(run.defence),
        "accuracy": float(np.mean(accuracies)),
        "accuracy_sd": _spread(accuracies),
        "diverged": sum(found["diverged"] > 0 for _, found in group),
        "seeds": len(group),
        "curve": [list(point) for point in zip(run.setup.measured, np.mean(curves, axis=0).tolist(), strict=True)],
    }


def _example_row(group: Sequence[Pair]) -> Found:
    example: Example = group[0][0]
    errors = [found["error"] for _, found in group]
    return {
        "gamma": example.gamma,
        "method": example.method,
        "error": float(np.mean(errors)),
        "error_sd": _spread(errors),
        "last_error": float(np.mean([found["last_error"] for _, found in group])),
        **{name: max(found[name] for _, found in group) for name in ("mean_off", "variance_off")},
        "seeds": len(group),
    }


def _spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
