"""CIFAR-10, and how its images are dealt out to sites ("Modeling heterogeneity" of the paper; Hsu, Qi and Brown).

20,000 of the 50,000 training images are here (SOURCE.txt beside them). numpy alone: this runs beside torch.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.batchnorm_study.plan import Split
from commonscale.errors import ConfigError

Array = np.ndarray[Any, Any]

TRAINING, TEST = ("data_batch_1.bin.xz", "data_batch_2.bin.xz"), ("test_batch.bin.xz",)
SIDE, CLASSES = 32, 10


@dataclass(frozen=True)
class Images:
    """Bytes by image, colour, row and column; those to train on come first."""

    pixels: Array
    labels: Array
    training: int


def check(directory: Path) -> None:
    """Say before processes start that something is missing."""
    for name in (*TRAINING, *TEST):
        path = directory / "cifar10" / name
        if not path.is_file():
            raise ConfigError(f"{path} is missing.", "Set COMMONSCALE_DATA to the directory of the data sets.")


def load(directory: Path, side: int) -> Images:
    """All images, with this many pixels on a side (a half or a quarter of 32 by averaging squares)."""
    if SIDE % side:
        raise ValueError(f"{side} does not divide {SIDE}")
    records = np.concatenate([_records(directory / "cifar10" / name) for name in (*TRAINING, *TEST)])
    pixels = records[:, 1:].reshape(-1, 3, side, SIDE // side, side, SIDE // side)
    if side < SIDE:
        pixels = np.rint(pixels.mean(axis=(3, 5), dtype=np.float32)).astype(np.uint8)
    return Images(pixels.reshape(-1, 3, side, side), records[:, 0].astype(np.int64), len(TRAINING) * 10_000)


def _records(path: Path) -> Array:
    return np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(-1, 1 + 3 * SIDE * SIDE)


def partition(labels: Array, split: Split, sites: int, seed: int) -> list[Array]:
    """Row numbers of each site: disjoint, and the same number everywhere up to one."""
    rng = np.random.default_rng([seed, 1])
    rows = rng.permutation(len(labels))
    if split.kind == "gamma":
        return _similar(labels, rows, split.level, sites)
    return _dirichlet(labels, rows, split.level, sites, rng)


def _similar(labels: Array, rows: Array, gamma: float, sites: int) -> list[Array]:
    """A share γ of the rows at random, the others sorted by label and cut into one chunk per site."""
    alike, others = np.split(rows, [round(gamma * len(rows))])
    by_label = others[np.argsort(labels[others], kind="stable")]
    # A longer first part meets a shorter second one: all sites get the same number up to one.
    chunks = np.array_split(by_label, sites)[::-1]
    return [np.concatenate(pair) for pair in zip(np.array_split(alike, sites), chunks, strict=True)]


def _dirichlet(labels: Array, rows: Array, alpha: float, sites: int, rng: np.random.Generator) -> list[Array]:
    """Every site draws its shares of classes, and then rows by them; a class that is used up leaves the draw."""
    left = [list(rows[labels[rows] == label]) for label in range(CLASSES)]
    shares = rng.dirichlet(np.full(CLASSES, alpha), sites)
    owned: list[list[int]] = [[] for _ in range(sites)]
    # In turn, row by row: no site gets only what others have left.
    for _ in range(len(rows) // sites):
        for mine, share in zip(owned, shares, strict=True):
            # Not 0, so that a site whose classes are all used up takes what there is.
            open_share = (share + 1e-12) * [bool(pool) for pool in left]
            mine.append(left[rng.choice(CLASSES, p=open_share / open_share.sum())].pop())
    return [np.array(mine) for mine in owned]
