"""Encodings of categorical columns by common identifiers: one-hot, ordinal, target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from commonscale.hidden import Hidden, known
from commonscale.options import ColumnName
from commonscale.pool import Pool
from commonscale.sources.queries import Frequencies, TargetSums
from commonscale.statistics import target
from commonscale.statistics.identifiers import IdentifierOptions
from commonscale.statistics.layout import Layout
from commonscale.statistics.target import TargetMeans
from commonscale.transforms.base import TextTransform

# Sites that over-threshold intersection tries together.
MAX_COMBINATIONS = 1_000_000


class IdentifierTransform(IdentifierOptions, TextTransform):
    """What encodings by common identifiers share."""

    def check_sites(self, sites: Sequence[str]) -> None:
        """Raise where a threshold does not fit so many."""
        if self.threshold > len(sites):
            raise ValueError(f"a threshold of {self.threshold} is more than {len(sites)} sites can hold")
        if math.comb(len(sites), self.threshold) > MAX_COMBINATIONS:
            raise ValueError(f"there are too many ways to choose {self.threshold} of {len(sites)} sites")

    async def identifiers(self, pool: Pool) -> Layout:
        """Common identifiers of its columns."""
        return await pool.identifiers(Frequencies(tuple(self.columns), self.rules), self)


class EncodedIdentifiers(IdentifierTransform):
    """What one-hot and ordinal encoding share: the identifiers are all that is fitted."""

    repeats: ClassVar[tuple[str, ...]] = ("method",)

    async def fit(self, pool: Pool) -> Layout:
        """Common identifiers."""
        return await self.identifiers(pool)

    def numbers(self, fitted: Layout) -> dict[str, Any]:
        """Sizes and the hash of the layout: no value, and nothing of one site."""
        rare = list(fitted.infrequent)
        return {"identifiers": list(fitted.sizes), "infrequent": rare, "layout": fitted.digest.hex()}

    def memory(self, fitted: Layout) -> dict[str, Any]:
        """What a later job that extends this one needs, as JSON values: for the site's own disk alone."""
        return {
            "columns": self.columns,
            "layout": fitted.digest.hex(),
            # Whether equal values have equal identifiers, all of them.
            "merges_all": self.method != "ring" and self.threshold == 2,
            "rules": self.text_params,
            "dictionaries": [vars(dictionary) for dictionary in known(fitted.dictionaries)],
        }


class OneHot(EncodedIdentifiers):
    """One output column for every identifier."""

    transform: Literal["onehot"] = "onehot"
    handle_unknown: Literal["ignore", "error", "infrequent-if-exist"] = "ignore"

    def outputs(self) -> None:
        """As many as there are identifiers."""

    def estimator(self, fitted: Layout) -> Any:
        """A FederatedOneHotEncoder."""
        from commonscale.estimators.encoders import FederatedOneHotEncoder

        unknown = self.handle_unknown.replace("-", "_")
        return FederatedOneHotEncoder.fitted(
            self.columns, known(fitted.dictionaries), handle_unknown=unknown, **self.text_params
        )


class Ordinal(EncodedIdentifiers):
    """The identifier itself."""

    continuous: ClassVar[bool] = False

    transform: Literal["ordinal"] = "ordinal"
    # "ignore" gives -1.
    handle_unknown: Literal["ignore", "error"] = "ignore"

    def estimator(self, fitted: Layout) -> Any:
        """A FederatedOrdinalEncoder."""
        from commonscale.estimators.encoders import FederatedOrdinalEncoder

        unknown = "error" if self.handle_unknown == "error" else "use_encoded_value"
        return FederatedOrdinalEncoder.fitted(
            self.columns, known(fitted.dictionaries), handle_unknown=unknown, **self.text_params
        )


class Target(IdentifierTransform):
    """The mean of a target over the rows that have a value: of all sites together, or of each site alone."""

    repeats: ClassVar[tuple[str, ...]] = ("target", "means", "smoothing", "formula")

    transform: Literal["target"] = "target"
    target: ColumnName
    # "local" sends nothing, and gives every site other numbers.
    means: Literal["federated", "local"] = "federated"
    smoothing: float = Field(default=10.0, ge=0, lt=1e12, allow_inf_nan=False)
    # Formula 7 with the share of class 1 among the rows of a value, or as it is printed.
    formula: Literal["mean", "printed"] = "mean"

    @model_validator(mode="after")
    def _target_apart(self) -> Target:
        if self.target in self.columns:
            raise ValueError("the target is none of the columns that it encodes")
        if self.min_frequency or self.extends:
            raise ValueError("min_frequency and extends are of onehot and ordinal")
        if self.means == "federated" and self.method == "ring":
            raise ValueError("a ring has no common identifiers: each site's own sums would show; use another method")
        return self

    @property
    def numeric_columns(self) -> list[str]:
        """The target."""
        return [self.target]

    @property
    def for_sites_alone(self) -> bool:
        """Sums of the target per identifier are."""
        return self.means == "federated"

    def method_for(self, sites: int) -> tuple[str, str]:
        """Means of a site alone are pooled by nothing."""
        return ("local", "") if self.means == "local" else super().method_for(sites)

    async def fit(self, pool: Pool) -> tuple[Layout | None, TargetMeans | Hidden]:
        """Identifiers, if they are needed, and the encoded number of each value, at a site."""
        query = TargetSums(tuple(self.columns), self.target, self.rules)
        if self.means == "local":
            answer = pool.ask(query)
            return None, await pool.at_sites(lambda: target.local_means(answer(), self.smoothing, self.formula))
        found = await self.identifiers(pool)
        reveal = target.SUMS if self.method == "oprf" else target.SUMS_OF_ONE
        return found, await target.target_means(pool, reveal, query, found, self.smoothing, self.formula)

    def numbers(self, fitted: tuple[Layout | None, TargetMeans | Hidden]) -> dict[str, Any]:
        """The layout of the identifiers, if there are any."""
        found, _ = fitted
        if found is None:
            return {}
        return {"method": self.method, "identifiers": list(found.sizes), "layout": found.digest.hex()}

    def estimator(self, fitted: tuple[Layout | None, TargetMeans | Hidden]) -> Any:
        """A FederatedTargetEncoder."""
        from commonscale.estimators.encoders import FederatedTargetEncoder

        means = known(fitted[1])
        return FederatedTargetEncoder.fitted(self.columns, means.tables, means.mean, **self.text_params)
