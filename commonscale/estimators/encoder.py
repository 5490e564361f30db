"""What all encoders of categorical columns share: canonical texts in, numbers out, and how they are kept in files."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from commonscale.categories import TextRules, canonical

E = TypeVar("E", bound="Encoder")
Integers = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]


class UnknownValueError(ValueError):
    """A value that a job did not see, where the encoder is to refuse it."""


class Encoder(TransformerMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """What all encoders share: canonical texts in, numbers out."""

    def __init__(self, *, strip: bool = True, casefold: bool = False) -> None:
        self.strip = strip
        self.casefold = casefold

    @classmethod
    def _of(cls: type[E], columns: Sequence[str], params: dict[str, Any]) -> E:
        """One for these columns, to be given what a job has found."""
        if len(set(columns)) != len(columns) or not columns:
            raise ValueError("An encoder needs columns, each of them once.")
        made = cls(**params)
        made.feature_names_in_ = np.array(columns, dtype=object)
        made.n_features_in_ = len(columns)
        return made

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
        """One output per column, unless a subclass says otherwise."""
        return [str(column) for column in self.feature_names_in_]

    def _check_fitted(self) -> None:
        message = "This %(name)s is not fitted: a job between the sites does that, not a call of fit."
        check_is_fitted(self, "feature_names_in_", msg=message)

    def transform(self, X: Any) -> Any:  # noqa: N803
        """One number per cell, unless the class says otherwise."""
        return self._encoded(X)

    def _encoded(self, X: Any) -> Any:  # noqa: N803
        """The numbers of all columns, side by side; texts are read once per distinct cell, not per row."""
        rules = TextRules(strip=self.strip, casefold=self.casefold)
        found = []
        for index, column in enumerate(self._checked(X).T):
            # 1 and True are equal as keys but not as texts; so are equal times of different zones.
            keys = [cell if type(cell) is str else (type(cell), str(cell)) for cell in column]
            cells = dict(zip(keys, column, strict=True))
            codes = {key: code for code, key in enumerate(cells)}
            rows = np.fromiter(map(codes.__getitem__, keys), dtype=np.int64, count=len(keys))
            texts = [None if is_pandas_missing(cell) else canonical(cell, rules) for cell in cells.values()]
            found.append(self._numbers(index, texts)[rows])
        return np.column_stack(found)

    @abstractmethod
    def _numbers(self, index: int, texts: Sequence[str | None]) -> npt.NDArray[Any]:
        """What the texts of a column become; None is the missing value."""

    def _check_params(self) -> None:
        """Raise if they make no sense: somebody may have set them."""

    def _checked(self, X: Any) -> Objects:  # noqa: N803
        """Cells in the order of feature_names_in_: by name from a table that has names, else by position."""
        self._check_fitted()
        self._check_params()
        names = column_names(X)
        rows = objects(X) if names is None else np.column_stack([objects(X[name]) for name in self._order(names)])
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise ValueError(f"{type(self).__name__} expects rows of {self.n_features_in_} columns.")
        return rows

    def _order(self, names: Sequence[str]) -> list[str]:
        """As scikit-learn, names that differ are an error; their order makes no difference."""
        wanted = [str(column) for column in self.feature_names_in_]
        for found, fault in (
            ([column for column in wanted if column not in set(names)], "are missing"),
            ([column for column in names if column not in set(wanted)], "were not seen when it was fitted"),
            ([column for column, uses in Counter(names).items() if uses > 1], "are there more than once"),
        ):
            if found:
                raise ValueError(f"{type(self).__name__}: columns that {fault}: {', '.join(map(repr, found))}.")
        return wanted

    def __getstate__(self) -> dict[str, Any]:
        # Values are one text: in a file, skops would spend hundreds of bytes on each.
        return {name: json.dumps(v) if name == "values_" else v for name, v in super().__getstate__().items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: json.loads(v) if name == "values_" else v for name, v in state.items()})


def column_names(X: Any) -> list[str] | None:  # noqa: N803
    """The names of a table's columns; None of an array, or where names are not texts (scikit-learn's own rule)."""
    # As pandas and polars name them, then as Arrow does.
    for attribute in ("columns", "column_names"):
        names = getattr(X, attribute, None)
        if names is not None and len(names) and all(isinstance(name, str) for name in names):
            return [str(name) for name in names]
    return None


def objects(cells: Any) -> Objects:
    """Cells as an array of Python objects; those of times are times, not counts of nanoseconds."""
    if getattr(getattr(cells, "dtype", None), "kind", None) in ("m", "M"):
        times = np.asarray(cells)
        # Python's own times have microseconds; those with a zone are objects already.
        cells = times if times.dtype == object else times.astype(f"{times.dtype.kind}8[us]")
    elif getattr(getattr(cells, "dtype", None), "name", "") in ("float16", "float32"):
        # Their shortest texts are what a person wrote; as 64 bits they would have other digits.
        cells = np.asarray(cells).astype(np.str_).astype(np.float64)
    found: Objects = np.asarray(cells, dtype=object)
    return found


def is_pandas_missing(cell: Any) -> bool:
    """Whether a cell is pandas.NA or pandas.NaT; pandas need not be installed."""
    return type(cell).__name__ in ("NAType", "NaTType") and type(cell).__module__.startswith("pandas.")


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


class CellsAsTheyAre(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Changes nothing: an array of objects, in which True beside 1.5 is still True and not 1.0."""

    def fit(self, X: Any, y: Any = None) -> CellsAsTheyAre:  # noqa: N803
        """Learns how many columns there are."""
        self.n_features_in_ = np.shape(X)[1]
        return self

    def transform(self, X: Any) -> Objects:  # noqa: N803
        """The same cells."""
        names = column_names(X)
        return objects(X) if names is None else np.column_stack([objects(X[name]) for name in names])
