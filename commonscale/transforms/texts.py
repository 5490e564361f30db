"""Encodings that read the text itself: Bytes-Norm, Mod-Norm, fastText and rolling hash."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from commonscale.hidden import Hidden, known
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import Frequencies
from commonscale.statistics.texts import ModelFile, TextMoments, text_moments
from commonscale.transforms.base import TextTransform


class BytesNorm(TextTransform):
    """Texts read as integers, standardized. Shows all sites the beginning of the longest text."""

    allowed_by_default: ClassVar[bool] = False
    caution: ClassVar[str] = "it shows all sites the first letters of the longest text"

    transform: Literal["bytes-norm"] = "bytes-norm"

    LENGTH: ClassVar[Reveal] = Reveal("length", "a power of two that the longest text does not exceed, in bytes")
    MOMENTS: ClassVar[Reveal] = Reveal(
        "moments",
        "count, mean and variance of the texts of each column as integers; so the first letters of the longest texts",
        "sites",
    )

    @property
    def for_sites_alone(self) -> bool:
        """Mean and variance are."""
        return True

    async def fit(self, pool: Pool) -> list[TextMoments] | Hidden:
        """Mean and variance, at the sites."""
        return await text_moments(pool, self.LENGTH, self.MOMENTS, Frequencies(tuple(self.columns), self.rules))

    def estimator(self, fitted: list[TextMoments] | Hidden) -> Any:
        """A BytesNormEncoder."""
        from commonscale.estimators.text_encoders import BytesNormEncoder

        moments = known(fitted)
        means = [(m.mean.numerator, m.mean.denominator) for m in moments]
        variances = [(m.variance.numerator, m.variance.denominator) for m in moments]
        return BytesNormEncoder.fitted(self.columns, means=means, variances=variances, **self.text_params)


class ModNorm(TextTransform):
    """Texts read as integers, modulo twice the sum of the sites' numbers of values."""

    transform: Literal["mod-norm"] = "mod-norm"

    SIZES: ClassVar[Reveal] = Reveal("sizes", "sum over all sites of the number of different values of each column")

    async def fit(self, pool: Pool) -> list[int]:
        """The sums of the sites' numbers of values."""
        answer = pool.ask(Frequencies(tuple(self.columns), self.rules))
        total = await pool.add_counts(self.SIZES, len(self.columns), lambda: [len(column) for column in answer()])
        return [max(int(number), 1) for number in total]

    def numbers(self, fitted: list[int]) -> dict[str, Any]:
        """The sums."""
        return {"values": fitted}

    def estimator(self, fitted: list[int]) -> Any:
        """A ModNormEncoder."""
        from commonscale.estimators.text_encoders import ModNormEncoder

        return ModNormEncoder.fitted(self.columns, sums=fitted, **self.text_params)


class FastText(TextTransform):
    """Word vectors of a fastText model that every site has, under this name in its configuration."""

    repeats: ClassVar[tuple[str, ...]] = ("model",)

    transform: Literal["fasttext"] = "fasttext"
    model: str = Field(min_length=1, max_length=63)

    HASH: ClassVar[Reveal] = Reveal("model", "the hash of the model file")

    def outputs(self) -> None:
        """As many as the model's vectors are long."""

    async def fit(self, pool: Pool) -> ModelFile:
        """The model that all sites have."""
        return await pool.same_model(self.HASH, self.model)

    def numbers(self, fitted: ModelFile) -> dict[str, Any]:
        """The model's hash."""
        return {"sha256": fitted.sha256}

    def estimator(self, fitted: ModelFile) -> Any:
        """A FastTextEncoder."""
        from commonscale.estimators.text_encoders import FastTextEncoder

        path, dimension = str(known(fitted.path)), known(fitted.dimension)
        return FastTextEncoder.fitted(
            self.columns, model=path, dimension=dimension, sha256=fitted.sha256, **self.text_params
        )


class RollingHash(TextTransform):
    """One position of a vector that all columns share, by a rolling hash of the text."""

    repeats: ClassVar[tuple[str, ...]] = ("prime", "buckets")

    transform: Literal["rolling-hash"] = "rolling-hash"
    prime: int = Field(default=31, ge=28, le=1 << 30)
    buckets: int = Field(default=5000, ge=2, le=1 << 20)

    async def fit(self, pool: Pool) -> None:
        """Nothing to find out."""

    def outputs(self) -> list[str]:
        """One per position."""
        return [f"hash_{position}" for position in range(self.buckets)]

    def estimator(self, fitted: None) -> Any:
        """A RollingHashEncoder."""
        from commonscale.estimators.text_encoders import RollingHashEncoder

        return RollingHashEncoder.fitted(self.columns, prime=self.prime, buckets=self.buckets, **self.text_params)
