"""Encodings of categorical columns by what the sites agreed on, as fitted scikit-learn-like objects.

They are not fitted here: a job finds the identifiers or the encoded numbers, and `fitted` makes the object from them.
Cells are compared by their canonical texts (`categories`), so that a value means the same at every site.

Names of one-hot columns show only values that this site holds: `column_value`, `column_missing`, `column_infrequent`,
and `column_#17` for identifier 17 whose value only others know. So that no value looks like one of these, a value
that is "missing" or "infrequent", or that starts with "#" or "=", is written with a "=" before it. If columns "a" and
"a_b" still make the same name, the later one ends in "=2", "=3" and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from commonscale.categories import Dictionary
from commonscale.estimators.encoder import E, Encoder, Integers, Objects, UnknownValueError, hot
from commonscale.ordering import Floats


class _DictionaryEncoder(Encoder):
    """Codes from a dictionary: frequent identifiers in their order, then one code for all infrequent ones."""

    def __init__(self, *, handle_unknown: str, dtype: Any, strip: bool, casefold: bool) -> None:
        super().__init__(strip=strip, casefold=casefold)
        self.handle_unknown = handle_unknown
        self.dtype = dtype

    @classmethod
    def fitted(cls: type[E], columns: Sequence[str], dictionaries: Sequence[Dictionary], **params: Any) -> E:
        """From a site's dictionaries, one per column."""
        if len(columns) != len(dictionaries):
            raise ValueError("There must be one dictionary a column.")
        made = cls._of(columns, params)
        for column, dictionary in zip(columns, dictionaries, strict=True):
            _check(column, dictionary)
        made.values_ = [list(dictionary.values) for dictionary in dictionaries]
        made.identifiers_ = [np.array(dictionary.identifiers, dtype=np.int64) for dictionary in dictionaries]
        made.sizes_ = [dictionary.size for dictionary in dictionaries]
        made.infrequent_ = [np.array(sorted(dictionary.infrequent), dtype=np.int64) for dictionary in dictionaries]
        made._check_params()
        return made

    @property
    def widths_(self) -> list[int]:
        """How many codes each column has; the same at all sites."""
        self._check_fitted()
        pairs = zip(self.sizes_, self.infrequent_, strict=True)
        return [size - len(infrequent) + bool(len(infrequent)) for size, infrequent in pairs]

    def _held(self, index: int) -> Integers:
        """Codes of the values that this site holds."""
        identifiers, infrequent = self.identifiers_[index], self.infrequent_[index]
        before = np.searchsorted(infrequent, identifiers)
        return np.where(np.isin(identifiers, infrequent), self.sizes_[index] - len(infrequent), identifiers - before)

    def _numbers(self, index: int, texts: Sequence[str | None]) -> Integers:
        """One code a text; -1 for unknown values, unless handle_unknown says "error" or "infrequent_if_exist"."""
        known = dict(zip(self.values_[index], self._held(index).tolist(), strict=True))
        shared = self.handle_unknown == "infrequent_if_exist" and len(self.infrequent_[index])
        other = self.widths_[index] - 1 if shared else -1
        codes = np.array([known.get(text, other) for text in texts], dtype=np.int64)
        if self.handle_unknown == "error" and (codes < 0).any():
            # A cell's value has no place in a log.
            column = self.feature_names_in_[index]
            raise UnknownValueError(f"Column {column!r} holds a value that the encoder does not know.")
        return codes

    def _values(self, index: int) -> Objects:
        """The value of every code; None where this site holds none, or more than one may be meant. The last is None."""
        values: Objects = np.full(self.widths_[index] + 1, None, dtype=object)
        frequent = ~np.isin(self.identifiers_[index], self.infrequent_[index])
        for code, value, one in zip(self._held(index), self.values_[index], frequent, strict=True):
            values[code] = value if one else None
        return values


def _check(column: str, dictionary: Dictionary) -> None:
    values, identifiers, infrequent = dictionary.values, dictionary.identifiers, dictionary.infrequent
    distinct = all(len(set(items)) == len(items) for items in (values, identifiers, infrequent))
    inside = all(0 <= identifier < dictionary.size for identifier in (*identifiers, *infrequent))
    if not (distinct and inside and len(values) == len(identifiers)):
        raise ValueError(f"The dictionary of column {column!r} is not one identifier below its size for each value.")


class FederatedOneHotEncoder(_DictionaryEncoder):
    """As scikit-learn's OneHotEncoder; the outputs are the same columns at all sites."""

    def __init__(
        self,
        *,
        handle_unknown: str = "ignore",
        sparse_output: bool = False,
        dtype: Any = np.float64,
        strip: bool = True,
        casefold: bool = False,
    ) -> None:
        super().__init__(handle_unknown=handle_unknown, dtype=dtype, strip=strip, casefold=casefold)
        self.sparse_output = sparse_output

    def _check_params(self) -> None:
        if self.handle_unknown not in ("ignore", "error", "infrequent_if_exist"):
            raise ValueError("handle_unknown must be 'ignore', 'error' or 'infrequent_if_exist'.")

    def transform(self, X: Any) -> Any:  # noqa: N803
        """One 1 a column; none for an unknown value, unless handle_unknown says otherwise."""
        codes = self._encoded(X)
        starts = np.cumsum([0, *self.widths_[:-1]])
        return hot(np.where(codes < 0, -1, codes + starts), sum(self.widths_), self.dtype, self.sparse_output)

    def inverse_transform(self, X: Any) -> Objects:  # noqa: N803
        """Values; None where nothing is set, or the value is not known here, or it is one of the infrequent."""
        self._check_fitted()
        rows = X.toarray() if sparse.issparse(X) else np.asarray(X)
        if rows.ndim != 2 or rows.shape[1] != sum(self.widths_):
            raise ValueError(f"Encoded rows have {sum(self.widths_)} columns.")
        found: Objects = np.full((len(rows), self.n_features_in_), None, dtype=object)
        blocks = np.split(rows, np.cumsum(self.widths_)[:-1], axis=1)
        for index, block in enumerate(blocks):
            if block.shape[1]:
                codes = np.where(block.any(axis=1), block.argmax(axis=1), -1)
                found[:, index] = self._values(index)[codes]
        return found

    def _names(self) -> list[str]:
        names: list[str] = []
        for index, column in enumerate(self.feature_names_in_):
            labels = dict(zip(self.identifiers_[index].tolist(), map(_label, self.values_[index]), strict=True))
            rare = set(self.infrequent_[index].tolist())
            names += [f"{column}_{labels.get(i, f'#{i}')}" for i in range(self.sizes_[index]) if i not in rare]
            names += [f"{column}_infrequent"] if rare else []
        return names


def _label(value: str | None) -> str:
    """A value as part of a name; see the head of this module."""
    if value is None:
        return "missing"
    return f"={value}" if value in ("missing", "infrequent") or value.startswith(("#", "=")) else value


class FederatedOrdinalEncoder(_DictionaryEncoder):
    """As scikit-learn's OrdinalEncoder; a number means the same at all sites, its order means nothing."""

    def __init__(
        self,
        *,
        handle_unknown: str = "use_encoded_value",
        unknown_value: float = -1,
        dtype: Any = np.float64,
        strip: bool = True,
        casefold: bool = False,
    ) -> None:
        super().__init__(handle_unknown=handle_unknown, dtype=dtype, strip=strip, casefold=casefold)
        self.unknown_value = unknown_value

    def _check_params(self) -> None:
        if self.handle_unknown not in ("use_encoded_value", "error"):
            raise ValueError("handle_unknown must be 'use_encoded_value' or 'error'.")
        if self.handle_unknown == "use_encoded_value":
            if self.unknown_value != self.unknown_value and np.dtype(self.dtype).kind != "f":
                raise ValueError("unknown_value can be not-a-number only if dtype is a float.")
            if any(0 <= self.unknown_value < width for width in self.widths_):
                raise ValueError("unknown_value is the number of a category.")

    def transform(self, X: Any) -> Any:  # noqa: N803
        """One number per cell."""
        codes = self._encoded(X)
        found = codes.astype(self.dtype)
        found[codes < 0] = self.unknown_value
        return found

    def inverse_transform(self, X: Any) -> Objects:  # noqa: N803
        """Values; None for a number whose value is not known here, or that the infrequent values share."""
        numbers = np.asarray(self._checked(X), dtype=np.float64)
        found: Objects = np.full(numbers.shape, None, dtype=object)
        for index, column in enumerate(numbers.T):
            valid = (column >= 0) & (column < self.widths_[index]) & (column == np.floor(column))
            found[:, index] = self._values(index)[np.where(valid, column, -1).astype(np.int64)]
        return found


class FederatedTargetEncoder(Encoder):
    """A number for each value, such as its smoothed mean of the target; one number for all other values."""

    @classmethod
    def fitted(
        cls, columns: Sequence[str], tables: Sequence[Mapping[str | None, float]], default: float, **params: Any
    ) -> FederatedTargetEncoder:
        """From one table a column: canonical text to number. `default` is the mean of the target."""
        if len(columns) != len(tables):
            raise ValueError("There must be one table a column.")
        made = cls._of(columns, params)
        made.values_ = [list(table) for table in tables]
        made.encodings_ = [np.array(list(table.values()), dtype=np.float64) for table in tables]
        made.target_mean_ = float(default)
        return made

    def _numbers(self, index: int, texts: Sequence[str | None]) -> Floats:
        known = dict(zip(self.values_[index], self.encodings_[index].tolist(), strict=True))
        return np.array([known.get(text, self.target_mean_) for text in texts], dtype=np.float64)
