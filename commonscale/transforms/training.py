"""Training: the last step of a pipeline, by the ML workers that the sites have attached."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from commonscale.config import Name, Section
from commonscale.names import JOB_ID_PATTERN
from commonscale.options import ColumnName
from commonscale.pool import Pool
from commonscale.results import MODEL_KEY
from commonscale.statistics.training.model_files import model_files
from commonscale.statistics.training.robust_rules import Robustly
from commonscale.statistics.training.rounds import Trained, train
from commonscale.statistics.training.server_rules import ServerRule
from commonscale.statistics.training.worker import Local
from commonscale.transforms.base import Transform

# Fewer sites lie on both sides of a median too thinly to hide among each other.
MIN_COUNTED_SITES = 5


class LocalTraining(Section):
    """What a site's worker does in a round."""

    epochs: int = Field(default=1, ge=1, le=1000)
    # Batches per round instead of epochs; 1 is distributed gradient descent.
    steps: int = Field(default=0, ge=0, le=1_000_000)
    # 0: all rows in one batch.
    batch_rows: int = Field(default=32, ge=0, le=1 << 30)
    learning_rate: float = Field(default=0.01, gt=0, le=1000, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    # Above 0: FedProx.
    proximal: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    optimizer: Literal["sgd", "adam"] = "sgd"
    # From a round on, another learning rate: { 1000 = 0.05, 2000 = 0.033 }.
    learning_rate_steps: dict[
        Annotated[int, Field(ge=2, le=100_000)], Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
    ] = Field(default_factory=dict, max_length=1000)


class Evaluation(Section):
    """How often the model is measured, on which share of the rows, and when training stops early."""

    # 0: never.
    every: int = Field(default=1, ge=0, le=1_000_000)
    share: float = Field(default=0.2, ge=0, lt=1)
    # Stop when the loss was not below its lowest for so many measurements; 0: never.
    patience: int = Field(default=0, ge=0, le=10_000)

    @model_validator(mode="after")
    def _has_rows(self) -> "Evaluation":
        if self.every and not self.share:
            raise ValueError("share = 0 leaves no rows to evaluate on: give a share, or every = 0")
        if self.patience and not self.every:
            raise ValueError("patience needs measurements: give every")
        return self

    def is_due(self, number: int, last: int) -> bool:
        """After every few rounds, and after the last."""
        return bool(self.every) and (number % self.every == 0 or number == last)


class Robust(Section):
    """`robust = { rule = "median", nnm = true, dishonest = 3 }`, or just `robust = "median"`."""

    # Empty: sums, which any site can spoil.
    rule: Literal["", "median", "trimmed-mean"] = ""
    # f: so many sites may be wrong. 0: as many as a majority of honest ones allows.
    dishonest: int = Field(default=0, ge=0, le=1000)
    # First replace what each site says by the mean of what is nearest to it.
    nnm: bool = False
    # clear: everyone sees what each site says; counts: medians by secure counts.
    method: Literal["clear", "counts"] = "clear"
    # What is aggregated robustly: statistics of BatchNorm layers, or the updates of the model too.
    of: Literal["statistics", "updates"] = "statistics"

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_word(cls, content: Any) -> Any:
        return {"rule": content} if isinstance(content, str) else content

    @model_validator(mode="after")
    def _fits_together(self) -> "Robust":
        if not self.rule and self != Robust.model_construct():
            raise ValueError('robust needs a rule: "median" or "trimmed-mean"')
        if self.method == "counts" and (self.rule != "median" or self.nnm or self.of != "statistics"):
            raise ValueError(
                "secure counts give the median of statistics alone: a trimmed mean would end in a sum that anybody can "
                'spoil, NNM needs single vectors, and a model is too long; use method = "clear"'
            )
        return self

    def rule_of(self, sites: int) -> Robustly:
        """The rule among so many sites."""
        assert self.rule
        return Robustly(self.rule, self.dishonest or (sites - 1) // 2, self.nnm)


class Train(Transform):
    """Train a model that every site has installed, round by round, on what earlier steps made of the columns."""

    produces: ClassVar[bool] = False
    takes_missing: ClassVar[bool] = False
    last: ClassVar[bool] = True
    repeats: ClassVar[tuple[str, ...]] = ("model", "target", "classes")

    transform: Literal["train"] = "train"
    # A name that the sites' workers offer: a job carries no code.
    model: Name
    target: ColumnName
    # Its classes, as they stand in the table; none: a number is to be predicted.
    classes: Annotated[list[str], Field(default_factory=list, max_length=1000)]
    # An earlier job of the same sites, whose steps are done to the columns first.
    after: str = Field(default="", pattern=rf"^$|^{JOB_ID_PATTERN.pattern}$")
    rounds: int = Field(default=10, ge=1, le=100_000)
    # Sites per round, by lot; 0: all.
    sample: int = Field(default=0, ge=0)
    local: LocalTraining = LocalTraining()
    # How long a site may take for a round; then the others go on without it. 0: they wait, as long as the job may take.
    patience_s: int = Field(default=0, ge=0, le=7 * 24 * 3600)
    server: ServerRule = ServerRule()
    evaluation: Evaluation = Evaluation()
    method: Literal["masks", "shares"] = "masks"
    batchnorm: Literal["", "fbn", "fixbn", "naive", "local"] = ""
    # Against sites that send wrong numbers.
    robust: Robust = Robust()
    # First weights: from the seed, alike at all sites, or "site:NAME".
    init: Annotated[str, Field(pattern=r"^(seed|site:[a-z0-9-]{1,63})$")] = "seed"
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    precision: Literal["float32", "float64"] = "float32"
    # Who gets the model; with everyone, coordinator and analyst see that of every round.
    model_for: Literal["sites", "everyone"] = "sites"
    # Whether those who look on, at the coordinator's dashboard, may see the pooled figures too.
    observers: bool = False

    @model_validator(mode="after")
    def _fits(self) -> "Train":
        if self.target in self.columns:
            raise ValueError(f"the target {self.target!r} is among the columns to learn from: leave it out there")
        if len(self.classes) == 1 or len(set(self.classes)) != len(self.classes):
            raise ValueError("classes are two or more different texts")
        if self.method == "shares" and self.model_for == "sites":
            raise ValueError("method 'shares' opens sums to everyone: give model_for = \"everyone\", or use masks")
        if self.patience_s and self.model_for == "everyone":
            raise ValueError("patience_s is for models of the sites alone: a round that everyone sees is opened once")
        self._check_robust()
        return self

    def _check_robust(self) -> None:
        if not self.robust.rule:
            return
        if self.robust.of == "statistics" and self.batchnorm not in ("fbn", "fixbn", "naive"):
            raise ValueError(
                'robust statistics are those of BatchNorm layers: give batchnorm, or robust.of = "updates"'
            )
        if self.robust.of == "updates" and self.model_for != "everyone":
            raise ValueError('robust updates are shown to everyone: say so by model_for = "everyone"')
        if self.patience_s:
            raise ValueError("patience_s is for sums: a robust round waits for all of its sites")

    def check_sites(self, sites: Sequence[str]) -> None:
        """A round needs three; who gives the first weights takes part; what is robust needs more."""
        count = self.sample or len(sites)
        if not 3 <= count <= len(sites):
            raise ValueError(
                f"sample = {self.sample} of {len(sites)} sites: at least 3 must take part in a round, because of two "
                "each would learn the other's update"
            )
        if self.init != "seed" and self.init.removeprefix("site:") not in sites:
            raise ValueError(f"init = {self.init!r} names no site of the job")
        if 2 * self.robust.dishonest >= count:
            raise ValueError(
                f"robust.dishonest = {self.robust.dishonest} of {count} sites in a round: a majority must be honest"
            )
        if self.robust.method == "counts" and (self.sample or count < MIN_COUNTED_SITES):
            raise ValueError(
                f"medians by counts need at least {MIN_COUNTED_SITES} sites, the same in all rounds: of fewer, the "
                'counts show nearly every site\'s number; use method = "clear", which says so'
            )

    def local_order(self) -> Local:
        """What the workers are told beforehand."""
        settings = {**self.local.model_dump(), "seed": self.seed, "precision": self.precision}
        share = self.evaluation.share if self.evaluation.every else 0.0
        settings["batchnorm"] = self.batchnorm
        return Local(self.model, tuple(self.columns), self.target, tuple(self.classes), share, settings)

    @property
    def changes_sites(self) -> bool:
        """Whether the sites of a round may be others than those of the next."""
        return bool(self.sample or self.patience_s)

    async def fit(self, pool: Pool) -> Trained:
        """Round by round."""
        return await train(pool, self)

    @property
    def numeric_columns(self) -> list[str]:
        """What is learned from, and a number that is to be predicted.

        After an earlier job, only a site knows what that job takes its columns for.
        """
        features = [] if self.after else self.columns
        return features if self.classes else [*features, self.target]

    @property
    def text_columns(self) -> list[str]:
        """Classes are compared as texts."""
        return [self.target] if self.classes else []

    def numbers(self, fitted: Trained) -> dict[str, Any]:
        """How long it took, on how much, and how good it is."""
        sizes, history = fitted.sizes, fitted.history
        published = {MODEL_KEY: base64.b64encode(fitted.published).decode()} if fitted.published else {}
        return {
            **published,
            "rows": sizes.rows,
            "evaluation_rows": sizes.evaluation_rows,
            "parameters": sizes.parameters,
            "rounds": history.rounds,
            "stopped_early": history.stopped,
            "lost": list(history.lost),
            "metrics": [one.plain() for one in history.metrics],
        }

    def files(self, fitted: Trained, job_id: str) -> dict[str, bytes]:
        """The model as safetensors, and its card."""
        return model_files(self, fitted, job_id)

    def estimator(self, fitted: Trained) -> Any:
        """The model is a file of its own."""
        return None
