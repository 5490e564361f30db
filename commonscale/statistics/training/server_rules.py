"""What the sites make of a round's average update: the server's optimizer, run by every site itself.

Each is a function of sums alone, in numpy's double precision and in a fixed order: the same numbers at every site, to
the last bit.

fedavg    w += η · D
fedavgm   v = b · v + (1 - b) · D,  w += η · v      (Hsu, Qi and Brown; others leave out 1 - b)
fedadam   m = b · m + (1 - b) · D,  v = b2 · v + (1 - b2) · D²,  w += η · m / (√v + ε)      (Reddi et al.)
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from commonscale.config import Section

Floats = NDArray[np.float64]


class ServerRule(Section):
    """`server = { rule = "fedavgm", momentum = 0.9 }`."""

    rule: Literal["fedavg", "fedavgm", "fedadam"] = "fedavg"
    learning_rate: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    # Of fedadam.
    second_momentum: float = Field(default=0.99, ge=0, lt=1)
    epsilon: float = Field(default=1e-3, gt=0, le=1)


@dataclass(frozen=True)
class RuleState:
    """What a rule remembers of earlier rounds: averages of the update and of its square, where it needs them."""

    first: Floats
    second: Floats

    @classmethod
    def initial(cls, options: ServerRule, length: int) -> "RuleState":
        """Nothing yet."""
        first = length if options.rule != "fedavg" else 0
        second = length if options.rule == "fedadam" else 0
        return cls(np.zeros(first), np.zeros(second))


def apply(options: ServerRule, weights: Floats, update: Floats, state: RuleState) -> tuple[Floats, RuleState]:
    """The next weights, and what is remembered."""
    if options.rule == "fedavg":
        return weights + options.learning_rate * update, state
    first = options.momentum * state.first + (1.0 - options.momentum) * update
    if options.rule == "fedavgm":
        return weights + options.learning_rate * first, RuleState(first, state.second)
    second = options.second_momentum * state.second + (1.0 - options.second_momentum) * update * update
    step = first / (np.sqrt(second) + options.epsilon)
    return weights + options.learning_rate * step, RuleState(first, second)
