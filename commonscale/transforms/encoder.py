"""What all encoders of categorical columns share: canonical texts in, numbers out, and how they are kept in files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from commonscale.transforms.categories import TextRules, canonical

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]

NOT_FITTED = "This %(name)s is not fitted: a job between the sites does that, not a call of fit."


class Encoder(TransformerMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """What all encoders share: canonical texts in, numbers out."""

    # Its inputs are texts: it wants cells as they are, not as floats.
    categorical_ = True
    # Attributes with many texts. In a file, skops would spend hundreds of bytes on each.
    _packed: tuple[str, ...] = ()

    strip: bool
    casefold: bool

    def fit(self, X: Any, y: Any = None) -> Encoder:  # noqa: N803 - scikit-learn's name
        """Returns itself if a job has fitted it; it learns nothing from the rows."""
        self._check_fitted()
        return self

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> Objects:
        """Names of the output columns, all different."""
        self._check_fitted()
        if input_features is not None and list(input_features) != list(self.feature_names_in_):
            raise ValueError("input_features is not equal to feature_names_in_.")
        return np.array(unique(self._names()), dtype=object)

    def _names(self) -> list[str]:
        """One output a column, unless a subclass says otherwise."""
        return [str(column) for column in self.feature_names_in_]

    def _check_fitted(self) -> None:
        check_is_fitted(self, "feature_names_in_", msg=NOT_FITTED)

    def _name(self, columns: Sequence[str]) -> None:
        if len(set(columns)) != len(columns) or not columns:
            raise ValueError("An encoder needs columns, each of them once.")
        self.feature_names_in_ = np.array(columns, dtype=object)
        self.n_features_in_ = len(columns)

    def _factorized(self, X: Any) -> Iterator[tuple[list[str | None], Integers]]:  # noqa: N803
        """For each column: texts of its cells, each at least once, and which of them every row has."""
        rules = TextRules(strip=self.strip, casefold=self.casefold)
        for column in self._checked(X).T:
            yield factorized(column, rules)

    def _checked(self, X: Any) -> Objects:  # noqa: N803
        self._check_fitted()
        rows: Objects = np.asarray(X, dtype=object)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise ValueError(f"{type(self).__name__} expects rows of {self.n_features_in_} columns.")
        return rows

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        return state | {name: json.dumps(state[name]) for name in self._packed if name in state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {name: json.loads(state[name]) for name in self._packed if name in state})


def factorized(column: Objects, rules: TextRules) -> tuple[list[str | None], Integers]:
    """Texts and, for every row, the index of its text. The rules are applied once a distinct cell, not once a row."""
    # 1 and True are equal as keys but not as texts; so are equal times of different zones.
    keys = [cell if type(cell) is str else (type(cell), str(cell)) for cell in column]
    cells = dict(zip(keys, column, strict=True))
    codes = {key: code for code, key in enumerate(cells)}
    rows = np.fromiter(map(codes.__getitem__, keys), dtype=np.int64, count=len(keys))
    return [canonical(cell, rules) for cell in cells.values()], rows


def unique(names: Sequence[str]) -> list[str]:
    """The same names; one that came before gets a number."""
    taken, found = set(names), dict[str, None]()
    for name in names:
        fresh, number = name, 1
        while fresh in found or (number > 1 and fresh in taken):
            number += 1
            fresh = f"{name}={number}"
        found[fresh] = None
    return list(found)


def hot(positions: Integers, width: int, dtype: Any, sparse_output: bool) -> Any:
    """Rows of zeros, with 1 at each row's positions; a position of -1 sets nothing."""
    rows, columns = np.nonzero(positions >= 0)
    at = positions[rows, columns]
    if not sparse_output:
        dense = np.zeros((len(positions), width), dtype=dtype)
        dense[rows, at] = 1
        return dense
    found = sparse.csr_matrix((np.ones(len(at), dtype=dtype), (rows, at)), shape=(len(positions), width))
    # Two columns may share a position.
    found.data[:] = 1
    return found
