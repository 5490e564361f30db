"""Steps of an earlier job, as this site keeps them in its results: a training may go on from there."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from commonscale.errors import Refused, StateLost
from commonscale.estimators import storage
from commonscale.estimators.assembly import FittedStep
from commonscale.transforms import TRANSFORMS
from participant.transform import RECORD_FILE, record_beside


@dataclass(frozen=True)
class EarlierSteps:
    """What they do to rows, and a hash of what all sites of that job found."""

    steps: list[FittedStep]
    digest: str


def earlier_steps(results: Path, job_id: str, dataset: str) -> EarlierSteps:
    """Read a job's steps; Refused if this site has no result of it on this data set."""
    directory = results / job_id
    record = record_beside(directory / RECORD_FILE)
    if record is None:
        raise Refused(f"Job {job_id} has left nothing here that does something to rows.")
    if record.dataset != dataset:
        raise Refused(f"Its result of job {job_id} is of data set {record.dataset!r}, not {dataset!r}.")
    try:
        found = sorted((_numbered(path) for path in directory.glob("*-*.skops")), key=lambda pair: pair[0])
        digest = hashlib.sha256((directory / "parameters.json").read_bytes()).hexdigest()
    except (OSError, ValueError):
        raise StateLost(
            f"What this site kept of job {job_id} cannot be read.", "Restore its results, or run that job again."
        ) from None
    return EarlierSteps([step for _, step in found], digest)


def _numbered(path: Path) -> tuple[int, FittedStep]:
    """A step's file is called NUMBER-TRANSFORM.skops."""
    number, _, transform = path.stem.partition("-")
    return int(number), FittedStep(path.stem, storage.load(path), TRANSFORMS[transform].reads_texts)
