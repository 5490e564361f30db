"""How a job trains, the same at all its sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from commonscale_worker.errors import ModelError
from commonscale_worker.v1 import worker_pb2 as pb

PRECISIONS = ("float32", "float64")
BATCHNORMS = ("", "fbn", "fixbn", "naive", "local")
OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class Settings:
    """What the job's [train] says; a model takes from it what it knows, and refuses what it cannot do."""

    # Of the first weights and of the order of rows.
    seed: int = 0
    # "float32" or "float64".
    precision: str = "float32"
    # "fbn", "fixbn", "naive", "local", or "" where the job does not say.
    batchnorm: str = ""
    # Passes over the rows in a round.
    epochs: int = 1
    # Batches in a round instead of passes; 0: epochs count.
    steps: int = 0
    # 0: all rows in one batch.
    batch_rows: int = 0
    learning_rate: float = 0.01
    momentum: float = 0.0
    # FedProx: the weight mu of mu/2·‖w - w0‖² in the loss, w0 being the weights at the round's start.
    proximal: float = 0.0
    weight_decay: float = 0.0
    # "sgd" or "adam".
    optimizer: str = "sgd"
    # From a round on, another learning rate.
    learning_rate_steps: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, message: pb.Settings) -> Settings:
        """From the wire; unknown words are refused, since training on without them would be another training."""
        found = cls(
            seed=message.seed,
            precision=message.precision or "float32",
            batchnorm=message.batchnorm,
            epochs=message.epochs or 1,
            steps=message.steps,
            batch_rows=message.batch_rows,
            learning_rate=message.learning_rate,
            momentum=message.momentum,
            proximal=message.proximal,
            weight_decay=message.weight_decay,
            optimizer=message.optimizer or "sgd",
            learning_rate_steps=dict(sorted(message.learning_rate_steps.items())),
        )
        for name, known in (("precision", PRECISIONS), ("batchnorm", BATCHNORMS), ("optimizer", OPTIMIZERS)):
            if getattr(found, name) not in known:
                raise ModelError(f"this worker knows no {name} {getattr(found, name)!r}")
        return found

    def learning_rate_in(self, round_number: int) -> float:
        """The learning rate of a round."""
        begun = [rate for first, rate in self.learning_rate_steps.items() if first <= round_number]
        return begun[-1] if begun else self.learning_rate
