"""A pipeline: what an analyst asks for. A TOML file or a Python object; on the wire, a JobSpec.

name = "vital-signs"
sites = ["north", "south", "west"]
deadline_s = 600

[[steps]]
transform = "zscore"
columns = ["age", "blood_pressure"]
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from google.protobuf.message import DecodeError
from pydantic import Field, field_validator

from commonscale.config import Name, Section, read_toml, validate
from commonscale.errors import BadMessage, ConfigError
from commonscale.protocols.admission import MIN_SITES
from commonscale.v1 import jobs_pb2

MAX_SITES = 1000
MAX_COLUMNS = 10_000
MAX_SPEC_BYTES = 1 << 20

_SUMS = {
    "masks": jobs_pb2.SUMS_MASKS,
    "shares": jobs_pb2.SUMS_SHARES,
    "sac-proportional": jobs_pb2.SUMS_SAC_PROPORTIONAL,
}
_ROUNDS = {"two": jobs_pb2.ZSCORE_ROUNDS_TWO, "one": jobs_pb2.ZSCORE_ROUNDS_ONE}
_SUMS_NAMES = {number: name for name, number in _SUMS.items()}
_ROUNDS_NAMES = {number: name for name, number in _ROUNDS.items()}


class ZScoreStep(Section):
    """Standardize columns with the pooled mean and standard deviation."""

    transform: Literal["zscore"] = "zscore"
    columns: Annotated[list[str], Field(min_length=1, max_length=MAX_COLUMNS)]
    # How the sums are added; see docs/protocols/secure-sum.md.
    sums: Literal["masks", "shares", "sac-proportional"] = "masks"
    # "one" spares a round where that costs no digits.
    rounds: Literal["two", "one"] = "two"

    @field_validator("columns")
    @classmethod
    def _distinct(cls, columns: list[str]) -> list[str]:
        twice = sorted(column for column, count in Counter(columns).items() if count > 1)
        if twice:
            raise ValueError(f"named twice: {', '.join(twice)}")
        if any(not column or len(column) > 200 for column in columns):
            raise ValueError("a column's name has 1 to 200 characters")
        return columns

    def to_wire(self) -> jobs_pb2.Step:
        """As a message."""
        zscore = jobs_pb2.ZScore(sums=_SUMS[self.sums], rounds=_ROUNDS[self.rounds])
        return jobs_pb2.Step(columns=self.columns, zscore=zscore)


class Pipeline(Section):
    """One job: some transforms of some columns at some sites."""

    name: Name = "job"
    dataset: Name = "main"
    sites: Annotated[list[Name], Field(max_length=MAX_SITES)]
    deadline_s: int = Field(default=600, gt=0, le=30 * 24 * 3600)
    steps: Annotated[list[ZScoreStep], Field(min_length=1, max_length=100)]

    @field_validator("sites")
    @classmethod
    def _enough(cls, sites: list[str]) -> list[str]:
        if len(set(sites)) != len(sites):
            raise ValueError("a site is named twice")
        if len(sites) < MIN_SITES:
            raise ValueError(
                f"{len(sites)} sites are too few: a sum needs at least {MIN_SITES}, "
                "because with two each would learn the other's numbers"
            )
        return sites

    @classmethod
    def from_toml(cls, path: Path) -> Pipeline:
        """A pipeline file, checked."""
        return validate(cls, read_toml(path), source=str(path), base=path.parent)

    def to_bytes(self) -> bytes:
        """The spec's bytes, which sites hash and accept."""
        spec = jobs_pb2.JobSpec(
            name=self.name,
            dataset=self.dataset,
            sites=self.sites,
            deadline_s=self.deadline_s,
            steps=[step.to_wire() for step in self.steps],
        )
        return spec.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Pipeline:
        """A peer's spec, checked like a file."""
        if len(raw) > MAX_SPEC_BYTES:
            raise BadMessage("The job specification is too long.")
        try:
            spec = jobs_pb2.JobSpec.FromString(raw)
        except DecodeError:
            raise BadMessage("The job specification is malformed.") from None
        return cls.from_wire(spec)

    @classmethod
    def from_wire(cls, spec: jobs_pb2.JobSpec) -> Pipeline:
        """The same from a parsed message."""
        content = {
            "name": spec.name,
            "dataset": spec.dataset,
            "sites": list(spec.sites),
            "deadline_s": spec.deadline_s,
            "steps": [_step(step) for step in spec.steps],
        }
        try:
            return validate(cls, content, source="The job", base=Path())
        except ConfigError as error:
            raise BadMessage(str(error)) from None


def _step(step: jobs_pb2.Step) -> dict[str, object]:
    if step.WhichOneof("transform") != "zscore":
        raise BadMessage("The job asks for a transform that this release does not know.", "Upgrade this daemon.")
    return {
        "columns": list(step.columns),
        "sums": _SUMS_NAMES.get(step.zscore.sums, "unknown"),
        "rounds": _ROUNDS_NAMES.get(step.zscore.rounds, "unknown"),
    }
