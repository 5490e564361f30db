"""What is run: every run in a few plain values, which go to the process with torch as a line of JSON.

Table 2 of the paper has 3,000 steps, batches of 50, and rates that change after 1,000 and 2,000 steps: here they change
after each third of the rounds, whatever their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

SITES = 10
DISHONEST = 3
SEEDS = 3
FBN, FIXBN, NAIVE, CENTRALIZED = "fbn", "fixbn", "naive", "centralized"
METHODS = (CENTRALIZED, FBN, FIXBN, NAIVE)
ATTACKED = (FBN, NAIVE)
ATTACKS = ("sf", "foe", "alie")
NO_ATTACK = "none"
PARTS = ("methods", "attacks")


@dataclass(frozen=True)
class Split:
    """How rows are dealt out: γ-similarity (1: alike, 0: a class each), or classes by a Dirichlet draw of this α."""

    kind: str
    level: float

    def __str__(self) -> str:
        return f"{self.kind}={self.level:g}"


GAMMAS = tuple(Split("gamma", level) for level in (1.0, 0.3, 0.01, 0.0))
SPLITS = (*GAMMAS, Split("alpha", 1.0), Split("alpha", 0.1))
ALIKE, A_CLASS_EACH = GAMMAS[0], GAMMAS[-1]


@dataclass(frozen=True)
class Defence:
    """How the statistics that sites send become one: a rule of commonscale.statistics.training.robust_rules."""

    rule: Literal["mean", "median", "trimmed-mean"]
    nnm: bool = False

    def __str__(self) -> str:
        return f"{self.rule}+nnm" if self.nnm else self.rule


UNDEFENDED = Defence("mean")
WITH_NNM = (Defence("median", nnm=True), Defence("trimmed-mean", nnm=True))
DEFENCES = (*WITH_NNM, Defence("median"), Defence("trimmed-mean"))


@dataclass(frozen=True)
class Setup:
    """Network and training, the same in all runs."""

    model: str
    rounds: int
    batch_rows: int
    # Of the first third; the others have a half and a third of it.
    learning_rate: float
    momentum: float
    test_images: int
    # Rounds from one point of a curve to the next.
    every: int

    @property
    def measured(self) -> list[int]:
        """Rounds after which the model is measured."""
        return [number for number in range(1, self.rounds + 1) if number % self.every == 0 or number == self.rounds]

    @property
    def rates(self) -> dict[int, float]:
        """Learning rate from each of these rounds on (Table 2)."""
        third = self.rounds / 3
        return {round(third * part) + 1: self.learning_rate / (part + 1) for part in range(3)}


# The paper averages gradients with the weight 1 - 0.99 in its momentum; torch adds them with the weight 1. Its rate of
# 0.1 is 0.001 here.
PAPER = Setup("paper", 3000, 50, 0.001, 0.99, 10_000, 100)
SMALL_MODEL = Setup("small", 160, 16, 0.02, 0.9, 5000, 40)
SETUPS = {setup.model: setup for setup in (SMALL_MODEL, PAPER)}


@dataclass(frozen=True)
class Run:
    """One training."""

    setup: Setup
    split: Split
    method: str
    seed: int
    attack: str = NO_ATTACK
    defence: Defence = UNDEFENDED

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Run:
        """Inverse of plain."""
        parts = {"setup": Setup, "split": Split, "defence": Defence}
        return cls(**{name: parts[name](**value) if name in parts else value for name, value in plain.items()})

    def __str__(self) -> str:
        attacked = "" if self.attack == NO_ATTACK else f", {self.attack} against {self.defence}"
        return f"{self.split}, {self.method}{attacked}, seed {self.seed}"


@dataclass(frozen=True)
class Example:
    """One column of Figure 2c: points on a circle, normalised by one method."""

    gamma: float
    method: str
    seed: int

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        return f"example of Section 3, gamma={self.gamma:g}, {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """Which runs there are."""

    setup: Setup
    splits: tuple[Split, ...] = SPLITS
    attacked_splits: tuple[Split, ...] = SPLITS
    # Which attacks each method meets.
    attacks: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(ATTACKED, ATTACKS))
    defences: tuple[Defence, ...] = DEFENCES
    seeds: int = SEEDS

    def with_setup(self, setup: Setup, rounds: int) -> Plan:
        """Another network and training, with so many rounds unless 0."""
        return replace(self, setup=replace(setup, rounds=rounds) if rounds else setup)

    def with_parts(self, names: Sequence[str]) -> Plan:
        """Only the comparison of methods, or only the attacks."""
        methods, attacks = (part in names for part in PARTS)
        return replace(
            self, splits=self.splits if methods else (), attacked_splits=self.attacked_splits if attacks else ()
        )

    def among(self, names: Sequence[str]) -> Plan:
        """Only these splits, in both parts."""
        splits = tuple(split for split in SPLITS if str(split) in names)
        return replace(self, splits=splits, attacked_splits=splits)

    def runs(self, seed: int) -> list[Run]:
        """All of them, seed by seed: what is there when a study is stopped is whole for some seeds."""
        return [run for number in range(self.seeds) for run in self._runs(seed + number)]

    def examples(self, seed: int) -> list[Example]:
        """Figure 2c, which takes seconds: all of it, always."""
        return [
            Example(split.level, method, seed + number)
            for number in range(self.seeds)
            for split in GAMMAS
            for method in (FBN, FIXBN, NAIVE)
        ]

    def _runs(self, seed: int) -> list[Run]:
        compared = [Run(self.setup, split, method, seed) for split in self.splits for method in METHODS]
        attacked = [
            Run(self.setup, split, method, seed, attack, defence)
            for split in self.attacked_splits
            for method, attacks in self.attacks.items()
            for attack in attacks
            for defence in (UNDEFENDED, *self.defences)
        ]
        return compared + attacked


FULL = Plan(SMALL_MODEL)
SMALL = Plan(
    replace(SMALL_MODEL, rounds=50, test_images=2000, every=25),
    splits=(ALIKE, A_CLASS_EACH),
    attacked_splits=(A_CLASS_EACH,),
    attacks={FBN: ATTACKS, NAIVE: ("sf",)},
    defences=WITH_NNM[:1],
)
