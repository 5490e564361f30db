"""The demo's four hospitals: their tables, and what they found together beside what each would find alone."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from commonscale.cli.demo import CATEGORY, SITES
from commonscale.client import Job
from commonscale.pipeline import Pipeline

MAX_REL_ERROR = 1e-9
# Classes of the mean area: not every hospital has the smallest and the largest.
CLASSES = ((200, "tiny"), (500, "small"), (900, "medium"), (1600, "large"), (2400, "huge"), (float("inf"), "giant"))


@dataclass(frozen=True)
class Hospitals:
    """Four tables: numeric columns, and one categorical."""

    columns: list[str]
    parts: dict[str, Any]
    classes: dict[str, list[str]]

    @classmethod
    def split_by_diagnosis(cls) -> Hospitals:
        """Uneven in size and in diagnosis, so that a hospital's own scaler is visibly off."""
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        columns = [str(name).replace(" ", "_") for name in bunch.feature_names]
        malignant, benign = bunch.data[bunch.target == 0], bunch.data[bunch.target == 1]
        dealt = zip(_deal(malignant, 0.70, 0.15, 0.10, 0.05), _deal(benign, 0.05, 0.50, 0.30, 0.15), strict=True)
        parts = {site: np.vstack(pieces) for site, pieces in zip(SITES, dealt, strict=True)}
        area = columns.index("mean_area")
        return cls(columns, parts, {site: _classes(rows[:, area]) for site, rows in parts.items()})

    def write(self, site: str, path: Path) -> Path:
        """One hospital's table as CSV."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = zip(self.parts[site].tolist(), self.classes[site], strict=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[*self.columns, CATEGORY], *([*map(repr, row), name] for row, name in rows)])
        return path

    def pipeline(self) -> Pipeline:
        """Standardize the numbers, encode the category."""
        steps = [{"transform": "zscore", "columns": self.columns}, {"transform": "onehot", "columns": [CATEGORY]}]
        return Pipeline.model_validate({"name": "demo", "sites": SITES, "steps": steps})


def _deal(rows: Any, *shares: float) -> list[Any]:
    ends = np.cumsum([round(share * len(rows)) for share in shares])[:-1]
    return np.split(rows, ends)


def _classes(areas: Any) -> list[str]:
    return [next(name for below, name in CLASSES if area < below) for area in areas]


def compare(hospitals: Hospitals, job: Job, results: Mapping[str, Path], seconds: float) -> dict[str, Any]:
    """What the hospitals found together, beside the pooled table and each alone; from each one's results directory."""
    from sklearn.preprocessing import StandardScaler

    pooled = StandardScaler().fit(np.vstack(list(hospitals.parts.values())))
    local = {site: StandardScaler().fit(rows) for site, rows in hospitals.parts.items()}
    result = job.result[0]
    mean, scale = np.array(result["mean"]), np.array(result["scale"])
    saved = [json.loads((results[site] / job.id / "parameters.json").read_text()) for site in SITES]
    summary: dict[str, Any] = {
        "columns": hospitals.columns,
        "rows": {site: len(rows) for site, rows in hospitals.parts.items()},
        "pooled": {"mean": pooled.mean_.tolist(), "scale": pooled.scale_.tolist()},
        "federated": {"mean": result["mean"], "scale": result["scale"]},
        "local": {site: {"mean": s.mean_.tolist(), "scale": s.scale_.tolist()} for site, s in local.items()},
        "same_at_all_sites": all(parameters == job.result for parameters in saved),
        "max_rel_error": float(max(np.abs(mean / pooled.mean_ - 1).max(), np.abs(scale / pooled.scale_ - 1).max())),
        "categories": _categories(hospitals, job, results),
        "seconds": round(seconds, 3),
        "disclosures": job.disclosures,
    }
    close = summary["same_at_all_sites"] and summary["max_rel_error"] <= MAX_REL_ERROR
    summary["as_pooled"] = bool(close and summary["categories"]["consistent"])
    return summary


def _categories(hospitals: Hospitals, job: Job, results: Mapping[str, Path]) -> dict[str, Any]:
    """For each value the number that every hospital would have given it alone, and the one that it has now."""
    alone = {site: {name: at for at, name in enumerate(sorted(set(own)))} for site, own in hospitals.classes.items()}
    together: dict[str, dict[str, int]] = {}
    for site in SITES:
        (found,) = json.loads((results[site] / job.id / "identifiers.json").read_text())[0]["dictionaries"]
        together[site] = dict(zip(found["values"], found["identifiers"], strict=True))
    numbers = {name: {known[name] for known in together.values() if name in known} for _, name in CLASSES}
    return {
        "alone": alone,
        "together": {name: sorted(found) for name, found in numbers.items()},
        "consistent": all(len(found) == 1 for found in numbers.values())
        and len({number for found in numbers.values() for number in found}) == len(numbers)
        and all(set(together[site]) == set(alone[site]) for site in SITES),
    }
