"""The steps of a pipeline that encode categorical columns: what a file may say, and the same as a message."""

from __future__ import annotations

from typing import Any, Literal

from google.protobuf.message import Message
from pydantic import Field, model_validator

from commonscale.slot import JOB_ID_PATTERN
from commonscale.stepspec import Step, enum_numbers, name_of
from commonscale.transforms.categories import TextRules
from commonscale.v1 import jobs_pb2

VARIANTS = enum_numbers("IDENTIFIER_VARIANT", ["ring", "apsi", "otmppsi", "oprf"], jobs_pb2.IdentifierVariant)
BACKENDS = enum_numbers("APSI_BACKEND", ["openfhe", "native"], jobs_pb2.ApsiBackend)
UNKNOWN = enum_numbers("HANDLE_UNKNOWN", ["ignore", "error", "infrequent-if-exist"], jobs_pb2.HandleUnknown)
TARGETS = enum_numbers("TARGET_VARIANT", ["federated", "local"], jobs_pb2.TargetVariant)
FORMULAS = enum_numbers("TARGET_FORMULA", ["mean", "printed"], jobs_pb2.TargetFormula)

# Identifiers that a site takes beyond its values in the ring, at most.
DEFAULT_PADDING = 16
MAX_CATEGORIES = 1 << 20


class CategoricalStep(Step):
    """What all encodings share: which differences between two texts count."""

    strip: bool = True
    casefold: bool = False

    @property
    def numeric_columns(self) -> list[str]:
        """None: its columns hold texts."""
        return []

    @property
    def categorical_columns(self) -> list[str]:
        """Columns whose values are compared as texts."""
        return self.columns

    @property
    def rules(self) -> TextRules:
        """As the tables apply them."""
        return TextRules(self.strip, self.casefold)

    def texts(self) -> jobs_pb2.Texts:
        """As a message."""
        return jobs_pb2.Texts(keep_space=not self.strip, casefold=self.casefold)

    @staticmethod
    def text_fields(texts: jobs_pb2.Texts) -> dict[str, Any]:
        """From a message."""
        return {"strip": not texts.keep_space, "casefold": texts.casefold}


class IdentifierStep(CategoricalStep):
    """What encodings by common identifiers share; see docs/protocols/categories.md."""

    # "oprf" is the quickest; "apsi" shows the coordinator nothing; "otmppsi" only merges what `threshold` sites hold;
    # "ring" gives the same value another identifier at every site.
    variant: Literal["oprf", "apsi", "otmppsi", "ring"] = "oprf"
    # The most values of a site in a column. 0: the sites find a power of two privately.
    max_categories: int = Field(default=0, ge=0, le=MAX_CATEGORIES)
    padding: int = Field(default=DEFAULT_PADDING, ge=0, le=1 << 16)
    threshold: int = Field(default=2, ge=2, le=1000)
    general: bool = False
    both_directions: bool = False
    backend: Literal["openfhe", "native"] = "openfhe"
    extends: str = Field(default="", pattern=rf"^$|^{JOB_ID_PATTERN.pattern}$")
    min_frequency: int = Field(default=0, ge=0, le=1 << 40)

    @model_validator(mode="after")
    def _options_fit(self) -> IdentifierStep:
        of_variant = {
            "otmppsi": {"threshold": self.threshold != 2, "general": self.general},
            "apsi": {"both_directions": self.both_directions, "backend": self.backend != "openfhe"},
        }
        for variant, options in of_variant.items():
            for option, given in options.items():
                if given and self.variant != variant:
                    raise ValueError(f"{option} is an option of variant {variant!r} only")
        if self.variant == "ring" and (self.min_frequency or self.extends):
            raise ValueError("a ring alone knows no common values: min_frequency and extends need another variant")
        if self.min_frequency and self.extends:
            raise ValueError("a job that extends another keeps its identifiers: leave out min_frequency")
        if self.threshold > 2 and self.extends:
            raise ValueError("with a threshold above 2 one value has several identifiers: nothing can be extended")
        return self

    def ways_for(self, _: int) -> set[str]:
        """Bounds and layouts are found by masks."""
        return set() if self.variant == "ring" else {"masks"}

    def identifiers(self) -> jobs_pb2.Identifiers:
        """As a message."""
        return jobs_pb2.Identifiers(
            variant=VARIANTS[self.variant],  # type: ignore[arg-type]
            max_categories=self.max_categories,
            padding=self.padding,
            threshold=self.threshold,
            general=self.general,
            both_directions=self.both_directions,
            backend=BACKENDS[self.backend],  # type: ignore[arg-type]
            extends=self.extends,
            min_frequency=self.min_frequency,
            texts=self.texts(),
        )

    @classmethod
    def identifier_fields(cls, wire: jobs_pb2.Identifiers) -> dict[str, Any]:
        """From a message."""
        same = ("max_categories", "padding", "threshold", "general", "both_directions", "extends", "min_frequency")
        return {
            "variant": name_of(VARIANTS, wire.variant),
            "backend": name_of(BACKENDS, wire.backend),
            **{name: getattr(wire, name) for name in same},
            **cls.text_fields(wire.texts),
        }


class OneHotStep(IdentifierStep):
    """One output column for every identifier."""

    field = "onehot"
    transform: Literal["onehot"] = "onehot"
    handle_unknown: Literal["ignore", "error", "infrequent-if-exist"] = "ignore"

    def body(self) -> Message:
        """As a message."""
        unknown = UNKNOWN[self.handle_unknown]
        return jobs_pb2.OneHot(identifiers=self.identifiers(), handle_unknown=unknown)  # type: ignore[arg-type]

    @classmethod
    def fields(cls, body: jobs_pb2.OneHot) -> dict[str, Any]:
        """From a message."""
        return {**cls.identifier_fields(body.identifiers), "handle_unknown": name_of(UNKNOWN, body.handle_unknown)}


class OrdinalStep(IdentifierStep):
    """The identifier itself."""

    field = "ordinal"
    transform: Literal["ordinal"] = "ordinal"
    # "ignore" gives -1.
    handle_unknown: Literal["ignore", "error"] = "ignore"

    def body(self) -> Message:
        """As a message."""
        unknown = UNKNOWN[self.handle_unknown]
        return jobs_pb2.Ordinal(identifiers=self.identifiers(), handle_unknown=unknown)  # type: ignore[arg-type]

    @classmethod
    def fields(cls, body: jobs_pb2.Ordinal) -> dict[str, Any]:
        """From a message."""
        return {**cls.identifier_fields(body.identifiers), "handle_unknown": name_of(UNKNOWN, body.handle_unknown)}


class TargetStep(IdentifierStep):
    """The mean of a target over the rows that have a value: of all sites together, or of each site alone."""

    field = "target"
    transform: Literal["target"] = "target"
    target: str = Field(min_length=1, max_length=200)
    # "local" sends nothing, and gives every site other numbers.
    means: Literal["federated", "local"] = "federated"
    smoothing: float = Field(default=10.0, ge=0, lt=1e12, allow_inf_nan=False)
    # Formula 7 with the share of class 1 among the rows of a value, or as it is printed.
    formula: Literal["mean", "printed"] = "mean"

    @model_validator(mode="after")
    def _target_apart(self) -> TargetStep:
        if self.target in self.columns:
            raise ValueError("the target is none of the columns that it encodes")
        if self.min_frequency or self.extends:
            raise ValueError("min_frequency and extends are of onehot and ordinal")
        if self.means == "federated" and self.variant == "ring":
            raise ValueError("a ring has no common identifiers: each site's own sums would show; use another variant")
        return self

    @property
    def numeric_columns(self) -> list[str]:
        """The target."""
        return [self.target]

    def ways_for(self, sites: int) -> set[str]:
        """Means of all sites are secure sums."""
        return set() if self.means == "local" else super().ways_for(sites) | {"masks"}

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.Target(
            variant=TARGETS[self.means],  # type: ignore[arg-type]
            target=self.target,
            smoothing=self.smoothing,
            formula=FORMULAS[self.formula],  # type: ignore[arg-type]
            identifiers=self.identifiers(),
        )

    @classmethod
    def fields(cls, body: jobs_pb2.Target) -> dict[str, Any]:
        """From a message."""
        return {
            **cls.identifier_fields(body.identifiers),
            "means": name_of(TARGETS, body.variant),
            "target": body.target,
            "smoothing": body.smoothing,
            "formula": name_of(FORMULAS, body.formula),
        }


class BytesNormStep(CategoricalStep):
    """Texts read as integers, standardized. Shows all sites the beginning of the longest text."""

    field = "bytes_norm"
    transform: Literal["bytes-norm"] = "bytes-norm"

    def ways_for(self, _: int) -> set[str]:
        """Sums are by masks."""
        return {"masks"}

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.BytesNorm(texts=self.texts())

    @classmethod
    def fields(cls, body: jobs_pb2.BytesNorm) -> dict[str, Any]:
        """From a message."""
        return cls.text_fields(body.texts)


class ModNormStep(CategoricalStep):
    """Texts read as integers, modulo twice the sum of the sites' numbers of values."""

    field = "mod_norm"
    transform: Literal["mod-norm"] = "mod-norm"

    def ways_for(self, _: int) -> set[str]:
        """Sums are by masks."""
        return {"masks"}

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.ModNorm(texts=self.texts())

    @classmethod
    def fields(cls, body: jobs_pb2.ModNorm) -> dict[str, Any]:
        """From a message."""
        return cls.text_fields(body.texts)


class FastTextStep(CategoricalStep):
    """Word vectors of a fastText model that every site has, under this name in its configuration."""

    field = "fasttext"
    transform: Literal["fasttext"] = "fasttext"
    model: str = Field(min_length=1, max_length=63)

    def ways_for(self, _: int) -> set[str]:
        """Nothing is added."""
        return set()

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.FastText(model=self.model, texts=self.texts())

    @classmethod
    def fields(cls, body: jobs_pb2.FastText) -> dict[str, Any]:
        """From a message."""
        return {"model": body.model, **cls.text_fields(body.texts)}


class RollingHashStep(CategoricalStep):
    """One position of a vector that all columns share, by a rolling hash of the text."""

    field = "rolling_hash"
    transform: Literal["rolling-hash"] = "rolling-hash"
    prime: int = Field(default=31, ge=28, le=1 << 30)
    buckets: int = Field(default=5000, ge=2, le=1 << 20)

    def ways_for(self, _: int) -> set[str]:
        """Nothing is added."""
        return set()

    def body(self) -> Message:
        """As a message."""
        return jobs_pb2.RollingHash(prime=self.prime, buckets=self.buckets, texts=self.texts())

    @classmethod
    def fields(cls, body: jobs_pb2.RollingHash) -> dict[str, Any]:
        """From a message."""
        return {"prime": body.prime, "buckets": body.buckets, **cls.text_fields(body.texts)}
