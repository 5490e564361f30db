"""A job as a person looks at it: its rounds, and what they took. Who sent how much when; never what was said."""

from collections.abc import Mapping, Sequence
from typing import Any

from commonscale import disclosure
from commonscale.channel.slot import ALL, COORDINATOR, Slot, step_run
from commonscale.errors import BadMessage
from coordinator.jobstore import JobRecord
from coordinator.slots import Arrival


def rounds(arrivals: Sequence[Arrival], under_way: Mapping[int | None, int] | None = None) -> list[dict[str, Any]]:
    """Messages of one kind in one step are a round; in the order in which they began.

    Of a session, whose rounds are many, the newest round is told by itself and those before it are added up. Which one
    is under way in a step, if it is known, counts before anybody has sent something in it.
    """
    newest = dict(under_way or {})
    for arrival in arrivals:
        step, number = step_of(arrival.slot.run), round_of(arrival.slot.run)
        newest[step] = max(newest.get(step, 0), number or 0)
    found: dict[tuple[int | None, bool, bool, str, str], dict[str, Any]] = {}
    for arrival in arrivals:
        slot = arrival.slot
        if slot.sender == slot.receiver:
            # What the coordinator keeps for itself is no message.
            continue
        step, number, direction = step_of(slot.run), round_of(slot.run), _direction(slot)
        behind = number is not None and number < newest[step]
        span = None if number is None else [1, newest[step] - 1] if behind else [number, number]
        nothing_yet: dict[str, Any] = {
            "step": step, "rounds": span, "summed": behind, "kind": slot.kind, "direction": direction,
            "first_ms": arrival.began_ms, "last_ms": 0, "messages": 0, "bytes": 0, "senders": {},
        }  # fmt: skip
        entry = found.setdefault((step, number is None, behind, slot.kind, direction), nothing_yet)
        entry["last_ms"] = max(entry["last_ms"], arrival.stored_at_ms)
        entry["messages"] += arrival.messages
        entry["bytes"] += arrival.size_bytes
        sender = entry["senders"].setdefault(slot.sender, {"at_ms": 0, "bytes": 0})
        sender["at_ms"] = max(sender["at_ms"], arrival.stored_at_ms)
        sender["bytes"] += arrival.size_bytes
    return list(found.values())


def protocols(record: JobRecord, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each protocol took: its messages, their bytes, and the time until its last one, after the one before it."""
    totals: dict[tuple[int | None, str], dict[str, Any]] = {}
    for entry in sorted(found, key=lambda entry: entry["first_ms"]):
        step, protocol = entry["step"], _protocol(record, entry["step"], entry["kind"])
        nothing_yet = {"step": step, "protocol": protocol, "messages": 0, "bytes": 0, "last": 0}
        total = totals.setdefault((step, protocol), nothing_yet)
        total["messages"] += entry["messages"]
        total["bytes"] += entry["bytes"]
        total["last"] = max(total["last"], entry["last_ms"])
    before = record.submitted_at_ms
    for total in totals.values():
        last = total.pop("last")
        total["seconds"] = max(last - before, 0) / 1000
        before = max(before, last)
    return list(totals.values())


def revealed(record: JobRecord, arrivals: Sequence[Arrival]) -> list[dict[str, Any]]:
    """What a job has revealed so far, from the messages that were really sent."""
    sent = [(a.slot.run, a.slot.kind, a.slot.sender) for a in arrivals]
    try:
        return disclosure.from_messages(record.id, record.pipeline, sent)
    except BadMessage:
        # Another replica, of a newer release, may have driven it.
        everyone = ["coordinator", "analyst", *record.asked.sites]
        unknown = "this release cannot read the job, and cannot say what it has revealed"
        return [{"protocol": "unknown", "what": unknown, "to": everyone}] if sent else []


def steps(record: JobRecord) -> list[dict[str, Any]]:
    """What the job asks for; nothing, where this release cannot read it."""
    try:
        found = record.pipeline.steps
    except BadMessage:
        found = []
    return [
        {
            "number": number, "transform": step.transform, "protocol": _protocol(record, number, ""),
            "columns": step.columns,
        }
        for number, step in enumerate(found)
    ]  # fmt: skip


def step_of(run: str) -> int | None:
    """The number in `job/0` and in `job/0/17`; none where the run is the job itself."""
    number = step_run(run).partition("/")[2]
    return int(number) if number else None


def round_of(run: str) -> int | None:
    """The number of a session's round: 17 in `job/0/17`."""
    number = run.removeprefix(step_run(run)).removeprefix("/")
    return int(number) if number else None


def _protocol(record: JobRecord, step: int | None, kind: str) -> str:
    if step is None:
        return "outcome" if kind == "Outcome" else "admission"
    try:
        return record.pipeline.steps[step].protocol(len(record.asked.sites))
    except (BadMessage, IndexError):
        return "unknown"


def _direction(slot: Slot) -> str:
    if slot.sender == COORDINATOR:
        return "to-all" if slot.receiver == ALL else "from-coordinator"
    return "to-coordinator" if slot.receiver == COORDINATOR else "between-sites"
