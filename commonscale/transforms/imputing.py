"""Missing values filled by a pooled number of their column."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from commonscale.options import Prefer
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import RowCount, Sums
from commonscale.statistics.moments import mean_of
from commonscale.statistics.quantiles import MEDIAN, quantiles
from commonscale.transforms.base import Transform, check_present, named, plain

MEAN = Reveal("mean", "pooled count of present values and mean of each column")
GAPS = Reveal("gaps", "whether any row of any site lacks a value of each column")


@dataclass(frozen=True)
class Fillings:
    """What each column is filled with; whether some row lacks a value of it, if that was asked."""

    values: Floats
    gaps: NDArray[np.bool_] | None


class Impute(Transform):
    """Fill missing values with the pooled mean or median of their column, or with a given number."""

    fills: ClassVar[bool] = True
    repeats: ClassVar[tuple[str, ...]] = ("strategy",)
    unsupported: ClassVar[dict[str, str]] = {
        "missing_values": "each site's configuration says what means 'missing' in its table",
    }

    transform: Literal["impute"] = "impute"
    strategy: Literal["mean", "median", "constant"] = "mean"
    # With "constant": 0 if nothing is said.
    fill_value: float | None = Field(default=None, allow_inf_nan=False)
    # One more column of zeros and ones for every column of which some site's row lacks a value.
    add_indicator: bool = False
    # Fill a column without any value with 0 ("constant": with fill_value); else it is an error.
    keep_empty_features: bool = False
    # With "median".
    prefer: Prefer = "bytes"

    @model_validator(mode="after")
    def _value_is_used(self) -> "Impute":
        if self.fill_value is not None and self.strategy != "constant":
            raise ValueError("fill_value is of strategy 'constant'")
        return self

    async def fit(self, pool: Pool) -> Fillings:
        """One number for each column, and which of them have gaps."""
        gaps = await self._gaps(pool) if self.add_indicator else None
        values = await self._values(pool)
        if not self.keep_empty_features:
            check_present(self.columns, values, "Leave it out, or fill it with 0: keep_empty_features = true.")
        return Fillings(np.nan_to_num(values, nan=0.0), gaps)

    async def _values(self, pool: Pool) -> Floats:
        names = tuple(self.columns)
        if self.strategy == "constant":
            return np.full(len(names), self.fill_value or 0.0)
        if self.strategy == "median":
            return (await quantiles(pool, names, [MEDIAN], self.prefer)).values[:, 0]
        count, total = await pool.sum(MEAN, Sums(names), rows=2)
        return np.array(list(map(mean_of, count, total)))

    async def _gaps(self, pool: Pool) -> NDArray[np.bool_]:
        rows, sums = pool.ask(RowCount()), pool.ask(Sums(tuple(self.columns)))
        return await pool.any_says(GAPS, len(self.columns), lambda: sums()[0] < rows())

    def outputs(self) -> list[str]:
        """The same columns, and indicators of those that have gaps: which these are, only a fit can tell."""
        indicators = [f"missingindicator_{column}" for column in self.columns]
        return self.columns + (indicators if self.add_indicator else [])

    def numbers(self, fitted: Fillings) -> dict[str, Any]:
        """What each column is filled with, and which of them have an indicator."""
        marked = {} if fitted.gaps is None else {"indicators": self._marked(fitted.gaps)}
        return {"fill": plain(fitted.values), **marked}

    def _marked(self, gaps: NDArray[np.bool_]) -> list[str]:
        return [column for column, gap in zip(self.columns, gaps, strict=True) if gap]

    def estimator(self, fitted: Fillings) -> Any:
        """A SimpleImputer, fitted on two rows: one with the gaps, one without."""
        from sklearn.impute import SimpleImputer

        options = {"fill_value": self.fill_value or 0.0} if self.strategy == "constant" else {}
        made = SimpleImputer(
            strategy=self.strategy, add_indicator=self.add_indicator,
            keep_empty_features=self.keep_empty_features, **options,
        )  # fmt: skip
        gaps = np.zeros(len(self.columns), dtype=bool) if fitted.gaps is None else fitted.gaps
        made.fit(np.stack([fitted.values, np.where(gaps, np.nan, fitted.values)]))
        made.statistics_ = fitted.values.copy()
        return named(made, self.columns)
