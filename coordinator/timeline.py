"""A job as a person looks at it: its rounds, and what they took. Who sent how much when; never what was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commonscale.pipeline import Pipeline
from commonscale.slot import ALL, HUB, Slot
from commonscale.steps import MODULES, disclosures
from coordinator.slots import Arrival


def rounds(arrivals: Sequence[Arrival]) -> list[dict[str, Any]]:
    """Messages of one kind in one step are a round; in the order in which they began."""
    found: dict[tuple[int | None, str, str], dict[str, Any]] = {}
    for arrival in arrivals:
        slot = arrival.slot
        entry = found.setdefault(
            (step_of(slot.run), slot.kind, _direction(slot)),
            {
                "step": step_of(slot.run), "kind": slot.kind, "direction": _direction(slot),
                "first_ms": arrival.stored_at_ms, "last_ms": 0, "messages": 0, "bytes": 0, "senders": {},
            },
        )  # fmt: skip
        entry["last_ms"] = max(entry["last_ms"], arrival.stored_at_ms)
        entry["messages"] += 1
        entry["bytes"] += arrival.size_bytes
        sender = entry["senders"].setdefault(slot.sender, {"at_ms": 0, "bytes": 0})
        sender["at_ms"] = max(sender["at_ms"], arrival.stored_at_ms)
        sender["bytes"] += arrival.size_bytes
    return list(found.values())


def protocols(pipeline: Pipeline, submitted_at_ms: int, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each protocol took: its messages, their bytes, and the time until its last one, after the one before it."""
    totals: dict[tuple[int | None, str], dict[str, Any]] = {}
    for entry in sorted(found, key=lambda entry: entry["first_ms"]):
        step = entry["step"]
        total = totals.setdefault(
            (step, _protocol(pipeline, step, entry["kind"])),
            {"step": step, "protocol": _protocol(pipeline, step, entry["kind"]), "messages": 0, "bytes": 0, "last": 0},
        )
        total["messages"] += entry["messages"]
        total["bytes"] += entry["bytes"]
        total["last"] = max(total["last"], entry["last_ms"])
    before = submitted_at_ms
    for total in totals.values():
        last = total.pop("last")
        total["seconds"] = max(last - before, 0) / 1000
        before = max(before, last)
    return list(totals.values())


def revealed(job_id: str, pipeline: Pipeline, arrivals: Sequence[Arrival]) -> list[dict[str, Any]]:
    """What a job has revealed so far, from the messages that were really sent."""
    sent = {(arrival.slot.run, arrival.slot.kind) for arrival in arrivals}
    return disclosures(pipeline, lambda step, kind: (f"{job_id}/{step}", kind) in sent)


def steps(pipeline: Pipeline) -> list[dict[str, Any]]:
    """What the job asks for."""
    return [
        {
            "number": number, "transform": step.transform, "protocol": _protocol(pipeline, number, ""),
            "columns": step.columns,
        }
        for number, step in enumerate(pipeline.steps)
    ]  # fmt: skip


def step_of(run: str) -> int | None:
    """The number in `job/0`; none where the run is the job itself."""
    number = run.partition("/")[2]
    return int(number) if number else None


def _protocol(pipeline: Pipeline, step: int | None, kind: str) -> str:
    if step is None:
        return "outcome" if kind == "Outcome" else "admission"
    if step >= len(pipeline.steps):
        return "unknown"
    spec = pipeline.steps[step]
    return str(MODULES[spec.transform].protocol(spec, len(pipeline.sites)))


def _direction(slot: Slot) -> str:
    if slot.sender == HUB:
        return "to-all" if slot.receiver == ALL else "from-coordinator"
    return "to-coordinator" if slot.receiver == HUB else "between-sites"
