"""Columns as smooth curves: B-splines between knots that all sites share."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from commonscale.options import Prefer
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.statistics.extremes import extremes
from commonscale.statistics.quantiles import percent, quantiles
from commonscale.transforms.base import Transform, check_few, check_finite, check_present, named, plain


class Spline(Transform):
    """Replace columns by B-splines, with knots between the pooled extremes or at pooled quantiles."""

    takes_missing: ClassVar[bool] = False
    repeats: ClassVar[tuple[str, ...]] = ("degree", "extrapolation", "include_bias")
    unsupported: ClassVar[dict[str, str]] = {
        "order": "it is a matter of memory alone",
        "sparse_output": "columns come out as numbers",
        "handle_missing": "fill missing values before",
    }

    transform: Literal["spline"] = "spline"
    n_knots: int = Field(default=5, ge=2, le=1000)
    degree: int = Field(default=3, ge=0, le=20)
    knots: Literal["uniform", "quantile"] = "uniform"
    extrapolation: Literal["error", "constant", "linear", "continue", "periodic"] = "constant"
    include_bias: bool = True
    prefer: Prefer = "bytes"

    @model_validator(mode="after")
    def _fits_together(self) -> "Spline":
        if self.knots == "quantile":
            check_few(self.n_knots, "n_knots")
        if self.extrapolation == "periodic" and self.n_knots <= self.degree:
            raise ValueError("with extrapolation 'periodic', n_knots must be larger than degree")
        return self

    async def fit(self, pool: Pool) -> Floats:
        """The knots, one row per column."""
        if self.knots == "quantile":
            levels = percent(100 * np.linspace(0, 1, self.n_knots))
            found = (await quantiles(pool, self.columns, levels, self.prefer)).values
            check_present(self.columns, found[:, 0])
        else:
            range_ = await extremes(pool, self.columns, self.prefer)
            check_present(self.columns, range_.low)
            found = np.linspace(range_.low, range_.high, self.n_knots, axis=1, dtype=np.float64)
        check_finite(self.columns, found)
        return found

    def outputs(self) -> list[str]:
        """As many for each column as there are splines."""
        each = self.n_knots - 1 + (0 if self.extrapolation == "periodic" else self.degree)
        return [f"{column}_sp_{place}" for column in self.columns for place in range(each - 1 + self.include_bias)]

    def numbers(self, fitted: Floats) -> dict[str, Any]:
        """The knots."""
        return {"knots": [plain(row) for row in fitted]}

    def estimator(self, fitted: Floats) -> Any:
        """A SplineTransformer, fitted on rows of which each knot is a quantile, or the ends the extremes."""
        from sklearn.preprocessing import SplineTransformer

        made = SplineTransformer(
            n_knots=self.n_knots, degree=self.degree, knots=self.knots,
            extrapolation=self.extrapolation, include_bias=self.include_bias,
        )  # fmt: skip
        # Among three rows of each knot, no quantile lies between two different ones.
        return named(made.fit(np.repeat(fitted.T, 3, axis=0)), self.columns)
