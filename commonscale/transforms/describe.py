"""Numbers for a person to read; nothing comes out for new rows."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from commonscale.pool import Pool
from commonscale.statistics.quantiles import Quantiles as Fitted
from commonscale.statistics.quantiles import quantiles
from commonscale.transforms.base import plain
from commonscale.transforms.scaling import RanksTransform

MAX_QUANTILES = 100

Level = Annotated[float, Field(ge=0, le=1)]


class Quantiles(RanksTransform):
    """Ranked elements of pooled columns."""

    produces: ClassVar[bool] = False
    repeats: ClassVar[tuple[str, ...]] = ("quantiles",)

    transform: Literal["quantiles"] = "quantiles"
    # Between 0 and 1, interpolated as numpy does.
    quantiles: Annotated[tuple[Level, ...], Field(min_length=1, max_length=MAX_QUANTILES)] = (0.25, 0.5, 0.75)

    async def fit(self, pool: Pool) -> Fitted:
        """The quantiles of every column."""
        return await quantiles(pool, self.columns, self.quantiles, self.prefer, self.method, self.ckks, self.epsilon)

    def numbers(self, fitted: Fitted) -> dict[str, Any]:
        """Counts, and one row of quantiles per column."""
        return {"count": list(fitted.count), "values": [plain(row) for row in fitted.values]}

    def estimator(self, fitted: Fitted) -> None:
        """There is none."""
