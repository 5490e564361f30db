"""The network of Table 1, and one of the same form that 2 cores can train many times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from commonscale_worker.torch_model import TorchModel
from torch import nn

from bench.batchnorm_study.data import CLASSES, Images


@dataclass(frozen=True)
class Shape:
    """What is different between the two."""

    # Pixels on a side.
    side: int
    channels: tuple[int, int]
    hidden: int
    dropout: float


SHAPES = {"paper": Shape(32, (64, 128), 128, 0.25), "small": Shape(16, (8, 16), 32, 0.0)}
# Of all pixels of CIFAR-10, by colour.
MEAN, DEVIATION = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)


class Lookup(nn.Module):  # type: ignore[misc]
    """From numbers of images to images: so that all sites of a process share one copy of them."""

    def __init__(self, pixels: Any) -> None:
        super().__init__()
        # No buffer: it is no part of the model.
        self._pixels = pixels

    def forward(self, rows: Any) -> Any:
        """One column of numbers to colours around 0."""
        images = self._pixels[rows[:, 0].long()].to(rows) / 255
        centre, scale = (torch.tensor(part).to(rows).reshape(1, 3, 1, 1) for part in (MEAN, DEVIATION))
        return (images - centre) / scale


class Network(TorchModel):
    """A model of the worker whose rows are numbers of images."""

    def __init__(self, name: str, images: Images) -> None:
        self._shape = SHAPES[name]
        self._pixels = torch.from_numpy(images.pixels)

    def build(self, features: int, classes: int) -> Any:
        """Table 1."""
        assert features == 1
        return nn.Sequential(Lookup(self._pixels), *layers(self._shape, classes))


def layers(shape: Shape, classes: int = CLASSES) -> list[Any]:
    """Four convolutions, each with ReLU and then BatchNorm, and two linear layers."""
    made: list[Any] = []
    before = 3
    for channels in shape.channels:
        for _ in range(2):
            made += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(channels)]
            before = channels
        made += [nn.MaxPool2d(2), nn.Dropout(shape.dropout)]
    flat = before * (shape.side // 4) ** 2
    # The worker's cross entropy of these outputs is the negative log likelihood of the paper.
    made += [nn.Flatten(), nn.Linear(flat, shape.hidden), nn.ReLU(), nn.Linear(shape.hidden, classes)]
    return [*made, nn.LogSoftmax(dim=1)]
