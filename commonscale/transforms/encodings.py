"""What encoding steps end with. Parameters are the same everywhere; values and their identifiers stay at their site.

A role without data, the coordinator's, has the parameters alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from commonscale.transforms.categories import Dictionary, TextRules


@dataclass(frozen=True)
class FittedIdentifiers:
    """Of one-hot and ordinal encoding."""

    transform: str
    columns: tuple[str, ...]
    variant: str
    sizes: tuple[int, ...]
    infrequent: tuple[int, ...]
    layout: bytes
    handle_unknown: str
    rules: TextRules
    # Whether equal values have equal identifiers, all of them.
    merges_all: bool
    # At a site only.
    dictionaries: tuple[Dictionary, ...] = field(default=(), repr=False)

    def parameters(self) -> dict[str, Any]:
        """Sizes and the hash of the layout: no value, and nothing of one site."""
        return {
            "transform": self.transform,
            "columns": list(self.columns),
            "variant": self.variant,
            "identifiers": list(self.sizes),
            "infrequent": list(self.infrequent),
            "layout": self.layout.hex(),
        }

    def estimator(self) -> Any:
        """A FederatedOneHotEncoder or FederatedOrdinalEncoder."""
        from commonscale.transforms import encoders

        texts = {"strip": self.rules.strip, "casefold": self.rules.casefold}
        if self.transform == "onehot":
            unknown = self.handle_unknown.replace("-", "_")
            return encoders.FederatedOneHotEncoder.fitted(
                self.columns, self.dictionaries, handle_unknown=unknown, **texts
            )
        unknown = "error" if self.handle_unknown == "error" else "use_encoded_value"
        return encoders.FederatedOrdinalEncoder.fitted(self.columns, self.dictionaries, handle_unknown=unknown, **texts)

    def memory(self) -> dict[str, Any]:
        """What a later job that extends this one needs, as JSON values: for the site's own disk alone."""
        return {
            "columns": list(self.columns),
            "layout": self.layout.hex(),
            "merges_all": self.merges_all,
            "rules": {"strip": self.rules.strip, "casefold": self.rules.casefold},
            "dictionaries": [
                {"values": d.values, "identifiers": d.identifiers, "size": d.size, "infrequent": d.infrequent}
                for d in self.dictionaries
            ],
        }


@dataclass(frozen=True)
class FittedTarget:
    """Of target encoding."""

    columns: tuple[str, ...]
    target: str
    means: str
    variant: str
    smoothing: float
    formula: str
    sizes: tuple[int, ...]
    layout: bytes
    rules: TextRules
    tables: tuple[Mapping[str | None, float], ...] = field(default=(), repr=False)
    mean: float = field(default=0.0, repr=False)

    def parameters(self) -> dict[str, Any]:
        """What was asked for, and the layout of the identifiers."""
        found = {
            "transform": "target",
            "columns": list(self.columns),
            "target": self.target,
            "means": self.means,
            "smoothing": self.smoothing,
            "formula": self.formula,
        }
        if self.means == "federated":
            found |= {"variant": self.variant, "identifiers": list(self.sizes), "layout": self.layout.hex()}
        return found

    def estimator(self) -> Any:
        """A FederatedTargetEncoder."""
        from commonscale.transforms.encoders import FederatedTargetEncoder

        return FederatedTargetEncoder.fitted(
            self.columns, self.tables, self.mean, strip=self.rules.strip, casefold=self.rules.casefold
        )


@dataclass(frozen=True)
class FittedTexts:
    """Of the encodings that read a text itself: bytes-norm, mod-norm, fastText, rolling hash."""

    transform: str
    columns: tuple[str, ...]
    rules: TextRules
    # The same at all roles.
    public: Mapping[str, Any] = field(default_factory=dict)
    # What only a site has: other arguments of the encoder.
    private: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def parameters(self) -> dict[str, Any]:
        """As JSON values."""
        return {"transform": self.transform, "columns": list(self.columns), **self.public}

    def estimator(self) -> Any:
        """The encoder of this name."""
        from commonscale.transforms import text_encoders

        kinds = {
            "bytes-norm": text_encoders.BytesNormEncoder,
            "mod-norm": text_encoders.ModNormEncoder,
            "fasttext": text_encoders.FastTextEncoder,
            "rolling-hash": text_encoders.RollingHashEncoder,
        }
        texts = {"strip": self.rules.strip, "casefold": self.rules.casefold}
        return kinds[self.transform].fitted(self.columns, **self.private, **texts)
