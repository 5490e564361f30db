"""What a step of a pipeline is: options, and one function that all roles run.

A transform is a model of its options (the same that reads a pipeline file and a message of the wire), `fit`, run by
every role over a Pool, which returns what was found, `numbers`, which gives what everyone may see of it, and
`estimator`, run where a result is wanted, which alone imports scikit-learn. A class that names itself is registered: a
module in this package is all that a new transform needs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, field_validator, model_validator

from commonscale.categories import TextRules
from commonscale.config import Section
from commonscale.errors import MissingColumn, OutOfRange
from commonscale.options import CkksOptions, ColumnName
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import Query

MAX_COLUMNS = 10_000
# Of one column, for everyone's eyes, by a transform that sites allow without being asked.
MAX_QUANTILES = 100

# Every transform by its name.
TRANSFORMS: dict[str, type[Transform]] = {}


class Transform(Section, ABC):
    """What all steps have."""

    # Whether a site that has not said which transforms it allows allows this one.
    allowed_by_default: ClassVar[bool] = True
    # Whether anything comes out for later steps and new rows; else there are numbers to read only.
    produces: ClassVar[bool] = True
    # Whether what comes out are numbers on a scale, which make no categories.
    continuous: ClassVar[bool] = True
    # Whether rows without a value pass through it; else it is not fitted on columns that lack any.
    takes_missing: ClassVar[bool] = True
    # What it may ask of the rows beyond what a plan sees it ask, where that hangs on what is opened.
    may_ask: ClassVar[tuple[type[Query[Any]], ...]] = ()
    # Whether nothing may follow it, and it works on all that earlier steps made of its columns, new ones included.
    last: ClassVar[bool] = False
    # What a person should stop at before approving it.
    caution: ClassVar[str] = ""
    # Whether its columns are compared as texts; else they must hold numbers.
    reads_texts: ClassVar[bool] = False
    # Options that its parameters repeat.
    repeats: ClassVar[tuple[str, ...]] = ()
    # Whether no row lacks a value of its columns any more.
    fills: ClassVar[bool] = False
    # Options of the scikit-learn class that it does not have, and why: refused with these words, never ignored.
    unsupported: ClassVar[dict[str, str]] = {}

    transform: str
    columns: Annotated[list[ColumnName], Field(min_length=1, max_length=MAX_COLUMNS)]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        name = cls.model_fields["transform"].default
        if isinstance(name, str):
            TRANSFORMS[name] = cls

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, options: Any) -> Any:
        """None, with which scikit-learn leaves each of them out, is no option."""
        if not isinstance(options, dict):
            return options
        for name, why in cls.unsupported.items():
            if options.get(name) is not None:
                raise ValueError(f"{cls.__name__} has no option {name}: {why}")
        return {name: value for name, value in options.items() if name not in cls.unsupported}

    @field_validator("columns")
    @classmethod
    def _distinct(cls, columns: list[str]) -> list[str]:
        twice = sorted(column for column, count in Counter(columns).items() if count > 1)
        if twice:
            raise ValueError(f"named twice: {', '.join(twice)}")
        return columns

    @model_validator(mode="after")
    def _bounds_fit(self) -> Transform:
        bounds = self.ckks_options.max_abs if self.ckks_options else ()
        if len(bounds) not in (0, 1, len(self.columns)):
            raise ValueError(
                f"max_abs has {len(bounds)} numbers for {len(self.columns)} columns; give one, or one each"
            )
        return self

    @abstractmethod
    async def fit(self, pool: Pool) -> Any:
        """All roles: plain numbers; what only the sites learn is HIDDEN at the coordinator."""

    def parameters(self, fitted: Any) -> dict[str, Any]:
        """What was asked for, and what everyone may see of what was found, as JSON values: the same at all roles."""
        asked = self.model_dump(mode="json", include={"transform", "columns", *self.repeats})
        return asked | self.numbers(fitted)

    def numbers(self, fitted: Any) -> dict[str, Any]:
        """What everyone may see of what was found: nothing, unless it says otherwise."""
        return {}

    @abstractmethod
    def estimator(self, fitted: Any) -> Any:
        """A fitted scikit-learn object; None where there is none."""

    @property
    def numeric_columns(self) -> list[str]:
        """Columns that must hold numbers."""
        return [] if self.reads_texts else self.columns

    @property
    def text_columns(self) -> list[str]:
        """Columns whose values are compared as texts."""
        return self.columns if self.reads_texts else []

    @property
    def for_sites_alone(self) -> bool:
        """Whether what comes out hangs on sums that only the sites saw, and that nobody checked.

        A coordinator that changed such a sum would read from a later step's numbers what it was to be kept from.
        """
        return False

    @property
    def ckks_options(self) -> CkksOptions | None:
        """How it computes under encryption, if it does."""
        return getattr(self, "ckks", None)

    def method_for(self, _sites: int) -> tuple[str, str]:
        """How numbers are pooled with so many sites, and why."""
        return str(getattr(self, "method", "")), ""

    def protocol(self, sites: int) -> str:
        """Its name in reports."""
        method, _ = self.method_for(sites)
        return f"{self.transform}/{method}" if method else self.transform

    def check_sites(self, sites: Sequence[str]) -> None:
        """Raise ValueError where these sites cannot run it."""

    def outputs(self) -> list[str] | None:
        """Names of the columns that come out: the same, unless it says otherwise; None where only a fit can tell."""
        return self.columns

    def files(self, fitted: Any, job_id: str) -> dict[str, bytes]:
        """What a site keeps beside its estimator, by file name."""
        return {}

    def memory(self, fitted: Any) -> dict[str, Any] | None:
        """What a site keeps for a later job that extends this one."""
        return None

    @classmethod
    def declared_reveals(cls) -> list[Reveal]:
        """What the class says that it may open."""
        return [value for kind in reversed(cls.__mro__) for value in vars(kind).values() if isinstance(value, Reveal)]


class TextTransform(Transform):
    """What all encodings of texts share: which differences between two texts count."""

    reads_texts: ClassVar[bool] = True

    strip: bool = True
    casefold: bool = False

    @property
    def rules(self) -> TextRules:
        """As the tables apply them."""
        return TextRules(self.strip, self.casefold)

    @property
    def text_params(self) -> dict[str, bool]:
        """The same for an estimator."""
        return {"strip": self.strip, "casefold": self.casefold}


def named(estimator: Any, columns: Iterable[str]) -> Any:
    """With the names of its columns."""
    names = np.array(list(columns), dtype=object)
    estimator.n_features_in_, estimator.feature_names_in_ = len(names), names
    return estimator


def check_present(
    columns: Sequence[str], values: Iterable[float], remedy: str = "Leave it out of the pipeline."
) -> None:
    """Raise MissingColumn for a column whose number is none, because no site has a value there."""
    for column, value in zip(columns, values, strict=True):
        if math.isnan(value):
            raise MissingColumn(f"Column {column!r} has no value at any site.", remedy)


def check_finite(columns: Sequence[str], rows: Iterable[Iterable[float]]) -> None:
    """Raise OutOfRange for a column whose values lie so far apart that no float can stand between them."""
    for column, row in zip(columns, rows, strict=True):
        if not all(map(math.isfinite, row)):
            raise OutOfRange(f"The values of column {column!r} lie too far apart.", "Rescale it at every site.")


def check_few(number: int, option: str) -> None:
    """Raise ValueError for so many quantiles that they would be most values of a small column."""
    if number > MAX_QUANTILES:
        raise ValueError(
            f"{option} may be {MAX_QUANTILES} at most with quantiles: more would be nearly the values themselves, "
            "which a site shows by the transform 'quantile' alone, if its policy names it"
        )


def plain(values: Iterable[float]) -> list[float | None]:
    """JSON values; not-a-number becomes null."""
    return [None if math.isnan(value) else float(value) for value in values]
