"""The three tabular data sets (Table VIII of the paper), each split into training, validation and test rows.

Breast cancer: 569 × 30, two classes, from scikit-learn. HCV: 615 × 12 (age, sex, ten laboratory values), five
classes; the 31 missing cells take the median of the training rows, before the data are dealt out, the same in every
arm. Parkinson's: 5,875 × 16, the voice measures; the target is total_UPDRS, put on the mean and spread of its
training rows so that one learning rate serves all sets (R² does not change by that).
"""

from __future__ import annotations

import csv
import io
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from commonscale_worker.networks import architectures
from commonscale_worker.networks.losses import FloatArray, Targets
from commonscale_worker.networks.model import Architecture, Task
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from commonscale.errors import ConfigError

TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1  # the second is of what the first leaves
Table: TypeAlias = tuple[FloatArray, Targets]


@dataclass(frozen=True)
class Part:
    """Some rows: features and targets."""

    x: FloatArray
    y: Targets

    def __len__(self) -> int:
        """Rows."""
        return len(self.x)

    def take(self, rows: npt.NDArray[np.intp]) -> Part:
        """The named rows."""
        return Part(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Split:
    """Training, validation and test rows, of a data set or of one client."""

    train: Part
    validation: Part
    test: Part

    def parts(self) -> tuple[Part, Part, Part]:
        """All three."""
        return self.train, self.validation, self.test


def data_directory() -> Path:
    """Where the data sets are: COMMONSCALE_DATA, or shared/data beside the repository."""
    path = Path(os.environ.get("COMMONSCALE_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not path.is_dir():
        raise ConfigError(f"There are no data sets at {path}.", "Set COMMONSCALE_DATA to their directory.")
    return path


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise ConfigError(f"{path} is missing.", "Set COMMONSCALE_DATA to the directory of the data sets.")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(io.StringIO(file.read())))


def _breast_cancer(_directory: Path) -> Table:
    x, y = load_breast_cancer(return_X_y=True)
    return np.asarray(x, dtype=float), np.asarray(y, dtype=np.int64)


def _hcv(directory: Path) -> Table:
    rows = _rows(directory / "hcv" / "hcvdat0.csv.xz")
    values = {"m": "1", "f": "0", "NA": "nan"}
    names = [name for name in rows[0] if name not in {"", "Category"}]
    x = np.array([[float(values.get(row[name], row[name])) for name in names] for row in rows])
    return x, np.unique([row["Category"] for row in rows], return_inverse=True)[1]


def _parkinsons(directory: Path) -> Table:
    rows = _rows(directory / "parkinsons_telemonitoring" / "parkinsons_updrs.data.xz")
    others = {"subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS"}
    names = [name for name in rows[0] if name not in others]
    return np.array([[float(row[n]) for n in names] for row in rows]), np.array([float(r["total_UPDRS"]) for r in rows])


@dataclass(frozen=True)
class Dataset:
    """Where the rows come from, and the network that learns them."""

    name: str
    load: Callable[[Path], Table]
    architecture: Architecture

    @property
    def metric(self) -> str:
        """What a score of this set is."""
        return "R2" if self.architecture.task is Task.REGRESSION else "F1"


DATASETS = {
    d.name: d
    for d in (
        Dataset("breast-cancer", _breast_cancer, architectures.BREAST_CANCER),
        Dataset("hcv", _hcv, architectures.HCV),
        Dataset("parkinsons", _parkinsons, architectures.PARKINSONS),
    )
}


def load_split(dataset: Dataset, directory: Path, *, seed: int, most_rows: int | None = None) -> Split:
    """80/20 into the rest and test, then 90/10 into training and validation; classes keep their shares."""
    x, y = dataset.load(directory)
    if most_rows is not None and len(x) > most_rows:
        kept = np.random.default_rng([seed, 0]).choice(len(x), most_rows, replace=False)
        x, y = x[kept], y[kept]
    classes = dataset.architecture.task is not Task.REGRESSION
    x, x_test, y, y_test = train_test_split(
        x, y, test_size=TEST_SHARE, random_state=seed, stratify=y if classes else None
    )
    x, x_val, y, y_val = train_test_split(
        x, y, test_size=VALIDATION_SHARE, random_state=seed, stratify=y if classes else None
    )
    split = Split(Part(x, y), Part(x_val, y_val), Part(x_test, y_test))
    return _prepared(split, standardize_target=not classes)


def _prepared(split: Split, *, standardize_target: bool) -> Split:
    """Missing cells filled with training medians; a real-valued target on its training mean and spread."""
    medians = np.nanmedian(split.train.x, axis=0)
    parts = [replace(part, x=np.where(np.isnan(part.x), medians, part.x)) for part in split.parts()]
    if standardize_target:
        mean, spread = split.train.y.mean(), split.train.y.std()
        parts = [replace(part, y=(part.y - mean) / spread) for part in parts]
    return Split(*parts)
