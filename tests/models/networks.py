"""A worker's module with PyTorch models."""

import os
from pathlib import Path

import commonscale_worker as cw
import numpy as np
import torch
from torch import nn


class Watch(nn.Module):  # type: ignore[misc]
    """Passes on what comes, and writes down what a BatchNorm layer behind it gets in training, for a test."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.count = name, 0
        where = os.environ.get("COMMONSCALE_TEST_ACTIVATIONS")
        self.directory = Path(where) / str(os.getpid()) if where else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same."""
        if self.training and self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            np.save(self.directory / f"{self.name}-{self.count}.npy", x.detach().numpy())
            self.count += 1
        return x


@cw.model("mlp")
class Mlp(cw.TorchModel):
    """A small network."""

    def build(self, features: int, classes: int) -> nn.Module:
        """Two layers."""
        return nn.Sequential(nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, classes or 1))


@cw.model("normed")
class Normed(cw.TorchModel):
    """With two BatchNorm2d layers and a BatchNorm1d one: the features are a small picture."""

    def build(self, features: int, classes: int) -> nn.Module:
        """Features are 4 × 4 pixels."""
        assert features == 16
        return nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3, padding=1), Watch("a"), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 6, 3, padding=1), Watch("b"), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Flatten(), nn.Linear(96, 10), Watch("c"), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, classes),
        )  # fmt: skip
