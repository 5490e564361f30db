"""Power transforms: Yeo-Johnson and Box-Cox."""

from typing import Any, ClassVar, Literal

from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import Query
from commonscale.statistics.power import LikelihoodTerms, Powers, powers
from commonscale.transforms.base import Transform, check_present, named, plain
from commonscale.transforms.scaling import standard_scaler


class Power(Transform):
    """Make columns more like a normal distribution, with the pooled maximum-likelihood lambda of each."""

    may_ask: ClassVar[tuple[type[Query[Any]], ...]] = (LikelihoodTerms,)
    repeats: ClassVar[tuple[str, ...]] = ("family", "standardize")

    transform: Literal["power"] = "power"
    # scikit-learn's `method`; Box-Cox takes values above zero only.
    family: Literal["yeo-johnson", "box-cox"] = "yeo-johnson"
    method: Literal["masks", "shares"] = "masks"
    standardize: bool = True

    MEAN: ClassVar[Reveal] = Reveal("mean", "pooled count of present values and mean of each column")
    VARIANCE: ClassVar[Reveal] = Reveal("variance", "pooled variance of each column")
    CANDIDATES: ClassVar[Reveal] = Reveal(
        "search",
        "pooled mean and variance of each column's transformation at the candidates for lambda, the mean of its "
        "derivative by lambda and their covariance, and the mean logarithm of the values",
    )

    async def fit(self, pool: Pool) -> Powers:
        """Lambdas, and the moments after the transformation."""
        found = await powers(pool, self.family, self.MEAN, self.VARIANCE, self.CANDIDATES, self.columns, self.method)
        if self.family == "box-cox":
            check_present(self.columns, found.moments.mean)
        return found

    def numbers(self, fitted: Powers) -> dict[str, Any]:
        """Lambdas, which of them floats could not follow to the best, and the moments after the transformation."""
        after = {"mean": plain(fitted.moments.mean), "variance": plain(fitted.moments.variance)}
        found = {"lambda": plain(fitted.lambdas), "limited": list(fitted.limited)}
        return found | after if self.standardize else found

    def estimator(self, fitted: Powers) -> Any:
        """A PowerTransformer."""
        from sklearn.preprocessing import PowerTransformer

        made = PowerTransformer(method=self.family, standardize=self.standardize)
        made.lambdas_ = fitted.lambdas.copy()
        if self.standardize:
            made._scaler = standard_scaler(fitted.moments)
            # It sees arrays, never names.
            del made._scaler.feature_names_in_
        return named(made, self.columns)
