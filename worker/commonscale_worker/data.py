"""The rows of a job: the participant's Arrow file, mapped into memory, as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commonscale_worker.errors import DataError
from commonscale_worker.vectors import Array

TARGET = "@target"
EVALUATION = "@evaluation"


class Data:
    """A site's rows: `x` and `y` to train on, `x_evaluation` and `y_evaluation` to measure with.

    x has one column per feature, in the job's precision; y holds numbers of classes (int64), or values.
    """

    def __init__(self, x: Array, y: Array, evaluation: Array, classes: int, precision: str) -> None:
        # Of what Prepare says: 0 classes, the target is a number.
        self.classes = classes
        y = _classes(y, classes) if classes else np.asarray(y, precision)
        x = np.asarray(x, precision)
        self.x: Array = x[~evaluation]
        self.y: Array = y[~evaluation]
        self.x_evaluation: Array = x[evaluation]
        self.y_evaluation: Array = y[evaluation]

    @classmethod
    def open(cls, path: str | Path, features: Sequence[str], classes: int, precision: str) -> Data:
        """Read the file of a Prepare; what does not fit is a DataError."""
        import pyarrow as pa

        try:
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_file(source).read_all()
                missing = sorted({*features, TARGET, EVALUATION} - set(table.column_names))
                if missing:
                    raise DataError(f"the data has no column {missing[0]!r}")
                x = np.empty((table.num_rows, len(features)), precision)
                for number, name in enumerate(features):
                    x[:, number] = _numbers(table.column(name), name)
                y = _numbers(table.column(TARGET), TARGET)
                evaluation = np.array(table.column(EVALUATION).to_numpy(zero_copy_only=False), bool)
                return cls(x, y.copy(), evaluation, classes, precision)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"the data cannot be read: {error}") from error

    @property
    def rows(self) -> int:
        """Rows to train on."""
        return len(self.x)

    @property
    def evaluation_rows(self) -> int:
        """Rows to measure with."""
        return len(self.x_evaluation)


def _numbers(column: Any, name: str) -> Array:
    found = np.asarray(column.to_numpy())
    if not np.issubdtype(found.dtype, np.number) or not np.isfinite(found).all():
        raise DataError(f"column {name!r} has values that are no finite numbers")
    return found


def _classes(y: Array, classes: int) -> Array:
    found = np.asarray(y).astype(np.int64)
    if (found != y).any() or (len(found) and not 0 <= found.min() <= found.max() < classes):
        raise DataError(f"the target has values that are no number of one of the {classes} classes")
    return found
