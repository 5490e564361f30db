"""The steps of a pipeline, one model a transform: what a file may say, and the same as a message."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from google.protobuf.message import Message
from pydantic import Field, field_validator, model_validator

from commonscale.config import Section
from commonscale.v1 import jobs_pb2

MAX_COLUMNS = 10_000
MAX_QUANTILES = 100
# Numbers in a ciphertext.
SLOTS = {"standard": 1 << 13, "high-latency": 1 << 14, "test": 1 << 10}
# A round's message of a search stays below this, so that it is one chunk on the wire.
MAX_MESSAGE_BYTES = 1 << 20

Positive = Annotated[float, Field(gt=0, lt=1e150, allow_inf_nan=False)]


def enum_numbers(prefix: str, names: list[str], numbers: Any) -> dict[str, int]:
    """Names of a file with the numbers of the wire: "all-pairs" is EXTREMES_VARIANT_ALL_PAIRS."""
    return {name: numbers.Value(f"{prefix}_{name.upper().replace('-', '_')}") for name in names}


SUMS = enum_numbers("SUMS", ["masks", "shares", "sac-proportional", "ckks"], jobs_pb2.Sums)
ROUNDS = enum_numbers("ZSCORE_ROUNDS", ["two", "one"], jobs_pb2.ZScoreRounds)
EXTREMES = enum_numbers(
    "EXTREMES_VARIANT", ["auto", "search", "sequential", "tree", "all-pairs"], jobs_pb2.ExtremesVariant
)
RANKS = enum_numbers("RANKS_VARIANT", ["counts", "private", "binary"], jobs_pb2.RanksVariant)
PROFILES = enum_numbers("CKKS_PROFILE", ["standard", "high-latency", "test"], jobs_pb2.CkksProfile)
KEY_USES = enum_numbers("KEY_USE", ["fresh", "reuse"], jobs_pb2.KeyUse)


def name_of(numbers: dict[str, int], value: int) -> str:
    """The name of a wire's number."""
    return next((name for name, number in numbers.items() if number == value), "unknown")


def digit_bits(searches: int) -> int:
    """How many bits of every answer a round of a search finds."""
    fitting = (bits for bits in (16, 8, 4, 2) if searches * ((1 << bits) - 1) * 8 <= MAX_MESSAGE_BYTES)
    return next(fitting, 1)


class CkksOptions(Section):
    """How a computation under encryption is done; see docs/protocols/ckks.md."""

    # "test" is quick and NOT secure: sites refuse it unless their policy allows it.
    profile: Literal["standard", "high-latency", "test"] = "standard"
    keys: Literal["fresh", "reuse"] = "fresh"
    # Bounds of the magnitudes, one for all columns or one each. Without them the sites find powers of two privately.
    max_abs: tuple[Positive, ...] = ()
    # Secret-share the key shares, so that the others can stand in for a site that is lost on the way.
    recovery: bool = False
    # How long a site may be silent before it counts as lost.
    recovery_after_s: int = Field(default=60, ge=1, le=86_400)

    def to_wire(self) -> jobs_pb2.Ckks:
        """As a message."""
        return jobs_pb2.Ckks(
            profile=PROFILES[self.profile],  # type: ignore[arg-type]
            keys=KEY_USES[self.keys],  # type: ignore[arg-type]
            max_abs=self.max_abs,
            recovery=self.recovery,
            recovery_after_s=self.recovery_after_s,
        )

    @staticmethod
    def content(ckks: jobs_pb2.Ckks) -> dict[str, Any]:
        """From a message, to be checked."""
        return {
            "profile": name_of(PROFILES, ckks.profile),
            "keys": name_of(KEY_USES, ckks.keys),
            "max_abs": list(ckks.max_abs),
            "recovery": ckks.recovery,
            "recovery_after_s": ckks.recovery_after_s,
        }


class Step(Section, ABC):
    """What all steps have."""

    field: ClassVar[str]
    transform: str
    columns: Annotated[list[str], Field(min_length=1, max_length=MAX_COLUMNS)]

    @field_validator("columns")
    @classmethod
    def _distinct(cls, columns: list[str]) -> list[str]:
        twice = sorted(column for column, count in Counter(columns).items() if count > 1)
        if twice:
            raise ValueError(f"named twice: {', '.join(twice)}")
        if any(not column or len(column) > 200 for column in columns):
            raise ValueError("a column's name has 1 to 200 characters")
        return columns

    @model_validator(mode="after")
    def _bounds_fit(self) -> Step:
        bounds = self.ckks_options.max_abs if self.ckks_options else ()
        options = self.ckks_options
        if options and options.recovery and options.keys == "reuse":
            raise ValueError("keys that are used again are not put into escrow: leave out recovery or keys = 'reuse'")
        if len(bounds) not in (0, 1, len(self.columns)):
            raise ValueError(
                f"max_abs has {len(bounds)} numbers for {len(self.columns)} columns; give one, or one each"
            )
        return self

    @classmethod
    def wire_field(cls) -> str:
        """Its name in the message's oneof."""
        return cls.field

    @property
    def numeric_columns(self) -> list[str]:
        """Columns that must hold numbers."""
        return self.columns

    @property
    def categorical_columns(self) -> list[str]:
        """Columns whose values are compared as texts."""
        return []

    @property
    def ckks_options(self) -> CkksOptions | None:
        """How it computes under encryption, if it does."""
        return getattr(self, "ckks", None)

    def ways_for(self, sites: int) -> set[str]:
        """The ways to add that a site's policy must allow, with so many sites."""
        return {str(getattr(self, "sums", "masks"))}

    @abstractmethod
    def body(self) -> Message:
        """The transform's own message."""

    def to_wire(self) -> jobs_pb2.Step:
        """As a message."""
        step = jobs_pb2.Step(columns=self.columns)
        getattr(step, self.field).CopyFrom(self.body())
        return step

    @classmethod
    def content(cls, step: jobs_pb2.Step) -> dict[str, Any]:
        """From a message, to be checked like a file."""
        name = cls.model_fields["transform"].default
        return {"transform": name, "columns": list(step.columns), **cls.fields(getattr(step, cls.field))}

    @classmethod
    @abstractmethod
    def fields(cls, body: Any) -> dict[str, Any]:
        """The transform's own fields."""


class ZScoreStep(Step):
    """Standardize columns with the pooled mean and standard deviation."""

    field = "zscore"
    transform: Literal["zscore"] = "zscore"
    # How the sums are added; see docs/protocols/secure-sum.md. "ckks" does not even reveal the counts.
    sums: Literal["masks", "shares", "sac-proportional", "ckks"] = "masks"
    # "one" spares a round where that costs no digits; not with ckks.
    rounds: Literal["two", "one"] = "two"
    ckks: CkksOptions = CkksOptions()
    # With ckks: the most rows there may be at all sites together. Fewer are quicker, and more exact for few rows: 1e-7
    # needs about 100 rows with the default.
    max_rows: int = Field(default=1 << 20, ge=1 << 8, le=1 << 30)

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.ZScore(
            sums=SUMS[self.sums],  # type: ignore[arg-type]
            rounds=ROUNDS[self.rounds],  # type: ignore[arg-type]
            ckks=self.ckks.to_wire(),
            max_rows=self.max_rows,
        )

    @classmethod
    def fields(cls, body: jobs_pb2.ZScore) -> dict[str, Any]:
        """From a message."""
        return {
            "sums": name_of(SUMS, body.sums),
            "rounds": name_of(ROUNDS, body.rounds),
            "ckks": CkksOptions.content(body.ckks),
            "max_rows": body.max_rows,
        }


@dataclass(frozen=True)
class Choice:
    """Which variant runs, and why."""

    variant: str
    why: str


def _log2(number: int) -> int:
    """Rounded up."""
    return (number - 1).bit_length()


class ExtremesStep(Step):
    """What min-max and max-abs share."""

    variant: Literal["auto", "search", "sequential", "tree", "all-pairs"] = "auto"
    ckks: CkksOptions = CkksOptions()
    # Between a site and the coordinator; decides with "auto".
    latency_ms: int = Field(default=10, ge=0, le=100_000)

    def ways_for(self, sites: int) -> set[str]:
        """A search needs masks; comparisons under encryption need ckks, and masks to find bounds."""
        return {"masks"} if self.choice(sites).variant == "search" else {"ckks", "masks"}

    def choice(self, sites: int) -> Choice:
        """With "auto": the variant with the least time by a simple model, the same at every role."""
        if self.variant != "auto":
            return Choice(self.variant, "asked for")
        times = self._estimates(sites)
        best = min(times, key=lambda name: times[name])
        estimates = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items())
        why = f"{sites} sites, {len(self.columns)} columns, {self.latency_ms} ms latency: estimated {estimates}"
        return Choice(best, why + ("; search is also exact" if best == "search" else ""))

    def _estimates(self, sites: int) -> dict[str, float]:
        """Seconds: rounds, each with its latency, its cost a site, and its bytes. Measured on two cores."""
        numbers, slots = 2 * len(self.columns), SLOTS[self.ckks.profile]
        bits = digit_bits(numbers)
        search = 64 // bits * (2 * self.latency_ms + 3 * sites + numbers * 2**bits * 8e-6) / 1000
        found = {"search": search}
        keys_s = 0.4 * sites
        for name, rows, rounds in (("all-pairs", sites * (sites - 1), 18), ("tree", sites, 9 * _log2(sites) + 4)):
            if slots // rows >= 2:
                chunks = -(-numbers // (slots // rows))
                found[name] = keys_s + rounds * (2 * self.latency_ms + 25 * sites * chunks) / 1000
        return found


class MinMaxStep(ExtremesStep):
    """Bring columns into a range by their pooled minimum and maximum."""

    field = "minmax"
    transform: Literal["minmax"] = "minmax"
    feature_range: tuple[float, float] = (0.0, 1.0)
    clip: bool = False

    @field_validator("feature_range")
    @classmethod
    def _ascending(cls, feature_range: tuple[float, float]) -> tuple[float, float]:
        if not (all(map(math.isfinite, feature_range)) and feature_range[0] < feature_range[1]):
            raise ValueError("the range's first number must be below its second")
        return feature_range

    def body(self) -> Message:
        """As a message."""
        low, high = self.feature_range
        return jobs_pb2.MinMax(
            variant=EXTREMES[self.variant],  # type: ignore[arg-type]
            range_low=low,
            range_high=high,
            clip=self.clip,
            ckks=self.ckks.to_wire(),
            latency_ms=self.latency_ms,
        )

    @classmethod
    def fields(cls, body: jobs_pb2.MinMax) -> dict[str, Any]:
        """From a message."""
        return {
            "variant": name_of(EXTREMES, body.variant),
            "feature_range": (body.range_low, body.range_high),
            "clip": body.clip,
            "ckks": CkksOptions.content(body.ckks),
            "latency_ms": body.latency_ms,
        }


class MaxAbsStep(ExtremesStep):
    """Divide columns by their largest pooled magnitude."""

    field = "maxabs"
    transform: Literal["maxabs"] = "maxabs"

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.MaxAbs(
            variant=EXTREMES[self.variant],  # type: ignore[arg-type]
            ckks=self.ckks.to_wire(),
            latency_ms=self.latency_ms,
        )

    @classmethod
    def fields(cls, body: jobs_pb2.MaxAbs) -> dict[str, Any]:
        """From a message."""
        return {
            "variant": name_of(EXTREMES, body.variant),
            "ckks": CkksOptions.content(body.ckks),
            "latency_ms": body.latency_ms,
        }


class RanksStep(Step):
    """What robust scaling and quantiles share."""

    # "counts" reveals n and the pooled distribution around each answer, "private" n and the answers alone (slower,
    # under encryption); "binary" is the paper's loop.
    variant: Literal["counts", "private", "binary"] = "counts"
    sums: Literal["masks", "shares", "ckks"] = "masks"
    ckks: CkksOptions = CkksOptions()
    # Where the binary variant stops.
    epsilon: Positive = 1e-4

    def ways_for(self, _: int) -> set[str]:
        """The binary and private variants compute under encryption, after bounds or counts by masks."""
        return {self.sums} if self.variant == "counts" else {"ckks", "masks"}


class RobustStep(RanksStep):
    """Centre columns by their pooled median, and scale them by a pooled interquantile range."""

    field = "robust"
    transform: Literal["robust"] = "robust"
    # In percent, as scikit-learn's.
    quantile_range: tuple[float, float] = (25.0, 75.0)
    with_centering: bool = True
    with_scaling: bool = True
    unit_variance: bool = False

    @field_validator("quantile_range")
    @classmethod
    def _inside(cls, quantile_range: tuple[float, float]) -> tuple[float, float]:
        low, high = quantile_range
        if not 0 <= low < high <= 100:
            raise ValueError("give two percentages, the lower one first")
        return quantile_range

    def body(self) -> Message:
        """As a message."""
        low, high = self.quantile_range
        return jobs_pb2.Robust(
            variant=RANKS[self.variant],  # type: ignore[arg-type]
            sums=SUMS[self.sums],  # type: ignore[arg-type]
            quantile_low=low,
            quantile_high=high,
            with_centering=self.with_centering,
            with_scaling=self.with_scaling,
            unit_variance=self.unit_variance,
            ckks=self.ckks.to_wire(),
            epsilon=self.epsilon,
        )

    @classmethod
    def fields(cls, body: jobs_pb2.Robust) -> dict[str, Any]:
        """From a message."""
        return {
            "variant": name_of(RANKS, body.variant),
            "sums": name_of(SUMS, body.sums),
            "quantile_range": (body.quantile_low, body.quantile_high),
            "with_centering": body.with_centering,
            "with_scaling": body.with_scaling,
            "unit_variance": body.unit_variance,
            "ckks": CkksOptions.content(body.ckks),
            "epsilon": body.epsilon,
        }


class QuantilesStep(RanksStep):
    """Ranked elements of pooled columns, for a person to read; no estimator comes of it."""

    field = "quantiles"
    transform: Literal["quantiles"] = "quantiles"
    # Between 0 and 1, interpolated as numpy does.
    quantiles: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=MAX_QUANTILES)
    ] = (0.25, 0.5, 0.75)

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.Quantiles(
            variant=RANKS[self.variant],  # type: ignore[arg-type]
            sums=SUMS[self.sums],  # type: ignore[arg-type]
            quantiles=self.quantiles,
            ckks=self.ckks.to_wire(),
            epsilon=self.epsilon,
        )

    @classmethod
    def fields(cls, body: jobs_pb2.Quantiles) -> dict[str, Any]:
        """From a message."""
        return {
            "variant": name_of(RANKS, body.variant),
            "sums": name_of(SUMS, body.sums),
            "quantiles": list(body.quantiles),
            "ckks": CkksOptions.content(body.ckks),
            "epsilon": body.epsilon,
        }


class YeoJohnsonStep(Step):
    """Make columns more like a normal distribution, with the pooled maximum-likelihood lambda of each."""

    field = "yeo_johnson"
    transform: Literal["yeo-johnson"] = "yeo-johnson"
    sums: Literal["masks", "shares"] = "masks"
    standardize: bool = True

    def ways_for(self, _: int) -> set[str]:
        """Bounds are found by masks."""
        return {self.sums, "masks"}

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.YeoJohnson(sums=SUMS[self.sums], standardize=self.standardize)  # type: ignore[arg-type]

    @classmethod
    def fields(cls, body: jobs_pb2.YeoJohnson) -> dict[str, Any]:
        """From a message."""
        return {"sums": name_of(SUMS, body.sums), "standardize": body.standardize}
