"""Fitted estimators in files, by skops: a file can be inspected, and loading it runs no code from it."""

import zipfile
from pathlib import Path
from typing import Any

# By name: to import them takes a second that a caller without encoders need not wait for.
TRUSTED = (
    "commonscale.estimators.encoder.CellsAsTheyAre",
    "commonscale.estimators.encoders.FederatedOneHotEncoder",
    "commonscale.estimators.encoders.FederatedOrdinalEncoder",
    "commonscale.estimators.encoders.FederatedTargetEncoder",
    "commonscale.estimators.text_encoders.BytesNormEncoder",
    "commonscale.estimators.text_encoders.FastTextEncoder",
    "commonscale.estimators.text_encoders.ModNormEncoder",
    "commonscale.estimators.text_encoders.RollingHashEncoder",
    # Some of scikit-learn's own hold one: SimpleImputer, KBinsDiscretizer; and SplineTransformer holds curves.
    "numpy.dtype",
    "scipy.interpolate._bsplines.BSpline",
)


def save(estimator: Any, path: Path) -> None:
    """Write a fitted estimator; a reader sees no half of it."""
    import skops.io

    fresh = path.with_name(f"{path.name}.new")
    # Compressed: skops writes an object anew wherever another one refers to it.
    skops.io.dump(estimator, fresh, compression=zipfile.ZIP_DEFLATED)
    fresh.replace(path)


def load(path: Path) -> Any:
    """Only types of scikit-learn, numpy and our own encoders are accepted."""
    import skops.io

    return skops.io.load(path, trusted=list(TRUSTED))
