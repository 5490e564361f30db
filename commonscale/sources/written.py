"""Columns of Parquet files with the types that they have there: on the way through DuckDB, some become others."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq


class WrittenRows:
    """The rows of some files, one file after another, to be taken in order."""

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        self._batches = _batches(paths, list(columns))
        self._left = next(self._batches)

    def take(self, count: int) -> pa.Table:
        """The next rows; ValueError if there are fewer."""
        while self._left.num_rows < count:
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError("The files have fewer rows than were asked for.")
            self._left = pa.concat_tables([self._left, batch])
        taken, self._left = self._left.slice(0, count), self._left.slice(count)
        return taken


def _batches(paths: Sequence[str], columns: list[str]) -> Iterator[pa.Table]:
    """First a table without rows, for its types."""
    schema: pa.Schema | None = None
    for path in paths:
        with pq.ParquetFile(path) as file:
            if schema is None:
                schema = pa.schema([file.schema_arrow.field(name) for name in columns])
                yield schema.empty_table()
            for batch in file.iter_batches():
                # By the first file's types, as DuckDB reads several files.
                yield pa.Table.from_batches([batch.select(columns)]).cast(schema)
