"""Networks of the tabular data sets: Table VII of the paper, without the normalization of activations."""

from __future__ import annotations

from commonscale_worker.networks.model import Architecture, Task

BREAST_CANCER = Architecture(inputs=30, hidden=(12, 8), outputs=1, task=Task.BINARY)
HCV = Architecture(inputs=12, hidden=(16, 8, 8), outputs=5, task=Task.MULTICLASS)
PARKINSONS = Architecture(
    inputs=16, hidden=(128, 64, 32, 16), outputs=1, task=Task.REGRESSION, dropout=(0.2, 0.2, 0.2, 0.0)
)
