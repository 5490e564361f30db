"""Several fitted estimators over one table: each takes its columns, their outputs stand side by side."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from commonscale.transforms.encoder import NOT_FITTED, Floats, Objects, unique

Transformer = tuple[str, Any, Sequence[str]]


class FederatedColumnTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """As scikit-learn's ColumnTransformer, over fitted scalers and encoders. A column may go to several of them."""

    def __init__(self, *, transformers: Sequence[Transformer] = ()) -> None:
        self.transformers = transformers

    @classmethod
    def fitted(cls, transformers: Sequence[Transformer]) -> FederatedColumnTransformer:
        """From triples: a name, a fitted estimator, its columns."""
        kept = [(name, estimator, [str(column) for column in columns]) for name, estimator, columns in transformers]
        if not kept or len({name for name, _, _ in kept}) != len(kept):
            raise ValueError("A column transformer needs transformers, and each needs a name of its own.")
        for name, estimator, columns in kept:
            if list(getattr(estimator, "feature_names_in_", ())) != columns:
                raise ValueError(f"Transformer {name!r} is not fitted for the columns that it is given.")
        made = cls(transformers=kept)
        made.transformers_ = kept
        made.feature_names_in_ = np.array(_union(columns for _, _, columns in kept), dtype=object)
        made.n_features_in_ = len(made.feature_names_in_)
        return made

    @property
    def numeric_columns_(self) -> list[str]:
        """Columns that some transformer takes as numbers."""
        return _union(columns for _, each, columns in self.transformers_ if not is_categorical(each))

    @property
    def categorical_columns_(self) -> list[str]:
        """Columns that some transformer takes as texts."""
        return _union(columns for _, each, columns in self.transformers_ if is_categorical(each))

    def fit(self, X: Any, y: Any = None) -> FederatedColumnTransformer:  # noqa: N803 - scikit-learn's name
        """Returns itself if it is made of fitted estimators; it learns nothing from the rows."""
        check_is_fitted(self, "transformers_", msg=NOT_FITTED)
        return self

    def transform(self, X: Any) -> Floats:  # noqa: N803
        """Outputs of all transformers, side by side. Columns of X are those of feature_names_in_."""
        check_is_fitted(self, "transformers_", msg=NOT_FITTED)
        rows = X if isinstance(X, np.ndarray) else np.asarray(X, dtype=object)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise ValueError(f"{type(self).__name__} expects rows of {self.n_features_in_} columns.")
        place = {column: index for index, column in enumerate(self.feature_names_in_)}
        outputs = []
        for _, estimator, columns in self.transformers_:
            chosen = rows[:, [place[column] for column in columns]]
            outputs.append(dense(estimator, chosen if is_categorical(estimator) else as_numbers(chosen, columns)))
        return np.hstack(outputs)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> Objects:
        """The transformers' own names; where two are the same, with `transformer__` before them."""
        check_is_fitted(self, "transformers_", msg=NOT_FITTED)
        if input_features is not None and list(input_features) != list(self.feature_names_in_):
            raise ValueError("input_features is not equal to feature_names_in_.")
        named = [(name, str(out)) for name, each, _ in self.transformers_ for out in each.get_feature_names_out()]
        uses = Counter(out for _, out in named)
        return np.array(unique([out if uses[out] == 1 else f"{name}__{out}" for name, out in named]), dtype=object)


def _union(groups: Iterable[Sequence[str]]) -> list[str]:
    """In the order of their first use."""
    return list(dict.fromkeys(column for columns in groups for column in columns))


def is_categorical(estimator: Any) -> bool:
    """Whether it takes its columns as texts."""
    return bool(getattr(estimator, "categorical_", False))


def as_numbers(rows: Any, columns: Sequence[str]) -> Floats:
    """Cells as floats; None is not-a-number."""
    found: Floats = np.empty(rows.shape, dtype=np.float64)
    for index, column in enumerate(columns):
        try:
            found[:, index] = rows[:, index].astype(np.float64)
        except (TypeError, ValueError):
            # The original message shows the cell.
            raise ValueError(f"Column {column!r} holds something that is not a number.") from None
    return found


def dense(estimator: Any, rows: Any) -> Floats:
    """What an estimator makes of rows without names, as a float array."""
    with warnings.catch_warnings():
        # scikit-learn misses the columns' names on an array; the order here is the estimator's own.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        found = estimator.transform(rows)
    return np.asarray(found.toarray() if sparse.issparse(found) else found, dtype=np.float64)
