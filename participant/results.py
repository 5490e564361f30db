"""What a job leaves at a site: estimators and parameters in results/JOB/, and what later steps see of earlier ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonscale.errors import ConfigError
from commonscale.estimators import assembly, storage
from commonscale.estimators.assembly import FittedStep
from commonscale.files import replace_file, write_private
from commonscale.pipeline import Pipeline
from commonscale.results import canonical_json
from commonscale.sources.source import Source
from commonscale.sources.view import view
from commonscale.transforms import Transform
from participant.keepsakes import MEMORY_FILE
from participant.transform import RECORD_FILE, PipelineRecord


@dataclass(frozen=True)
class StepResult:
    """A step, what it has found out, and what it does to rows, if it does anything."""

    step: Transform
    fitted: Any
    on_rows: FittedStep | None

    @classmethod
    def of(cls, number: int, step: Transform, fitted: Any) -> StepResult:
        """With its estimator."""
        name, estimator = f"{number}-{step.transform}", step.estimator(fitted)
        return cls(step, fitted, FittedStep(name, estimator, step.reads_texts) if estimator is not None else None)


def seen_by(source: Source, done: Sequence[StepResult], step: Transform, file: Path) -> Source:
    """What a step sees: the source, after the earlier steps that have changed its columns."""
    return view(source, on_rows(done), step.numeric_columns, step.text_columns, file)


def check_names(done: Sequence[StepResult], pipeline: Pipeline) -> None:
    """Raise where a step has made a column whose name another step uses; which, only its site may know."""
    for result in done:
        others = {name for step in pipeline.steps if step is not result.step for name in step.columns}
        others |= {name for other in on_rows(done) if other is not result.on_rows for name in other.outputs}
        if result.on_rows and others & (result.on_rows.outputs.keys() - result.on_rows.columns.keys()):
            raise ConfigError(
                f"Step {result.on_rows.name!r} makes a column whose name another step of the job uses too.",
                "Rename that column of the table at every site, or leave one of the steps out.",
            )


def save(directory: Path, done: Sequence[StepResult], dataset: str, missing: Sequence[str]) -> bytes:
    """Everything into a directory; returns the hash of the parameters, which all roles compare."""
    directory.mkdir(parents=True, exist_ok=True)
    if steps := on_rows(done):
        for step in steps:
            storage.save(step.estimator, directory / f"{step.name}.skops")
        save_pipeline(directory, steps, dataset, missing)
    _save_memories(directory, done, dataset)
    for result in done:
        for name, content in result.step.files(result.fitted, directory.name).items():
            replace_file(directory / name, content)
    text = canonical_json([result.step.parameters(result.fitted) for result in done])
    replace_file(directory / "parameters.json", text.encode())
    return hashlib.sha256(text.encode()).digest()


def save_pipeline(directory: Path, steps: Sequence[FittedStep], dataset: str, missing: Sequence[str]) -> None:
    """All steps as one estimator, and beside it what is needed to read a table as the job did."""
    pipeline = assembly.assemble(steps)
    numbers, texts = assembly.table_columns(pipeline)
    _, outputs = assembly.table_and_outputs(steps)
    record = PipelineRecord(dataset=dataset, missing=list(missing), numbers=numbers, texts=texts, outputs=outputs)
    # First, so that an estimator is never without it.
    replace_file(directory / RECORD_FILE, record.model_dump_json(indent=2).encode())
    storage.save(pipeline, directory / "pipeline.skops")


def on_rows(done: Sequence[StepResult]) -> list[FittedStep]:
    """Those that do something to rows."""
    return [result.on_rows for result in done if result.on_rows is not None]


def _save_memories(directory: Path, done: Sequence[StepResult], dataset: str) -> None:
    """What a later job that extends this one needs."""
    memories = [memory for result in done if (memory := result.step.memory(result.fitted)) is not None]
    if memories:
        # After a crash, again: the same.
        (directory / MEMORY_FILE).unlink(missing_ok=True)
        write_private(directory / MEMORY_FILE, json.dumps([{**m, "dataset": dataset} for m in memories]).encode())
