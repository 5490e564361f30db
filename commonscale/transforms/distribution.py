"""Columns brought to a uniform or a normal distribution by their pooled quantiles."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from commonscale.options import Prefer
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.statistics.quantiles import MAX_ANSWERS, percent, quantiles
from commonscale.statistics.rows import row_count
from commonscale.transforms.base import Transform, named, plain


class QuantileTransform(Transform):
    """Map each value to its rank among the values of all sites, between pooled quantiles."""

    # A thousand quantiles of a thousand rows are those rows.
    allowed_by_default: ClassVar[bool] = False
    caution: ClassVar[str] = "of a column with few more values than quantiles it shows nearly all values"
    repeats: ClassVar[tuple[str, ...]] = ("output_distribution",)
    unsupported: ClassVar[dict[str, str]] = {
        "subsample": "it draws rows at random; here all rows count, as with None",
        "random_state": "nothing is drawn at random",
        "ignore_implicit_zeros": "it is of sparse tables",
    }

    transform: Literal["quantile"] = "quantile"
    n_quantiles: int = Field(default=1000, ge=1, le=10_000)
    output_distribution: Literal["uniform", "normal"] = "uniform"
    prefer: Prefer = "bytes"

    @model_validator(mode="after")
    def _not_too_many(self) -> "QuantileTransform":
        if self.n_quantiles * len(self.columns) > MAX_ANSWERS:
            raise ValueError(f"n_quantiles times columns is more than {MAX_ANSWERS:,}: ask for fewer of them")
        return self

    async def fit(self, pool: Pool) -> Floats:
        """The quantiles of each column, one row per column: no more of them than there are rows."""
        references = np.linspace(0, 1, max(1, min(self.n_quantiles, await row_count(pool))))
        found = await quantiles(pool, self.columns, percent(references * 100), self.prefer)
        # Interpolation may fall by a last digit.
        rising: Floats = np.maximum.accumulate(found.values, axis=1)
        return rising

    def numbers(self, fitted: Floats) -> dict[str, Any]:
        """Quantiles of each column, evenly spaced from the smallest value to the largest."""
        return {"n_quantiles": fitted.shape[1], "quantiles": [plain(row) for row in fitted]}

    def estimator(self, fitted: Floats) -> Any:
        """A QuantileTransformer."""
        from sklearn.preprocessing import QuantileTransformer

        made = QuantileTransformer(
            n_quantiles=self.n_quantiles, output_distribution=self.output_distribution, subsample=None
        )
        made.n_quantiles_ = fitted.shape[1]
        made.references_ = np.linspace(0, 1, made.n_quantiles_)
        made.quantiles_ = fitted.T.copy()
        return named(made, self.columns)
