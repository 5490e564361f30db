"""The methods: what each site makes of its categories and numbers, with what it may know of the others.

Dictionaries are of all rows that a site has (preprocessing comes before the split, and a value says nothing of a
label); whatever is counted or averaged (z-scores, target encodings) is of training rows only.

- server: the sorted dictionary of all sites' values. With it every site encodes alike.
- psi: the same dictionary, renamed at random in each column, as its identifiers mean nothing.
- local: each site sorts its own values; widths are padded to the widest site's.
- ring: identifiers that are unique for each site and value (UHE); a column is as wide as all dictionaries together.
- bytes-norm, mod-norm, rolling-hash, fasttext: from the value's text.
- target-local: formula 7 as it is printed, with p(f = x | c = 1). target-local-mean: with the mean of the target, which
  its text describes. target-federated: the latter from the sites' summed counts.

Numbers have z-scores from the federation's sums, or of each site's own rows: *local* and *uniform-encoding*.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bench.encoding_study.data import Rows, Table, Texts
from bench.normalization_study.data import Part
from bench.normalization_study.federated import zscore
from commonscale.categories import Dictionary, text_integer
from commonscale.estimators.encoders import FederatedOneHotEncoder, FederatedTargetEncoder
from commonscale.estimators.text_encoders import (
    BytesNormEncoder,
    ModNormEncoder,
    RollingHashEncoder,
)
from commonscale.sources.queries import TargetSum
from commonscale.statistics.target import local_means

SMOOTHING = 10.0  # α of target encoding; the paper names none
Singles: TypeAlias = npt.NDArray[np.float32]
Transform: TypeAlias = Callable[[Texts], Any]  # a dense or a sparse array


class Embedding(Protocol):
    """A model of word vectors."""

    dimension: int

    def vector(self, text: str) -> npt.NDArray[Any]:
        """Of a text."""


@dataclass(frozen=True)
class Site:
    """Rows of one site."""

    train: Table
    test: Table

    def values(self, column: int) -> list[str]:
        """Distinct values of a column, sorted."""
        return sorted({*self.train.categories[:, column], *self.test.categories[:, column]})


@dataclass(frozen=True)
class Federation:
    """All sites; what is random is drawn from the generator."""

    columns: tuple[str, ...]
    sites: Sequence[Site]
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    embedding: Embedding | None = None

    def values(self) -> list[list[list[str]]]:
        """Of each site and column."""
        return [[site.values(j) for j in range(len(self.columns))] for site in self.sites]

    def union(self) -> list[list[str]]:
        """Of each column, at all sites together."""
        return [sorted(set().union(*held)) for held in zip(*self.values(), strict=True)]


def server(federation: Federation) -> list[list[Dictionary]]:
    """Identifiers in the order of the sorted union."""
    return _named(federation, [list(range(len(values))) for values in federation.union()])


def psi(federation: Federation) -> list[list[Dictionary]]:
    """The same identifiers under other names."""
    return _named(federation, [federation.rng.permutation(len(values)).tolist() for values in federation.union()])


def _named(federation: Federation, identifiers: list[list[int]]) -> list[list[Dictionary]]:
    tables = [dict(zip(*pair, strict=True)) for pair in zip(federation.union(), identifiers, strict=True)]
    return [
        [
            Dictionary(tuple(held), tuple(table[value] for value in held), len(table))
            for held, table in zip(values, tables, strict=True)
        ]
        for values in federation.values()
    ]


def local(federation: Federation) -> list[list[Dictionary]]:
    """Each site counts its own values from 0."""
    values = federation.values()
    widths = [max(map(len, held)) for held in zip(*values, strict=True)]
    return [
        [Dictionary(tuple(v), tuple(range(len(v))), width) for v, width in zip(of_site, widths, strict=True)]
        for of_site in values
    ]


def ring(federation: Federation) -> list[list[Dictionary]]:
    """Each site counts on from where the one before it ended."""
    values = federation.values()
    sizes = np.array([[len(v) for v in of_site] for of_site in values])
    starts, totals = np.cumsum(sizes, axis=0) - sizes, sizes.sum(axis=0)
    return [
        [
            Dictionary(tuple(v), tuple(range(start, start + len(v))), int(total))
            for v, start, total in zip(of_site, of_starts.tolist(), totals, strict=True)
        ]
        for of_site, of_starts in zip(values, starts, strict=True)
    ]


def one_hot(dictionaries: Callable[[Federation], list[list[Dictionary]]]) -> Callable[[Federation], list[Transform]]:
    """One-hot encoders of the sites' dictionaries."""

    def fit(federation: Federation) -> list[Transform]:
        return [
            FederatedOneHotEncoder.fitted(federation.columns, of_site, sparse_output=True, dtype=np.float32).transform
            for of_site in dictionaries(federation)
        ]

    return fit


def bytes_norm(federation: Federation) -> list[Transform]:
    """Mean and variance of int(bytes(x)), from the sites' exact sums."""
    means, variances = [], []
    for j in range(len(federation.columns)):
        counts = sum((Counter(site.train.categories[:, j]) for site in federation.sites), Counter[str]())
        n = counts.total()
        total = sum(count * text_integer(value) for value, count in counts.items())
        squares = sum(count * text_integer(value) ** 2 for value, count in counts.items())
        means.append((total, n))
        variances.append((n * squares - total**2, n**2))
    return _same(federation, BytesNormEncoder.fitted(federation.columns, means, variances))


def mod_norm(federation: Federation) -> list[Transform]:
    """int(bytes(x)) mod 2s."""
    sums = [sum(map(len, held)) for held in zip(*federation.values(), strict=True)]
    return _same(federation, ModNormEncoder.fitted(federation.columns, sums))


def rolling_hash(federation: Federation) -> list[Transform]:
    """One vector of 5,000 for all columns."""
    return _same(federation, RollingHashEncoder.fitted(federation.columns, sparse_output=True))


def fasttext(federation: Federation) -> list[Transform]:
    """A word vector for each column."""
    model = federation.embedding
    assert model is not None
    vectors = {value: model.vector(value) for values in federation.union() for value in values}

    def transform(categories: Texts) -> Any:
        return np.hstack([np.array([vectors[value] for value in column]) for column in categories.T])

    return [transform] * len(federation.sites)


def _same(federation: Federation, encoder: Any) -> list[Transform]:
    return [encoder.transform] * len(federation.sites)


def target_local(federation: Federation) -> list[Transform]:
    """Formula 7 as printed, at each site alone."""
    return [_target(federation.columns, [site.train], "printed") for site in federation.sites]


def target_local_mean(federation: Federation) -> list[Transform]:
    """Smoothed mean of the target, at each site alone."""
    return [_target(federation.columns, [site.train], "mean") for site in federation.sites]


def target_federated(federation: Federation) -> list[Transform]:
    """Smoothed mean of the target, from counts of all sites."""
    return [_target(federation.columns, [site.train for site in federation.sites], "mean")] * len(federation.sites)


def _target(columns: tuple[str, ...], tables: Sequence[Table], formula: str) -> Transform:
    sums: list[TargetSum] = []
    for j in range(len(columns)):
        counts, hits = Counter[str](), Counter[str]()
        for t in tables:
            counts.update(t.categories[:, j])
            hits.update(t.categories[t.labels == 1, j])
        sums.append({value: (n, float(hits[value])) for value, n in counts.items()})
    means = local_means(sums, SMOOTHING, formula)
    encoder: Transform = FederatedTargetEncoder.fitted(columns, means.tables, means.mean).transform
    return encoder


@dataclass(frozen=True)
class Method:
    """How categories are encoded, and whether each site scales its numbers alone."""

    name: str
    fit: Callable[[Federation], list[Transform]]
    local_scaling: bool = False


METHODS = {
    m.name: m
    for m in (
        Method("server", one_hot(server)),
        Method("psi", one_hot(psi)),
        Method("local", one_hot(local), local_scaling=True),
        Method("uniform-encoding", one_hot(server), local_scaling=True),
        Method("uniform-scaling", one_hot(local)),
        Method("ring", one_hot(ring)),
        Method("bytes-norm", bytes_norm),
        Method("mod-norm", mod_norm),
        Method("fasttext", fasttext),
        Method("rolling-hash", rolling_hash),
        Method("target-local", target_local),
        Method("target-local-mean", target_local_mean),
        Method("target-federated", target_federated),
    )
}


@dataclass(frozen=True)
class Encoded:
    """What the network gets: rows without the columns that are zero at all sites, and which columns those are not."""

    inputs: int
    used: Rows
    train: list[Part]
    test: list[Part]


def encode(method: Method, federation: Federation) -> Encoded:
    """Categories first, then numbers, in single precision."""
    transforms = method.fit(federation)
    tables = [site.train.numbers for site in federation.sites]
    joint = zscore(tables)
    parts: list[tuple[Any, Any]] = []
    for site, table, transform in zip(federation.sites, tables, transforms, strict=True):
        scale = zscore([table]) if method.local_scaling else joint
        parts.append((_side_by_side(site.train, transform, scale), _side_by_side(site.test, transform, scale)))
    inputs = parts[0][0].shape[1]
    used = np.unique(np.concatenate([x.nonzero()[1] for pair in parts for x in pair]))
    train = [Part(x[:, used].toarray(), s.train.labels) for (x, _), s in zip(parts, federation.sites, strict=True)]
    test = [Part(x[:, used].toarray(), s.test.labels) for (_, x), s in zip(parts, federation.sites, strict=True)]
    return Encoded(inputs, used, train, test)


def _side_by_side(table: Table, transform: Transform, scale: Callable[[Any], Any]) -> Any:
    # Sparse: 45,000 dense rows of 5,000 would be a gigabyte.
    columns = [sparse.csr_matrix(x, dtype=np.float32) for x in (transform(table.categories), scale(table.numbers))]
    return sparse.hstack(columns, format="csr")
