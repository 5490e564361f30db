"""A pipeline: what an analyst asks for. A TOML file or a Python object; on the wire, a JobSpec.

name = "vital-signs"
sites = ["north", "south", "west"]
deadline_s = 600

[[steps]]
transform = "zscore"
columns = ["age", "blood_pressure"]

A later step works on what earlier steps made of its columns. A table [train] is the last step, by the name `train`.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from google.protobuf.message import DecodeError
from pydantic import Field, field_validator, model_validator

from commonscale.config import Name, Section, read_toml, validate
from commonscale.errors import BadMessage, ConfigError
from commonscale.protocols.admission import MIN_SITES
from commonscale.results import canonical_json
from commonscale.transforms import TRANSFORMS, Transform
from commonscale.v1 import jobs_pb2
from commonscale.version import __version__

if TYPE_CHECKING:
    AnyStep = Transform
else:
    AnyStep = Annotated[functools.reduce(operator.or_, TRANSFORMS.values()), Field(discriminator="transform")]

MAX_SITES = 1000
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
        """A step that names no transform standardizes; [train] is one more step, the last."""
        if not isinstance(content, dict):
            return content
        steps, train = content.get("steps", [] if "train" in content else None), content.get("train")
        if isinstance(steps, list):
            named = [{"transform": "zscore", **step} if isinstance(step, dict) else step for step in steps]
            named += [{**train, "transform": "train"}] if isinstance(train, dict) else []
            return {key: value for key, value in content.items() if key != "train"} | {"steps": named}
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
    def _steps_fit(self) -> Pipeline:
        for step in self.steps:
            step.check_sites(self.sites)
        check_chain(self.steps)
        return self

    def source_columns(self) -> tuple[list[str], list[str], list[str]]:
        """The columns that a site's table must have: as numbers, as texts, and which numbers may lack no value."""
        numeric: dict[str, None] = {}
        texts: dict[str, None] = {}
        complete: dict[str, None] = {}
        made: set[str] = set()
        filled: set[str] = set()
        for step in self.steps:
            numeric |= dict.fromkeys(column for column in step.numeric_columns if column not in made)
            if not step.takes_missing:
                # What is missing in the table is missing after every step on numbers that does not fill it;
                # identifiers lack none.
                needed = [column for column in step.numeric_columns if column not in filled]
                complete |= dict.fromkeys(column for column in needed if column in numeric)
            filled |= set(step.columns) if step.fills else set()
            texts |= dict.fromkeys(column for column in step.text_columns if column not in made)
            made |= set(step.columns) if step.produces else set()
        return list(numeric), list(texts), list(complete)

    @classmethod
    def from_toml(cls, path: Path) -> Pipeline:
        """A pipeline file, checked."""
        return validate(cls, read_toml(path), source=str(path), base=path.parent)

    def to_bytes(self) -> bytes:
        """The spec's bytes, which sites hash and accept."""
        steps = [_to_wire(step) for step in self.steps]
        spec = jobs_pb2.JobSpec(**self.model_dump(exclude={"steps"}), steps=steps, release=__version__)
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
        steps = [_from_wire(number, step, spec.release) for number, step in enumerate(spec.steps)]
        content = {name: getattr(spec, name) for name in ("name", "dataset", "deadline_s")}
        content |= {"sites": list(spec.sites), "steps": steps}
        try:
            return validate(cls, content, source="The job", base=Path())
        except ConfigError as error:
            if spec.release in ("", __version__):
                raise BadMessage(str(error)) from None
            raise BadMessage(
                f"{error} Release {spec.release[:40]} submitted the job; release {__version__} runs here.",
                "Upgrade this daemon.",
            ) from None


def _to_wire(step: Transform) -> jobs_pb2.Step:
    options = step.model_dump(mode="json", exclude={"transform"})
    return jobs_pb2.Step(transform=step.transform, options=canonical_json(options))


def _from_wire(number: int, step: jobs_pb2.Step, release: str) -> dict[str, Any]:
    kind = TRANSFORMS.get(step.transform)
    if kind is None:
        raise _unknown(number, step.transform, "it", release)
    try:
        options = json.loads(step.options, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BadMessage(f"The options of step {number} ({step.transform}) are no JSON.") from None
    if not isinstance(options, dict) or "transform" in options:
        raise BadMessage(f"The options of step {number} ({step.transform}) are no table of options.")
    for option in options:
        if option not in kind.model_fields:
            raise _unknown(number, step.transform, f"its option {option[:100]!r}", release)
    return {**options, "transform": step.transform}


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _unknown(number: int, transform: str, what: str, release: str) -> BadMessage:
    known_by = f"Release {release[:40]}, which submitted the job, does" if release else "Another release may"
    return BadMessage(
        f"Step {number} asks for transform {transform[:100]!r}, and release {__version__}, which runs here, does not "
        f"know {what}. {known_by}.",
        "Upgrade this daemon.",
    )


def check_chain(steps: Sequence[Transform]) -> None:
    """Raise where a step cannot work on what earlier ones left of its columns, or two give one column in conflict."""
    # The last step that changed each column.
    changed: dict[str, int] = {}
    for number, step in enumerate(steps):
        if step.last and number != len(steps) - 1:
            raise ValueError(f"step {number} ({step.transform}) must be the last")
        if getattr(step, "after", "") and number > 0:
            raise ValueError(f"step {number} ({step.transform}) works on an earlier job's result: leave the steps out")
        for column in dict.fromkeys([*step.columns, *step.numeric_columns, *step.text_columns]):
            if column in changed:
                before = changed[column]
                by = f"step {before} ({steps[before].transform})"
                if why_not := _conflict(step, column, steps[before], by):
                    raise ValueError(f"step {number} ({step.transform}) {why_not}")
        if not step.produces:
            continue
        outputs = step.outputs() or []
        for output in outputs:
            if output not in step.columns and output in changed:
                raise ValueError(
                    f"steps {changed[output]} and {number} would both make a column {output!r}: leave one of them out"
                )
        changed |= dict.fromkeys([*step.columns, *outputs], number)


def _conflict(step: Transform, column: str, earlier: Transform, by: str) -> str:
    """Why a step cannot work on what an earlier one left of a column; "" where it can."""
    name = repr(column)
    if step.last and column not in step.columns:
        return f"would predict column {name}, which {by} changes: leave it out there"
    if not step.last and column not in {*earlier.columns} & {*(earlier.outputs() or [])}:
        if column in earlier.columns:
            why, what = f"in whose place {by} has put columns of its own", "name it before, or leave it out"
        else:
            why, what = f"which {by} makes", "name columns of the table, before that step"
        return f"names column {name}, {why}: {what}"
    if earlier.for_sites_alone:
        return f"would open numbers of column {name}, which {by} makes from sums that only the sites see: leave it out"
    if getattr(step, "extends", ""):
        return f"extends an earlier job with column {name}, which {by} changes: leave one of them out"
    if column in step.text_columns and earlier.continuous:
        made = "has made numbers on a scale"
        return f"would compare column {name} as text, of which {by} {made}: put it before that step"
    return ""
