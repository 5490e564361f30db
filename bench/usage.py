"""One job on a federation of real processes, and what the federation has used so far."""

import urllib.request
from typing import Any

import psutil

from commonscale.audit import verify
from commonscale.client import Client, Job
from commonscale.localnet import LocalFederation, Process
from commonscale.pipeline import Pipeline


def usage(federation: LocalFederation) -> dict[str, float]:
    """CPU seconds of all daemons and workers, and round messages' bytes of all sites."""
    totals = {"cpu": 0.0, "sent": 0.0, "received": 0.0}
    for process in (*federation.coordinators(), *federation.participants.values(), *federation.workers.values()):
        assert process.process is not None
        times = psutil.Process(process.process.pid).cpu_times()
        totals["cpu"] += times.user + times.system
    for participant in federation.participants.values():
        for event, value in _message_bytes(participant).items():
            totals[event] += value
    return totals


def _message_bytes(participant: Process) -> dict[str, float]:
    port = participant.wait_ready()["http_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    prefix = "commonscale_message_bytes_total{event="
    found = {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(prefix)}
    return {event: found.get(event, 0.0) for event in ("sent", "received")}


DEADLINE_S = 3600


async def finished_job(federation: LocalFederation, step: dict[str, Any]) -> Job:
    """Submit one step to all sites and wait for its end; raises the job's error if it did not end well."""
    async with Client(federation.analyst()) as client:
        pipeline = Pipeline.model_validate(
            {"name": "bench", "sites": federation.sites, "deadline_s": DEADLINE_S, "steps": [step]}
        )
        job = await client.wait((await client.submit(pipeline)).id)
        _ = job.result
        return job


def sent_by_a_site(federation: LocalFederation, job_id: str) -> list[dict[str, Any]]:
    """What the first site sent in a job, from its audit log."""
    entries = verify(federation.directory / federation.sites[0] / "state" / "audit.jsonl")
    return [entry for entry in entries if entry["what"] == "sent" and entry["run"].partition("/")[0] == job_id]
