"""One scikit-learn Pipeline that does to new rows what all steps of a job did.

A step works on the columns as the steps before it left them. Steps that do not wait for each other stand side by side
in one stage, a ColumnTransformer; what one of them makes, a later stage takes. Before them stands a stage that takes
the table's columns, by name from a DataFrame and by position from an array; all later stages see arrays.

Nothing learns anything from rows any more: every stage is frozen. Only classes of scikit-learn are in it if every step
is one, so that a file of it needs nothing else.
"""

import copy
import itertools
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from commonscale.errors import WrongType
from commonscale.estimators.encoder import CellsAsTheyAre, Encoder, UnknownValueError

# The first stage, and its groups of columns: `table_columns` reads from a file what it takes as what.
TABLE = "table"
NUMBERS, TEXTS = "numbers", "texts"
Kind = Literal["number", "text"]
# Columns in order, with what they hold.
Columns = dict[str, Kind]


@dataclass(frozen=True)
class FittedStep:
    """A fitted estimator of a job: it takes columns as the steps before it left them, and leaves others instead."""

    name: str
    estimator: Any = field(repr=False)
    reads_texts: bool

    @cached_property
    def columns(self) -> Columns:
        """What it takes."""
        return dict.fromkeys(map(str, self.estimator.feature_names_in_), "text" if self.reads_texts else "number")

    @cached_property
    def outputs(self) -> Columns:
        """What it makes."""
        numbers = not self.reads_texts or isinstance(self.estimator, Encoder)
        return dict.fromkeys(map(str, self.estimator.get_feature_names_out()), "number" if numbers else "text")


def dense(estimator: Any, rows: Any) -> Any:
    """What an estimator makes of rows without names, as a dense array."""
    with warnings.catch_warnings():
        # scikit-learn misses the columns' names on an array; the order here is the estimator's own.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        try:
            found = estimator.transform(rows)
        except UnknownValueError:
            raise
        except ValueError:
            # Its message may show a cell.
            names = ", ".join(map(repr, estimator.feature_names_in_))
            raise WrongType(
                f"A row has a value of {names} that {type(estimator).__name__} does not take, or lacks one.",
                "Fill missing values, or leave the column out.",
            ) from None
    return found.toarray() if sparse.issparse(found) else np.asarray(found)


def assemble(steps: Sequence[FittedStep]) -> Pipeline:
    """All steps in one fitted Pipeline. Columns that no step names are no part of it."""
    table, final = table_and_outputs(steps)
    stage, columns = _table_stage(table, any(isinstance(step.estimator, Encoder) for step in steps))
    stages = [(TABLE, stage)]
    for number, together in enumerate(_side_by_side(steps), start=1):
        stage, columns = _stage(columns, together)
        stages.append((f"stage_{number}", stage))
    if list(columns) != list(final):
        stages.append(("order", _fitted(columns, [("columns", "passthrough", final)])))
    return Pipeline([(name, FrozenEstimator(stage)) for name, stage in stages])


def table_and_outputs(steps: Sequence[FittedStep]) -> tuple[Columns, Columns]:
    """The columns that come from the table, and those that the last step leaves, in order."""
    table, live, gone = Columns(), Columns(), set[str]()
    for step in steps:
        for name in step.columns:
            if name in gone:
                raise ValueError(f"Step {step.name!r} names column {name!r}, which an earlier step has replaced.")
        for name in step.outputs:
            if name in live and name not in step.columns:
                raise ValueError(f"Step {step.name!r} makes a column {name!r}, and there is one already.")
        fresh = {name: kind for name, kind in step.columns.items() if name not in live}
        table |= fresh
        # Outputs with the name of an input take its place; others come last.
        left = {n: kind for n, kind in (live | fresh).items() if n not in step.columns or n in step.outputs}
        live = left | step.outputs
        gone = (gone | step.columns.keys()) - step.outputs.keys()
    return table, live


def table_columns(estimator: Any) -> tuple[list[str], list[str]]:
    """Columns of the table that an estimator takes as numbers, and those that it takes as texts."""
    columns = [str(column) for column in estimator.feature_names_in_]
    if not (isinstance(estimator, Pipeline) and TABLE in estimator.named_steps):
        return ([], columns) if isinstance(estimator, Encoder) else (columns, [])
    groups = {name: [columns[place] for place in places] for name, _, places in estimator[TABLE].transformers_}
    return groups.get(NUMBERS, []), groups.get(TEXTS, [])


def _side_by_side(steps: Sequence[FittedStep]) -> list[list[FittedStep]]:
    """The steps of each stage: a step comes after all that have read or made a column of a name that it uses."""
    stages: list[list[FittedStep]] = []
    first: dict[str, int] = {}
    for step in steps:
        names = step.columns | step.outputs
        stage = max(first.get(name, 0) for name in names)
        if stage == len(stages):
            stages.append([])
        stages[stage].append(step)
        first |= dict.fromkeys(names, stage + 1)
    return stages


def _table_stage(columns: Columns, has_encoders: bool) -> tuple[ColumnTransformer, Columns]:
    """Takes the table's columns; texts stay what they are. Also its columns, in the order in which they leave it."""
    numbers, texts = _by_kind(columns)
    take_numbers: Any = "passthrough"
    if texts and not has_encoders:
        # Beside an array of floats, True would become 1.0; beside objects, it stays.
        take_numbers = Pipeline([("floats", _cast("float64")), ("objects", _cast("object"))])
    take_texts = CellsAsTheyAre() if has_encoders else "passthrough"
    stage = _fitted(columns, [(NUMBERS, take_numbers, numbers), (TEXTS, take_texts, texts)])
    # As scikit-learn has them: a message names those that a DataFrame lacks.
    stage.feature_names_in_ = stage.feature_names_in_.astype(object)
    return stage, numbers | texts


def _stage(columns: Columns, steps: Sequence[FittedStep]) -> tuple[ColumnTransformer, Columns]:
    """Steps, and what passes by them; also its columns, in the order in which they leave it."""
    read = {name for step in steps for name in step.columns}
    numbers, texts = _by_kind({name: kind for name, kind in columns.items() if name not in read})
    # Texts beside them have made numbers objects.
    kept = [("numbers_kept", _cast("float64"), numbers), ("others_kept", "passthrough", texts)]
    stage = _fitted(columns, [*((step.name, "passthrough", step.columns) for step in steps), *kept])
    # Only now, so that no step sees the row that the stage was fitted on.
    estimators = {step.name: _without_names(step.estimator) for step in steps}
    stage.transformers_ = [(name, estimators.get(name, other), at) for name, other, at in stage.transformers_]
    stage.transformers = [(name, clone(each), at) for name, each, at in stage.transformers_]
    widths = {name: len(at) for name, _, at in stage.transformers_} | {step.name: len(step.outputs) for step in steps}
    for name, end in zip(widths, itertools.accumulate(widths.values()), strict=True):
        stage.output_indices_[name] = slice(end - widths[name], end)
    return stage, {name: kind for step in steps for name, kind in step.outputs.items()} | numbers | texts


def _by_kind(columns: Columns) -> tuple[Columns, Columns]:
    """Numbers, and texts."""
    texts: Columns = {name: kind for name, kind in columns.items() if kind == "text"}
    return {name: kind for name, kind in columns.items() if name not in texts}, texts


def _cast(dtype: str) -> FunctionTransformer:
    """Lets columns through as another type."""
    # A ufunc, since a file with any other function would have to be trusted first.
    return FunctionTransformer(
        np.positive, kw_args={"dtype": dtype, "casting": "unsafe"}, feature_names_out="one-to-one"
    )


def _without_names(estimator: Any) -> Any:
    """A copy that has not seen any names: scikit-learn's own estimators warn about arrays if they have."""
    if isinstance(estimator, Encoder):
        return estimator
    nameless = copy.copy(estimator)
    del nameless.feature_names_in_
    return nameless


def _fitted(columns: Columns, members: Sequence[tuple[str, Any, Collection[str]]]) -> ColumnTransformer:
    """A ColumnTransformer, fitted on a row of zeros; members without columns are left out."""
    place = {name: at for at, name in enumerate(columns)}
    # Arrays: in a file, skops would spend hundreds of bytes on every number of a list, and on every name.
    placed = [(name, each, np.array([place[column] for column in taken])) for name, each, taken in members if taken]
    # By this format names stay as they are.
    made = ColumnTransformer(placed, sparse_threshold=0, verbose_feature_names_out="{feature_name}")
    made.fit(np.zeros((1, len(columns))))
    made._transformer_to_input_indices = {name: at for name, _, at in placed}
    made.feature_names_in_ = np.array(list(columns), dtype=np.str_)
    return made
