"""Apply a fitted estimator to a site's table, batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from commonscale.errors import ConfigError
from participant.data import DuckTable


def write_transformed(table: DuckTable, estimator: Any, output: Path) -> Iterator[int]:
    """Write the transformed table; yields the rows of each batch written. Missing values stay missing."""
    columns = [str(name) for name in estimator.feature_names_in_]
    table.check_numeric(columns)
    writer: Any = None
    fresh = output.with_name(output.name + ".new")
    try:
        for batch in table.batches(columns):
            transformed = _transform(batch, columns, estimator)
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


def _transform(batch: pa.RecordBatch, columns: list[str], estimator: Any) -> pa.RecordBatch:
    stacked = [batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in columns]
    with warnings.catch_warnings():
        # scikit-learn misses the columns' names on an array; the order here is the estimator's own.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        scaled = estimator.transform(np.column_stack(stacked))
    arrays = {name: pa.array(scaled[:, index], from_pandas=True) for index, name in enumerate(columns)}
    return pa.RecordBatch.from_arrays(
        [arrays.get(name, batch.column(name)) for name in batch.schema.names], names=batch.schema.names
    )


def _writer(output: Path, fresh: Path, schema: pa.Schema) -> Any:
    if output.suffix == ".parquet":
        return pa.parquet.ParquetWriter(fresh, schema)
    if output.suffix == ".csv":
        return pa.csv.CSVWriter(fresh, schema)
    raise ConfigError(f"{output}: only .csv and .parquet can be written.")
