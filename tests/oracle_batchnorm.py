"""Torch's own BatchNorm on activations that workers wrote down, pooled over the sites: its running statistics.

python tests/oracle_batchnorm.py DIRECTORY ROUNDS OUTPUT.npz

DIRECTORY has a folder per worker, with LAYER-NUMBER.npy for every batch of a round.
"""

import sys
from pathlib import Path

import numpy as np
import torch


def main(directory: Path, rounds: int, output: str) -> None:
    means, variances = [], []
    for layer in "abc":
        norm = None
        for number in range(rounds):
            pooled = np.concatenate(
                [np.load(worker / f"{layer}-{number}.npy") for worker in sorted(directory.iterdir())]
            )
            kind = torch.nn.BatchNorm2d if pooled.ndim == 4 else torch.nn.BatchNorm1d
            norm = norm or kind(pooled.shape[1], dtype=torch.float64)
            norm(torch.from_numpy(pooled))
        assert norm is not None
        means.append(norm.running_mean.numpy())
        variances.append(norm.running_var.numpy())
    np.savez(output, mean=np.concatenate(means), variance=np.concatenate(variances))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
