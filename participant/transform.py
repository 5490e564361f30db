"""Apply a fitted estimator to a site's table, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from commonscale.errors import ConfigError, UnknownCategory
from commonscale.transforms.columns import dense
from commonscale.transforms.encoders import UnknownValueError
from participant.data import DuckTable

# Of one piece of the output: one-hot columns are many, and a batch of the table has many rows.
_CELLS_AT_ONCE = 1 << 23


def write_transformed(table: DuckTable, estimator: Any, output: Path) -> Iterator[int]:
    """Write the transformed table; yields the rows of each piece written. Missing values stay missing.

    An output with the name of an input takes its place. The other inputs go, and the other outputs come last.
    """
    columns = [str(name) for name in estimator.feature_names_in_]
    outputs = [str(name) for name in estimator.get_feature_names_out()]
    numeric, categorical = _kinds(estimator, columns)
    table.check_numeric(numeric)
    # A column in both roles comes as text: that can still be read as a number.
    batches = table.batches([name for name in numeric if name not in set(categorical)], categorical)
    writer: Any = None
    fresh = output.with_name(output.name + ".new")
    try:
        for piece in _pieces(batches, max(1, _CELLS_AT_ONCE // max(1, len(outputs)))):
            try:
                transformed = _transform(piece, estimator, columns, outputs, set(categorical))
            except UnknownValueError as error:
                remedy = "Run a job on the new table, or one with handle_unknown = 'ignore'."
                raise UnknownCategory(f"{table.name}: {error}", remedy) from None
            if writer is None:
                writer = _writer(output, fresh, transformed.schema)
            writer.write_batch(transformed)
            yield transformed.num_rows
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise ConfigError(f"{table.name} has no rows; nothing was written.")
    fresh.replace(output)


def _kinds(estimator: Any, columns: list[str]) -> tuple[list[str], list[str]]:
    """Columns that are taken as numbers, and those that are taken as texts."""
    if hasattr(estimator, "categorical_columns_"):
        return list(estimator.numeric_columns_), list(estimator.categorical_columns_)
    return ([], columns) if getattr(estimator, "categorical_", False) else (columns, [])


def _pieces(batches: Iterable[pa.RecordBatch], rows_at_once: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows_at_once):
            yield batch.slice(start, rows_at_once)


def _transform(
    batch: pa.RecordBatch, estimator: Any, columns: list[str], outputs: list[str], categorical: set[str]
) -> pa.RecordBatch:
    found = dense(estimator, _rows(batch, columns, categorical))
    arrays = {name: pa.array(found[:, index], from_pandas=True) for index, name in enumerate(outputs)}
    kept = {name: batch.column(name) for name in batch.schema.names if name not in columns or name in arrays}
    for name in arrays:
        if name in kept and name not in columns:
            raise ConfigError(f"The table has a column {name!r}, and so has the encoding.", "Rename that column.")
    made = kept | arrays
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


def _rows(batch: pa.RecordBatch, columns: list[str], categorical: set[str]) -> Any:
    """The estimator's inputs: floats if they all are numbers, else objects."""
    if not categorical:
        return np.column_stack([_floats(batch, name) for name in columns])
    rows = np.empty((batch.num_rows, len(columns)), dtype=object)
    for index, name in enumerate(columns):
        rows[:, index] = batch.column(name).to_pylist() if name in categorical else _floats(batch, name)
    return rows


def _floats(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64)


def _writer(output: Path, fresh: Path, schema: pa.Schema) -> Any:
    if output.suffix == ".parquet":
        return pa.parquet.ParquetWriter(fresh, schema)
    if output.suffix == ".csv":
        return pa.csv.CSVWriter(fresh, schema)
    raise ConfigError(f"{output}: only .csv and .parquet can be written.")
