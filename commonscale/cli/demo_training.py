"""What the demo's model is worth: trained by all hospitals together and by each alone, on unseen patients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from commonscale_worker import Data, Round, Settings, registry
from sklearn.preprocessing import StandardScaler

from commonscale.cli.demo_model import MODEL, Diagnosis
from commonscale.estimators import storage
from commonscale.localnet import Worker
from commonscale.statistics.training.model_files import MODEL_FILE
from commonscale.transforms.training import Train


class Patients(NamedTuple):
    """Their numbers, and the place of each one's diagnosis among the classes."""

    rows: Any
    diagnoses: Any

    @classmethod
    def pooled(cls, parts: Iterable[Patients]) -> Patients:
        """Of several tables."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def worker() -> Worker:
    """What each hospital attaches."""
    return Worker(Diagnosis.__module__, {MODEL: registry.digest(MODEL, Diagnosis)})


def accuracies(
    train: Train, tables: Mapping[str, Patients], unseen: Patients, results: Mapping[str, Path]
) -> dict[str, Any]:
    """Of the model in the hospitals' results of a job that standardized first, beside models that others would have."""
    pooled = Patients.pooled(tables.values())
    files = {(path / MODEL_FILE).read_bytes() for path in results.values()}
    scaler = storage.load(next(iter(results.values())) / "0-zscore.skops")
    together = _model(train, pooled, unseen, scaler)
    together.set_weights(_tensors(next(iter(files))))
    return {
        "rounds": train.rounds,
        "unseen_rows": len(unseen.rows),
        "pooled": _alone(train, pooled, unseen),
        "federated": _accuracy(together),
        "local": {site: _alone(train, own, unseen) for site, own in tables.items()},
        "same_at_all_sites": len(files) == 1,
    }


def _alone(train: Train, own: Patients, unseen: Patients) -> float:
    """The same model, trained for as long on one table, on a scale of its own."""
    model = _model(train, own, unseen, StandardScaler().fit(own.rows))
    for number in range(1, train.rounds + 1):
        model.fit(Round(number, train.rounds))
    return _accuracy(model)


def _model(train: Train, own: Patients, unseen: Patients, scaler: StandardScaler) -> Diagnosis:
    both, settings = Patients.pooled([own, unseen]), Settings(**train.local_order().settings)
    is_unseen = np.arange(len(both.rows)) >= len(own.rows)
    scaled = (both.rows - scaler.mean_) / scaler.scale_
    data = Data(scaled, both.diagnoses, is_unseen, len(train.classes), settings.precision)
    model = Diagnosis()
    model.prepare(data, settings, train.columns, train.classes)
    return model


def _accuracy(model: Diagnosis) -> float:
    confusion = model.evaluate().confusion
    assert confusion is not None
    return float(np.trace(confusion) / confusion.sum())


def _tensors(file: bytes) -> dict[str, Any]:
    """A safetensors file: the length of its header, the header, the tensors side by side."""
    start = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:start])
    places = {name: (entry["data_offsets"], entry["shape"]) for name, entry in header.items() if "shape" in entry}
    return {
        name: np.frombuffer(file[start + first : start + end], "<f4").reshape(shape).copy()
        for name, ((first, end), shape) in places.items()
    }
