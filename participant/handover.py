"""What a worker gets of a site's table: an Arrow file with the columns that a job learns from, after the job's steps.

It lies in the job's private scratch space, for the site's own user alone, and goes with it. Which rows are kept apart
to evaluate on is drawn by a key of the site: nobody can choose rows by their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from commonscale.categories import TextRules, canonical
from commonscale.errors import ConfigError, StoreUnavailable, UnknownCategory, WrongType
from commonscale.estimators.assembly import FittedStep, dense
from commonscale.sources.source import Source
from commonscale.sources.view import cells_of
from commonscale.statistics.training.worker import Local

TARGET, EVALUATION = "@target", "@evaluation"
_AS_WRITTEN = TextRules()


def write(source: Source, steps: Sequence[FittedStep], local: Local, split_key: bytes, file: Path) -> list[str]:
    """The file; returns the names of the features in it."""
    steps = steps_on(steps, local.columns)
    features = feature_names(steps, local.columns)
    needed = table_columns(steps, local.columns, local.target, bool(local.classes))
    schema = pa.schema([*((name, pa.float64()) for name in features), (TARGET, pa.float64()), (EVALUATION, pa.bool_())])
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for piece in _pieces(source, steps, local, needed, features, split_key):
                writer.write_batch(pa.record_batch([piece[name] for name in schema.names], schema=schema))
    except OSError as error:
        why = error.strerror or "it takes no writes"
        raise StoreUnavailable(
            f"Rows for the worker cannot be kept in {file.parent}: {why}.", "Make room; the job goes on by itself."
        ) from None
    return features


def steps_on(steps: Sequence[FittedStep], columns: Sequence[str]) -> list[FittedStep]:
    """Those that these columns go through."""
    current, found = set(columns), []
    for step in steps:
        if current & step.columns.keys():
            found.append(step)
            current |= step.outputs.keys()
    return found


def feature_names(steps: Sequence[FittedStep], columns: Sequence[str]) -> list[str]:
    """What the steps make of these columns, in order; columns that no step touches stay."""
    current = dict.fromkeys(columns)
    for step in steps:
        named = [column for column in step.columns if column in current]
        gone = step.columns.keys() - step.outputs.keys()
        if not named or not gone:
            continue
        if missing := [column for column in step.columns if column not in current]:
            raise ConfigError(
                f"Step {step.name!r} makes new columns of {', '.join(map(repr, step.columns))} together, and training "
                f"names not all of them: {missing[0]!r} is missing.",
                "Name all of them under [train], or put that column into a step of its own.",
            )
        # In the place of the first of them.
        order: dict[str, None] = {}
        for column in current:
            if column == named[0]:
                order |= dict.fromkeys(step.outputs)
            elif column not in step.columns:
                order[column] = None
        current = order
    return list(current)


def table_columns(
    steps: Sequence[FittedStep], columns: Sequence[str], target: str, has_classes: bool
) -> tuple[list[str], list[str]]:
    """Columns of the table that are read as numbers and as texts."""
    kinds: dict[str, str] = {}
    made: set[str] = set()
    for step in steps:
        kinds |= {name: kind for name, kind in step.columns.items() if name not in made}
        made |= step.outputs.keys()
    kinds |= {name: "number" for name in columns if name not in kinds}
    kinds[target] = "text" if has_classes else "number"
    return [n for n, kind in kinds.items() if kind == "number"], [n for n, kind in kinds.items() if kind == "text"]


def _pieces(
    source: Source, steps: Sequence[FittedStep], local: Local, needed: tuple[list[str], list[str]],
    features: Sequence[str], split_key: bytes,
) -> Iterator[Mapping[str, pa.Array]]:  # fmt: skip
    start = 0
    for batch in source.batches(*needed):
        cells: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        target = _targets(source.site, local, cells[local.target])
        for step in steps:
            rows = np.column_stack([cells_of(cells[column], step.reads_texts) for column in step.columns])
            outputs = dense(step.estimator, rows)
            cells |= {name: outputs[:, at] for at, name in enumerate(step.outputs)}
        found = {name: _numbers(source.site, name, cells[name]) for name in features}
        apart = kept_apart(split_key, start, batch.num_rows, local.evaluation_share)
        yield {**found, TARGET: pa.array(target), EVALUATION: pa.array(apart)}
        start += batch.num_rows


def _numbers(site: str, name: str, column: Any) -> pa.Array:
    values = np.asarray(cells_of(column, as_objects=False), dtype=np.float64)
    if not np.isfinite(values).all():
        raise WrongType(
            f"{site}: feature {name!r} has missing values, which training does not take.",
            "Fill them in the table, or leave the column out.",
        )
    return pa.array(values)


def _targets(site: str, local: Local, column: Any) -> NDArray[np.float64]:
    """Numbers of classes, or values."""
    if not local.classes:
        return np.asarray(_numbers(site, local.target, column))
    numbers = {canonical(name, _AS_WRITTEN): float(at) for at, name in enumerate(local.classes)}
    try:
        return np.array([numbers[canonical(cell, _AS_WRITTEN)] for cell in cells_of(column, as_objects=True)])
    except KeyError:
        raise UnknownCategory(
            f"{site}: column {local.target!r} holds a value that is not among the job's classes, or none.",
            "Name all classes under [train], or leave those rows out.",
        ) from None


def kept_apart(key: bytes, start: int, count: int, share: float) -> NDArray[np.bool_]:
    """Which of these rows are for evaluation: by a keystream at the place of the row."""
    if not share:
        return np.zeros(count, dtype=bool)
    # Four bytes per row, 16 per block.
    first, skip = divmod(4 * start, 16)
    stream = Cipher(algorithms.AES(key), modes.CTR(first.to_bytes(16, "big"))).encryptor()
    raw = stream.update(bytes(skip + 4 * count))[skip:]
    return np.frombuffer(raw, "<u4") < share * 2.0**32
