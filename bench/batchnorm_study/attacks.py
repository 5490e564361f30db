"""Dishonest sites that send wrong statistics of BatchNorm layers, and honest gradients (Section 5 of the paper).

Each knows what the honest sites send, their running means and variances, one row per site, and says what a dishonest
one sends instead. The paper names the attacks and leaves their strengths open: those here are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Attack(Protocol):
    """One way to lie."""

    def sent(self, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """Mean and variance that every dishonest site sends, from those of the honest ones."""


@dataclass(frozen=True)
class SignFlipping:
    """SF: the opposite of the honest mean, with the honest variance."""

    def sent(self, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """-mean."""
        return -means.mean(axis=0), variances.mean(axis=0)


@dataclass(frozen=True)
class FallOfEmpires:
    """FOE: the opposite of the honest mean, many times as large, with the honest variance."""

    strength: float = 10.0

    def sent(self, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """-strength · mean."""
        return -self.strength * means.mean(axis=0), variances.mean(axis=0)


@dataclass(frozen=True)
class ALittleIsEnough:
    """ALIE: some standard deviations of the honest sites away, where a rule that looks for outliers finds none."""

    deviations: float = 1.5

    def sent(self, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """Mean + deviations · sd of means, variance - deviations · sd of variances."""
        return (
            means.mean(axis=0) + self.deviations * means.std(axis=0),
            variances.mean(axis=0) - self.deviations * variances.std(axis=0),
        )


BY_NAME: dict[str, Attack] = {"sf": SignFlipping(), "foe": FallOfEmpires(), "alie": ALittleIsEnough()}


def attacked(attack: Attack, means: Floats, variances: Floats, dishonest: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """What all sites send, one row each, when these sites lie."""
    honest = np.setdiff1d(np.arange(len(means)), dishonest)
    means, variances = means.copy(), variances.copy()
    means[dishonest], variances[dishonest] = attack.sent(means[honest], variances[honest])
    return means, variances
