"""Options that several transforms share: what a pipeline file may say of them."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from commonscale.config import Section


def _check_column(name: str) -> str:
    if not 1 <= len(name) <= 200:
        raise ValueError("a column's name has 1 to 200 characters")
    # They would write to the terminal of whoever approves a job, or have no UTF-8 form.
    if any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in name):
        raise ValueError(f"a column's name has no control characters, as {name!a} has: rename it")
    return name


ColumnName = Annotated[str, AfterValidator(_check_column)]
# What a search spares: "bytes" asks for fewer digits of its answers in more rounds.
Prefer = Literal["bytes", "rounds"]
Positive = Annotated[float, Field(gt=0, lt=1e150, allow_inf_nan=False)]


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

    @model_validator(mode="after")
    def _fits_together(self) -> CkksOptions:
        if self.recovery and self.keys == "reuse":
            raise ValueError("keys that are used again are not put into escrow: leave out recovery or keys = 'reuse'")
        return self
