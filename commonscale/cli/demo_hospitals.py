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
from commonscale.cli.demo_model import MODEL
from commonscale.cli.demo_training import Patients, accuracies
from commonscale.client import Job
from commonscale.pipeline import Pipeline
from commonscale.transforms.training import Evaluation, Train

MAX_REL_ERROR = 1e-9
DIAGNOSIS, DIAGNOSES = "diagnosis", ["malignant", "benign"]
# Every so many patients one comes after the hospitals have made their tables.
UNSEEN = 5
# Classes of the mean area: not every hospital has the smallest and the largest.
CLASSES = ((200, "tiny"), (500, "small"), (900, "medium"), (1600, "large"), (2400, "huge"), (float("inf"), "giant"))


@dataclass(frozen=True)
class Hospitals:
    """Four tables: numeric columns, a categorical one, and the diagnosis; and patients who are in none of them."""

    columns: list[str]
    tables: dict[str, Patients]
    unseen: Patients

    @classmethod
    def split_by_diagnosis(cls) -> Hospitals:
        """Uneven in size and in diagnosis, so that a hospital's own scaler is visibly off."""
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        columns = [str(name).replace(" ", "_") for name in bunch.feature_names]
        late = np.arange(len(bunch.data)) % UNSEEN == UNSEEN - 1
        malignant, benign = (np.flatnonzero(~late & (bunch.target == number)) for number in (0, 1))
        dealt = zip(_deal(malignant, 0.70, 0.15, 0.10, 0.05), _deal(benign, 0.05, 0.50, 0.30, 0.15), strict=True)
        chosen = [*map(np.concatenate, dealt), np.flatnonzero(late)]
        *parts, unseen = (Patients(bunch.data[rows], bunch.target[rows]) for rows in chosen)
        return cls(columns, dict(zip(SITES, parts, strict=True)), unseen)

    @property
    def parts(self) -> dict[str, Any]:
        """The numbers in each table."""
        return {site: table.rows for site, table in self.tables.items()}

    @property
    def classes(self) -> dict[str, list[str]]:
        """The categorical column of each table."""
        area = self.columns.index("mean_area")
        return {site: _classes(rows[:, area]) for site, rows in self.parts.items()}

    def write(self, site: str, path: Path) -> Path:
        """One hospital's table as CSV."""
        path.parent.mkdir(parents=True, exist_ok=True)
        names = [DIAGNOSES[number] for number in self.tables[site].diagnoses]
        rows = zip(self.parts[site].tolist(), self.classes[site], names, strict=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([*self.columns, CATEGORY, DIAGNOSIS])
            csv.writer(file).writerows([*map(repr, row), *texts] for row, *texts in rows)
        return path

    def training(self) -> Train:
        """Learn the diagnosis from the numbers; what it is worth is measured on patients who are in no table."""
        return Train(
            model=MODEL, columns=self.columns, target=DIAGNOSIS, classes=DIAGNOSES, evaluation=Evaluation(every=0)
        )

    def pipeline(self) -> Pipeline:
        """Standardize the numbers, encode the category, train."""
        steps = [{"transform": "zscore", "columns": self.columns}, {"transform": "onehot", "columns": [CATEGORY]}]
        return Pipeline.model_validate({"name": "demo", "sites": SITES, "steps": [*steps, self.training()]})


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
    found = {site: results[site] / job.id for site in SITES}
    saved = [json.loads((path / "parameters.json").read_text()) for path in found.values()]
    summary: dict[str, Any] = {
        "columns": hospitals.columns,
        "rows": {site: len(rows) for site, rows in hospitals.parts.items()},
        "pooled": {"mean": pooled.mean_.tolist(), "scale": pooled.scale_.tolist()},
        "federated": {"mean": result["mean"], "scale": result["scale"]},
        "local": {site: {"mean": s.mean_.tolist(), "scale": s.scale_.tolist()} for site, s in local.items()},
        "same_at_all_sites": all(parameters == job.result for parameters in saved),
        "max_rel_error": float(max(np.abs(mean / pooled.mean_ - 1).max(), np.abs(scale / pooled.scale_ - 1).max())),
        "categories": _categories(hospitals, found),
        "training": accuracies(hospitals.training(), hospitals.tables, hospitals.unseen, found),
        "seconds": round(seconds, 3),
        "disclosures": job.disclosures,
    }
    same = summary["same_at_all_sites"] and summary["training"]["same_at_all_sites"]
    close = same and summary["max_rel_error"] <= MAX_REL_ERROR
    summary["as_pooled"] = bool(close and summary["categories"]["consistent"])
    return summary


def _categories(hospitals: Hospitals, results: Mapping[str, Path]) -> dict[str, Any]:
    """For each value the number that every hospital would have given it alone, and the one that it has now."""
    alone = {site: {name: at for at, name in enumerate(sorted(set(own)))} for site, own in hospitals.classes.items()}
    together: dict[str, dict[str, int]] = {}
    for site in SITES:
        (found,) = json.loads((results[site] / "identifiers.json").read_text())[0]["dictionaries"]
        together[site] = dict(zip(found["values"], found["identifiers"], strict=True))
    numbers = {name: {known[name] for known in together.values() if name in known} for _, name in CLASSES}
    return {
        "alone": alone,
        "together": {name: sorted(found) for name, found in numbers.items()},
        "consistent": all(len(found) == 1 for found in numbers.values())
        and len({number for found in numbers.values() for number in found}) == len(numbers)
        and all(set(together[site]) == set(alone[site]) for site in SITES),
    }
