"""The analyst's Python API.

async with Client.from_file("analyst.toml") as client:
    job = await client.submit(Pipeline(sites=["north", "south", "west"], steps=[{"columns": ["age"]}]))
    job = await client.wait(job.id)
    print(job.result)
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonscale import config, rpc
from commonscale.config import AnalystConfig
from commonscale.errors import JobFailed, Refused, TransientError
from commonscale.link import Backoff, Link
from commonscale.pipeline import Pipeline
from commonscale.results import MODEL_KEY
from commonscale.v1 import jobs_pb2


@dataclass(frozen=True)
class Job:
    """A job as the coordinator last described it."""

    wire: jobs_pb2.Job

    @property
    def id(self) -> str:
        """Its name for all other calls."""
        return self.wire.id

    @property
    def state(self) -> str:
        """inviting, running, done, failed, refused or cancelled."""
        return jobs_pb2.JobState.Name(self.wire.state).removeprefix("JOB_STATE_").lower()

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return bool(self.wire.ended_at_ms)

    @property
    def seconds(self) -> float:
        """From submission to its end."""
        return (self.wire.ended_at_ms - self.wire.submitted_at_ms) / 1000

    @property
    def result(self) -> list[dict[str, Any]]:
        """Parameters, one object per step; raises the job's error if it did not end well."""
        if self.state == "refused":
            raise Refused(self.wire.error)
        if self.state != "done":
            raise JobFailed(self.wire.error or f"Job {self.id} is {self.state}.")
        found: list[dict[str, Any]] = json.loads(self.wire.result_json)
        return [{name: value for name, value in step.items() if name != MODEL_KEY} for step in found]

    @property
    def model(self) -> bytes | None:
        """The trained model as a safetensors file, if every site's policy lets the analyst have it."""
        steps = json.loads(self.wire.result_json) if self.state == "done" and self.wire.result_json else []
        return next((base64.b64decode(step[MODEL_KEY]) for step in steps if MODEL_KEY in step), None)

    @property
    def disclosures(self) -> list[dict[str, Any]]:
        """What was revealed, to whom, by which protocol."""
        found: list[dict[str, Any]] = json.loads(self.wire.disclosure_json or '{"revealed": []}')["revealed"]
        return found

    @property
    def training(self) -> dict[str, Any] | None:
        """How far a job that trains is, with the pooled figures so far; none when it does not."""
        progress = self.wire.progress
        if not progress.HasField("training"):
            return None
        found = progress.training
        return {
            "step": found.step,
            "done": found.done,
            "rounds": found.rounds,
            "round_s": found.round_s or None,
            "lost": list(found.lost),
            "figures": [
                {"loss": one.loss, **{field.name: value for field, value in one.ListFields()}} for one in found.figures
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        """For `--format json`."""
        progress = self.wire.progress
        done = {"round": progress.round, "awaited": list(progress.awaited), "messages": progress.messages}
        if (training := self.training) is not None:
            done["training"] = training
        return {
            "job": self.id,
            "name": self.wire.spec.name,
            "state": self.state,
            "analyst": self.wire.analyst,
            "sites": list(self.wire.spec.sites),
            "submitted_at_ms": self.wire.submitted_at_ms,
            "ended_at_ms": self.wire.ended_at_ms or None,
            "error": self.wire.error or None,
            "progress": done,
            "result": self.result if self.state == "done" and self.wire.result_json else None,
            "disclosures": self.disclosures,
        }


def new_job_id(pipeline: Pipeline) -> str:
    """The pipeline's name and something that makes it unique."""
    return f"{pipeline.name}-{secrets.token_hex(4)}"


class Client:
    """A session with the coordinator."""

    def __init__(self, settings: AnalystConfig) -> None:
        self._link = Link(settings.coordinator, settings.tls)

    @classmethod
    def from_file(cls, path: str | Path) -> Client:
        """With the settings of an analyst.toml."""
        return cls(config.load(AnalystConfig, Path(path)))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._link.close()

    async def submit(self, pipeline: Pipeline, job_id: str | None = None) -> Job:
        """Start a job. Repeated with the same id and pipeline, it finds the job started."""
        request = jobs_pb2.SubmitRequest(job_id=job_id or new_job_id(pipeline), spec=pipeline.to_bytes())
        return Job((await self._link.call(self._link.jobs.Submit, request)).job)

    async def get(self, job_id: str) -> Job:
        """A job as it is now."""
        return Job((await self._link.call(self._link.jobs.Get, jobs_pb2.GetRequest(job_id=job_id))).job)

    async def list(self, limit: int = 50) -> list[Job]:
        """The newest jobs."""
        response = await self._link.call(self._link.jobs.List, jobs_pb2.ListRequest(limit=limit))
        return [Job(job) for job in response.jobs]

    async def cancel(self, job_id: str) -> Job:
        """End a job for everyone."""
        return Job((await self._link.call(self._link.jobs.Cancel, jobs_pb2.CancelRequest(job_id=job_id))).job)

    async def watch(self, job_id: str) -> AsyncIterator[Job]:
        """The job at every change until it has ended, across restarts of the coordinator."""
        backoff = Backoff()
        while True:
            with suppress(TransientError), self._link.our_errors():
                async for response in self._link.jobs.Watch(
                    jobs_pb2.WatchRequest(job_id=job_id), metadata=rpc.CALL_METADATA
                ):
                    backoff.reset()
                    job = Job(response.job)
                    yield job
                    if job.ended:
                        return
            await backoff.wait()

    async def wait(self, job_id: str) -> Job:
        """The job once it has ended."""
        async for job in self.watch(job_id):
            last = job
        return last
