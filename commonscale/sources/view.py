"""A source after earlier steps of the same pipeline: a later step sees scaled and encoded values.

What the earlier steps make of the columns that a step needs is written, piece by piece, to a file in the site's private
scratch space; queries then go to that file. It is deleted at the end of the job.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from commonscale.categories import TextRules, canonical
from commonscale.errors import StoreUnavailable
from commonscale.estimators.assembly import Columns, FittedStep, dense
from commonscale.sources.duckdb import DuckDbSource
from commonscale.sources.source import Source


def view(
    source: Source, steps: Sequence[FittedStep], numeric: Sequence[str], texts: Sequence[str], file: Path
) -> Source:
    """The source after some steps, for a step that needs these columns; the source itself if they are untouched."""
    wanted: Columns = {**dict.fromkeys(texts, "text"), **dict.fromkeys(numeric, "number")}
    needed = _needed(steps, set(wanted))
    if not needed:
        return source
    raw, made = dict[str, str](), set[str]()
    for step in needed:
        raw |= {name: kind for name, kind in step.columns.items() if name not in made}
        made |= _changed(step)
    raw |= {name: kind for name, kind in wanted.items() if name not in made}
    pieces = source.batches(
        [name for name, kind in raw.items() if kind == "number"], [name for name, kind in raw.items() if kind == "text"]
    )
    _write(file, (_applied(batch, needed, wanted) for batch in pieces), wanted)
    return DuckDbSource(source.site, source.name, file)


def _needed(steps: Sequence[FittedStep], columns: set[str]) -> list[FittedStep]:
    """The steps that these columns come from, in order."""
    found: list[FittedStep] = []
    for step in reversed(steps):
        if columns & _changed(step):
            found.insert(0, step)
            columns |= step.columns.keys()
    return found


def _changed(step: FittedStep) -> set[str]:
    """Columns that a later step sees changed. One that only has the name of a new output is the table's own."""
    return step.columns.keys() & step.outputs.keys()


def _applied(batch: pa.RecordBatch, steps: Sequence[FittedStep], wanted: Columns) -> Mapping[str, Any]:
    """One piece of the table after the steps."""
    cells: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
    for step in steps:
        rows = [cells_of(cells[column], step.reads_texts) for column in step.columns]
        outputs = dense(step.estimator, np.column_stack(rows))
        cells |= {name: outputs[:, at] for at, name in enumerate(step.outputs) if name in step.columns}
    return {name: _texts(cells[name]) if kind == "text" else cells[name] for name, kind in wanted.items()}


def _texts(cells: Any) -> pa.Array:
    """As a source compares them: Arrow's own texts of numbers and times are others."""
    column = pa.array(cells, from_pandas=True) if isinstance(cells, np.ndarray) else cells
    if pa.types.is_string(column.type):
        return column
    encoded = column.dictionary_encode()
    texts = [canonical(value, TextRules(strip=False)) for value in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def cells_of(column: Any, as_objects: bool) -> Any:
    """A column as an array: of floats, or of objects where texts are read."""
    if isinstance(column, np.ndarray):
        return column.astype(object) if as_objects else column
    if not as_objects:
        return column.to_numpy(zero_copy_only=False)
    found = np.empty(len(column), dtype=object)
    found[:] = column.to_pylist()
    return found


def _write(file: Path, pieces: Iterator[Mapping[str, Any]], columns: Columns) -> None:
    """All pieces into a file that only its owner may read; of a table without rows, its columns."""
    schema = pa.schema({name: pa.string() if kind == "text" else pa.float64() for name, kind in columns.items()})
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # What an attempt before this one has left.
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        with pq.ParquetWriter(file, schema) as writer:
            for piece in pieces:
                writer.write_table(pa.table(piece).cast(schema))
    except OSError as error:
        # Without room on the disk the job waits, as for every other file of the site; faults of sources have a class
        # of their own.
        why = error.strerror or "it takes no writes"
        raise StoreUnavailable(
            f"Earlier steps' rows cannot be kept in {file.parent}: {why}.", "Make room; the job goes on by itself."
        ) from None
