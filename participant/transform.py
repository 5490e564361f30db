"""Apply a fitted estimator to a site's table, batch by batch.

`pipeline.skops` takes cells; which texts mean "missing" at this site, and what its outputs hold, is in `pipeline.json`
beside it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pydantic import BaseModel, ValidationError

from commonscale.errors import ConfigError, UnknownCategory
from commonscale.estimators import assembly
from commonscale.estimators.assembly import Columns, Kind
from commonscale.estimators.encoder import UnknownValueError
from commonscale.sources.duckdb import DuckDbSource
from commonscale.sources.source import ROWS_AT_ONCE, check
from commonscale.sources.view import cells_of

# Of one piece of the output: one-hot columns are many, and a batch of the table has many rows.
_CELLS_AT_ONCE = 1 << 23
_TEXT = pa.large_string()
RECORD_FILE = "pipeline.json"


class PipelineRecord(BaseModel, frozen=True):
    """What a job knew of the site's table."""

    dataset: str
    # Beside the empty one.
    missing: list[str]
    # Columns that are read as numbers, and those that are read as texts.
    numbers: list[str]
    texts: list[str]
    outputs: dict[str, Kind]


def record_beside(estimator: Path) -> PipelineRecord | None:
    """What is known of the job that an estimator's file comes from; None if there is no such file beside it."""
    path = estimator.with_name(RECORD_FILE)
    try:
        return PipelineRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise ConfigError(
            f"{path} cannot be read, or is not what a job wrote.", "Take it from the results again."
        ) from None


def write_transformed(table: DuckDbSource, estimator: Any, output: Path, kinds: Columns | None = None) -> Iterator[int]:
    """Write the transformed table; yields the rows of each piece written. Missing values stay missing.

    An output with the name of an input takes its place. The other inputs go, and the other outputs come last. Columns
    that the estimator does not take are written as they are. `kinds` says which outputs are texts.
    """
    writers = {".parquet": pa.parquet.ParquetWriter, ".csv": _CsvWriter}
    if output.suffix not in writers:
        raise ConfigError(f"Only .csv and .parquet can be written, not {output.suffix!r}.")
    fresh = output.with_name(output.name + ".new")
    writer: Any = None
    try:
        for piece in _pieces(table, estimator, kinds or {}):
            writer = writer or writers[output.suffix](fresh, piece.schema)
            writer.write_table(piece)
            yield piece.num_rows
        if writer is None:
            raise ConfigError(f"{table.name} has no rows; nothing was written.")
        writer.close()
        fresh.replace(output)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Its message may show a cell.
        raise ConfigError(
            f"The table has a column that cannot be written as {output.suffix}.",
            "Write Parquet, which has types for it.",
        ) from None
    finally:
        if writer is not None:
            writer.close()
        fresh.unlink(missing_ok=True)


def _pieces(table: DuckDbSource, estimator: Any, kinds: Columns) -> Iterator[pa.Table]:
    """The transformed table, in pieces of bounded size."""
    columns = [str(name) for name in estimator.feature_names_in_]
    outputs = [str(name) for name in estimator.get_feature_names_out()]
    schema, (numbers, texts) = table.schema(), assembly.table_columns(estimator)
    check(table, numbers, texts)
    written = [name for name in schema if name not in columns]
    for name in written:
        if name in outputs:
            raise ConfigError(f"The table has a column {name!r}, and so has the encoding.", "Rename that column.")
    # In the table's order, with what takes an input's place.
    order = dict.fromkeys([*(name for name in schema if name in written or name in outputs), *outputs])
    rows_at_once = min(ROWS_AT_ONCE, _CELLS_AT_ONCE // max(1, len(outputs)))
    for used, beside in table.beside(numbers, texts, written, max(1, rows_at_once)):
        try:
            rows = [cells_of(used.column(name), name in texts) for name in columns]
            found = assembly.dense(estimator, np.column_stack(rows))
        except UnknownValueError as error:
            remedy = "Run a job on the new table, or one with handle_unknown = 'ignore'."
            raise UnknownCategory(f"{table.name}: {error}", remedy) from None
        made = {name: _output(name, kinds.get(name), found[:, index]) for index, name in enumerate(outputs)}
        made |= {name: beside.column(name) for name in written}
        yield pa.table({name: made[name] for name in order})


def _output(name: str, kind: Kind | None, cells: Any) -> pa.Array:
    if kind == "text":
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())
    try:
        return pa.array(cells.astype(np.float64), from_pandas=True)
    except (TypeError, ValueError):
        # The original message shows the cell.
        raise ConfigError(
            f"Output {name!r} is not a number, and nothing says that it is a text.",
            "Keep pipeline.json beside the estimator's file.",
        ) from None


class _CsvWriter:
    """As pyarrow's, which puts quotes around every text: these are only where they are needed.

    A null is an empty cell, an empty text a quoted one.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("wb")
        # A line without any character would be no row.
        self._null = '""' if len(schema) == 1 else ""
        self._write([_cells(pa.array([name], _TEXT)) for name in schema.names])

    def write_table(self, table: pa.Table) -> None:
        """Raises pyarrow's exceptions for types that have no text."""
        for batch in table.to_batches():
            self._write([pc.fill_null(_cells(column), self._null) for column in batch.columns])

    def close(self) -> None:
        """Nothing can be written any more."""
        self._file.close()

    def _write(self, columns: list[Any]) -> None:
        """Rows of texts, joined without a Python object for any of them."""
        *others, last = columns
        ended = pc.binary_join_element_wise(last, pa.scalar("\n", _TEXT), pa.scalar("", _TEXT))
        lines = pc.binary_join_element_wise(*others, ended, pa.scalar(",", _TEXT))
        _, offsets, characters = lines.buffers()
        start, end = np.frombuffer(offsets, dtype=np.int64)[[lines.offset, lines.offset + len(lines)]]
        self._file.write(memoryview(characters)[start:end])


def _cells(column: Any) -> Any:
    """Texts of a column, with quotes around those that would be taken for something else."""
    texts = pc.cast(column, _TEXT)
    if pa.types.is_primitive(column.type):
        return texts
    quote = pa.scalar('"', _TEXT)
    quoted = pc.binary_join_element_wise(quote, pc.replace_substring(texts, '"', '""'), quote, pa.scalar("", _TEXT))
    needed = pc.or_(pc.match_substring_regex(texts, '[",\r\n]'), pc.equal(texts, pa.scalar("", _TEXT)))
    return pc.if_else(needed, quoted, texts)
