"""The disclosure report: what a job has revealed, to whom and by which protocol, from what was really opened.

The same lines at the coordinator, in a site's audit log and, from the plan, on the approval page.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from commonscale.channel.slot import step_run
from commonscale.plan import plan_of
from commonscale.protocols.admission import VERDICTS
from commonscale.reveal import CONTRIBUTING, OPENING, Ledger, Reveal

if TYPE_CHECKING:
    from commonscale.pipeline import Pipeline


def report(job_id: str, pipeline: Pipeline, ledger: Ledger) -> list[dict[str, Any]]:
    """What was opened so far."""
    lines = [_line(pipeline, None, reveal) for reveal in ledger.of(job_id)]
    for number in range(len(pipeline.steps)):
        lines += [_line(pipeline, number, reveal) for reveal in ledger.of(f"{job_id}/{number}")]
    return lines


def from_messages(job_id: str, pipeline: Pipeline, sent: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """What was opened, from the run, kind and sender of every message that was sent: a slot's kind names its Reveal."""
    ledger = Ledger()
    senders: dict[tuple[str, str], set[str]] = {}
    for run, kind, sender in sent:
        senders.setdefault((run, kind), set()).add(sender)
    for (run, kind), who in senders.items():
        *scopes, name = kind.split(".")
        # With the last site's part, the coordinator can read a sum, whether or not it announces it.
        if name in OPENING or (name in CONTRIBUTING and who.issuperset(pipeline.sites)):
            for reveal in _reveals_of(job_id, pipeline, step_run(run)):
                if reveal.scope in scopes or not reveal.scope:
                    ledger.note(step_run(run), reveal)
    return report(job_id, pipeline, ledger)


def planned(pipeline: Pipeline) -> list[dict[str, Any]]:
    """What a job may open; lines that depend on what is opened before are marked `may`."""
    lines = [_line(pipeline, None, VERDICTS)]
    for number, step in enumerate(pipeline.steps):
        plan = plan_of(step, len(pipeline.sites))
        lines += [_line(pipeline, number, reveal) for reveal in plan.reveals]
        lines += [{**_line(pipeline, number, reveal), "may": True} for reveal in plan.may_reveal]
    return lines


def planned_ledger(job_id: str, pipeline: Pipeline) -> Ledger:
    """A ledger that lets nothing be opened which the job's plan does not name."""
    return Ledger(cache(lambda run: _reveals_of(job_id, pipeline, run)))


def _reveals_of(job_id: str, pipeline: Pipeline, run: str) -> tuple[Reveal, ...]:
    """Everything that one run of a job may open."""
    number = run.removeprefix(f"{job_id}/")
    if run == job_id:
        return (VERDICTS,)
    if not number.isdigit() or int(number) >= len(pipeline.steps):
        return ()
    return plan_of(pipeline.steps[int(number)], len(pipeline.sites)).all_reveals


def _line(pipeline: Pipeline, number: int | None, reveal: Reveal) -> dict[str, Any]:
    line: dict[str, Any] = {"protocol": "admission"}
    if number is not None:
        step = pipeline.steps[number]
        line = {"step": number, "protocol": step.protocol(len(pipeline.sites)), "columns": step.columns}
    return {**line, "what": reveal.what, "to": reveal.names(pipeline.sites)}
