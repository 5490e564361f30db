"""The four normalizations, with parameters from nowhere, from each client, from the federation, or from pooled rows.

*none* leaves the rows as they are. *local*: each client fits scikit-learn on its own training rows and applies that
to its own training, validation and test rows. *federated*: parameters from the clients' summed statistics (module
federated). *pooled*: scikit-learn on the stacked training rows, which a real federation could not have.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from commonscale_worker.networks.losses import FloatArray
from sklearn.preprocessing import MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler

from bench.normalization_study import federated
from bench.normalization_study.data import Part, Split

Transform: TypeAlias = Callable[[FloatArray], FloatArray]

POOLED: dict[str, Callable[[], Any]] = {
    "z-score": StandardScaler,
    "min-max": MinMaxScaler,
    "robust": RobustScaler,
    "yeo-johnson": PowerTransformer,
}
FEDERATED: dict[str, Callable[[Sequence[FloatArray]], Transform]] = {
    "z-score": federated.zscore,
    "min-max": federated.minmax,
    "robust": federated.robust,
    "yeo-johnson": federated.power,
}
NORMALIZATIONS = tuple(POOLED)
NONE, LOCAL, FROM_FEDERATION, FROM_POOL = PLACES = ("none", "local", "federated", "pooled")
Arm: TypeAlias = tuple[str, str]  # normalization, and where its parameters come from
ARMS: tuple[Arm, ...] = (("none", NONE), *((n, place) for n in NORMALIZATIONS for place in PLACES[1:]))
# A power fitted to a handful of rows may send another row to infinity: such values are held here, and learn badly.
LARGEST = 1e6


def fit(clients: Sequence[Split], normalization: str, where: str) -> list[Transform]:
    """One transform for each client."""
    tables = [client.train.x for client in clients]
    if where == NONE:
        return [_identity] * len(clients)
    if where == LOCAL:
        return [_fitted(normalization, table) for table in tables]
    joint = FEDERATED[normalization](tables) if where == FROM_FEDERATION else _fitted(normalization, np.vstack(tables))
    return [joint] * len(clients)


def scale(clients: Sequence[Split], normalization: str, where: str) -> list[Split]:
    """The clients' rows, normalized."""
    transforms = fit(clients, normalization, where)
    return [
        Split(*(Part(_held(transform, part.x), part.y) for part in client.parts()))
        for client, transform in zip(clients, transforms, strict=True)
    ]


def _identity(x: FloatArray) -> FloatArray:
    return x


def _fitted(normalization: str, table: FloatArray) -> Transform:
    transform: Transform = POOLED[normalization]().fit(table).transform
    return transform


def _held(transform: Transform, x: FloatArray) -> FloatArray:
    # A client may have no validation or test rows.
    with np.errstate(all="ignore"):
        scaled = transform(x) if len(x) else x
    return np.clip(np.nan_to_num(scaled, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)
