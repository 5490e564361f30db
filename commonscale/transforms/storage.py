"""Fitted estimators in files, by skops: a file can be inspected, and loading it runs no code from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# By name: to import them takes a second that a caller without encoders need not wait for.
TRUSTED = (
    "commonscale.transforms.columns.FederatedColumnTransformer",
    "commonscale.transforms.encoders.FederatedOneHotEncoder",
    "commonscale.transforms.encoders.FederatedOrdinalEncoder",
    "commonscale.transforms.encoders.FederatedTargetEncoder",
    "commonscale.transforms.text_encoders.BytesNormEncoder",
    "commonscale.transforms.text_encoders.FastTextEncoder",
    "commonscale.transforms.text_encoders.ModNormEncoder",
    "commonscale.transforms.text_encoders.RollingHashEncoder",
)


def preload() -> None:
    """Import what the first job would otherwise wait for."""
    import skops.io
    from sklearn.preprocessing import StandardScaler

    _ = skops.io, StandardScaler


def save(estimator: Any, path: Path) -> None:
    """Write a fitted estimator."""
    import skops.io

    skops.io.dump(estimator, path)


def load(path: Path) -> Any:
    """Only types of scikit-learn, numpy and our own encoders are accepted."""
    import skops.io

    return skops.io.load(path, trusted=list(TRUSTED))
