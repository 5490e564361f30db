"""A pipeline: what an analyst asks for. A TOML file or a Python object; on the wire, a JobSpec.

name = "vital-signs"
sites = ["north", "south", "west"]
deadline_s = 600

[[steps]]
transform = "zscore"
columns = ["age", "blood_pressure"]
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, get_args

from google.protobuf.message import DecodeError
from pydantic import Field, field_validator, model_validator

from commonscale.config import Name, Section, read_toml, validate
from commonscale.encodingspec import (
    BytesNormStep,
    FastTextStep,
    IdentifierStep,
    ModNormStep,
    OneHotStep,
    OrdinalStep,
    RollingHashStep,
    TargetStep,
)
from commonscale.errors import BadMessage, ConfigError
from commonscale.protocols.admission import MIN_SITES
from commonscale.stepspec import (
    SLOTS,
    ExtremesStep,
    MaxAbsStep,
    MinMaxStep,
    QuantilesStep,
    RobustStep,
    Step,
    YeoJohnsonStep,
    ZScoreStep,
)
from commonscale.v1 import jobs_pb2

NumericStep = ZScoreStep | MinMaxStep | MaxAbsStep | RobustStep | QuantilesStep | YeoJohnsonStep
EncodingStep = OneHotStep | OrdinalStep | TargetStep | BytesNormStep | ModNormStep | FastTextStep | RollingHashStep
AnyStep = Annotated[NumericStep | EncodingStep, Field(discriminator="transform")]
STEPS: tuple[type[Step], ...] = (*get_args(NumericStep), *get_args(EncodingStep))

MAX_SITES = 1000
# Sites that over-threshold intersection tries together.
MAX_COMBINATIONS = 1_000_000
MAX_SPEC_BYTES = 1 << 20


class Pipeline(Section):
    """One job: some transforms of some columns at some sites."""

    name: Name = "job"
    dataset: Name = "main"
    sites: Annotated[list[Name], Field(max_length=MAX_SITES)]
    deadline_s: int = Field(default=600, gt=0, le=30 * 24 * 3600)
    steps: Annotated[list[AnyStep], Field(min_length=1, max_length=100)]

    @model_validator(mode="before")
    @classmethod
    def _transform_is_named(cls, content: Any) -> Any:
        """A step that names no transform standardizes."""
        if isinstance(content, dict) and isinstance(content.get("steps"), list):
            named = [{"transform": "zscore", **step} if isinstance(step, dict) else step for step in content["steps"]]
            return {**content, "steps": named}
        return content

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

    @model_validator(mode="after")
    def _sites_fit(self) -> Pipeline:
        for step in self.steps:
            if isinstance(step, ExtremesStep) and step.variant == "all-pairs":
                pairs, slots = len(self.sites) * (len(self.sites) - 1), SLOTS[step.ckks.profile]
                if slots // pairs < 2:
                    raise ValueError(f"all-pairs has no room for {len(self.sites)} sites: use tree or search")
            if isinstance(step, IdentifierStep) and step.threshold > len(self.sites):
                raise ValueError(f"a threshold of {step.threshold} is more than {len(self.sites)} sites can hold")
            if isinstance(step, IdentifierStep) and math.comb(len(self.sites), step.threshold) > MAX_COMBINATIONS:
                raise ValueError(f"there are too many ways to choose {step.threshold} of {len(self.sites)} sites")
        return self

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


def _step(step: jobs_pb2.Step) -> dict[str, Any]:
    field = step.WhichOneof("transform")
    kind = next((kind for kind in STEPS if kind.wire_field() == field), None)
    if kind is None:
        raise BadMessage("The job asks for a transform that this release does not know.", "Upgrade this daemon.")
    return kind.content(step)
