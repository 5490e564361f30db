"""A site's policy: what may be computed on its rows. A refusal says why, and nothing of the data."""

from __future__ import annotations

from fnmatch import fnmatchcase

from commonscale.config import Policy
from commonscale.encodingspec import IdentifierStep, TargetStep
from commonscale.errors import Refused
from commonscale.pipeline import Pipeline
from crypto import native_apsi


def check_request(policy: Policy, pipeline: Pipeline, analyst: str) -> None:
    """Raise Refused unless the policy allows this job."""
    if not _any_match(analyst, policy.analysts):
        raise Refused(f"Its policy does not allow jobs of analyst {analyst!r}.")
    if len(pipeline.sites) < policy.min_sites:
        raise Refused(f"Its policy asks for at least {policy.min_sites} sites; the job names {len(pipeline.sites)}.")
    for step in pipeline.steps:
        if step.transform not in policy.transforms:
            raise Refused(f"Its policy does not allow the transform {step.transform!r}.")
        for way in sorted(step.ways_for(len(pipeline.sites)) - set(policy.sums)):
            raise Refused(f"Its policy does not allow sums by {way!r}; allowed: {', '.join(policy.sums)}.")
        if step.ckks_options and step.ckks_options.profile == "test" and not policy.test_profile:
            raise Refused("Its policy does not allow the profile 'test', which is not secure.")
        if isinstance(step, IdentifierStep) and _compares(step) and step.variant not in policy.identifiers:
            allowed = ", ".join(policy.identifiers)
            raise Refused(f"Its policy does not allow identifiers by {step.variant!r}; allowed: {allowed}.")
        for column in dict.fromkeys([*step.columns, *step.numeric_columns]):
            if not _any_match(column, policy.columns):
                raise Refused(f"Its policy does not allow the column {column!r}.")


def check_machine(pipeline: Pipeline) -> None:
    """Raise Refused where a step asks for what this machine cannot run: now, and not in the middle of the job."""
    if any(
        isinstance(step, IdentifierStep) and step.backend == "native" and _compares(step) for step in pipeline.steps
    ):
        try:
            native_apsi.available()
        except native_apsi.UnavailableError as error:
            raise Refused(f"Its machine cannot run backend 'native': {error}") from None


def _compares(step: IdentifierStep) -> bool:
    return not (isinstance(step, TargetStep) and step.means == "local")


def check_rows(policy: Policy, rows: int) -> None:
    """Raise Refused, without saying how many rows there are, where they are too few."""
    if rows < policy.min_rows:
        raise Refused(f"Its table has fewer rows than its policy's minimum of {policy.min_rows}.")


def _any_match(value: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(value, pattern) for pattern in patterns)
