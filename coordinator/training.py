"""A training step as those who look on see it: how far it is, and its pooled figures where the job shows them."""

import json
from collections.abc import Sequence
from typing import Any

from commonscale.results import MODEL_KEY, canonical_json
from commonscale.v1 import jobs_pb2
from coordinator.jobstore import JobRecord


def observers_may_see(spec: jobs_pb2.JobSpec, step: int) -> bool:
    """Whether a job says that others than its analyst may see the figures of a training step while it runs."""
    return step < len(spec.steps) and json.loads(spec.steps[step].options).get("observers") is True


def without_figures(job: jobs_pb2.Job) -> jobs_pb2.Job:
    """The same job for one who may not see them."""
    found = jobs_pb2.Job()
    found.CopyFrom(job)
    found.progress.training.ClearField("figures")
    return found


def result_for_others(job: jobs_pb2.Job) -> jobs_pb2.Job:
    """The same job for one who is not its analyst: without the model, and without figures that it does not show."""
    if not any(step.transform == "train" for step in job.spec.steps) or not job.result_json:
        return job
    found = jobs_pb2.Job()
    found.CopyFrom(job)
    steps = json.loads(job.result_json)
    for number, step in enumerate(steps):
        step.pop(MODEL_KEY, None)
        if "metrics" in step and not observers_may_see(job.spec, number):
            step["metrics"] = []
    found.result_json = canonical_json(steps)
    return found


def under_way(found: jobs_pb2.Training | None) -> dict[int | None, int]:
    """The round that runs now, by step."""
    goes_on = found is not None and found.done < found.rounds and not found.stopped_early
    return {found.step: found.done + 1} if found is not None and goes_on else {}


def panel(
    record: JobRecord, found: jobs_pb2.Training | None, rounds: Sequence[dict[str, Any]]
) -> dict[str, Any] | None:
    """For the dashboard; none of a job that does not train, or has not begun to."""
    if found is None:
        return None
    shown = observers_may_see(record.asked, found.step)
    of_step = [entry for entry in rounds if entry["step"] == found.step]
    behind = [entry for entry in of_step if entry.get("rounds") and entry["rounds"][1] <= found.done]
    model = json.loads(record.asked.steps[found.step].options).get("model", "")
    return {
        "step": found.step,
        "model": model,
        "done": found.done,
        "rounds": found.rounds,
        "since_ms": found.since_ms,
        "last_s": found.round_s or None,
        "mean_s": _seconds(behind) / found.done if behind and found.done else None,
        "bytes": sum(entry["bytes"] for entry in of_step),
        "round_bytes": sum(entry["bytes"] for entry in behind) // found.done if found.done else None,
        "stopped_early": found.stopped_early,
        "lost": list(found.lost),
        "observers": shown,
        "figures": [_plain(one) for one in found.figures] if shown else [],
    }


def _seconds(entries: Sequence[dict[str, Any]]) -> float:
    last = max(entry["last_ms"] for entry in entries)
    return float(last - min(entry["first_ms"] for entry in entries)) / 1000


def _plain(one: jobs_pb2.Figures) -> dict[str, Any]:
    return {
        "round": one.round,
        "loss": one.loss,
        "accuracy": one.accuracy if one.HasField("accuracy") else None,
        "auc": one.auc if one.HasField("auc") else None,
    }
