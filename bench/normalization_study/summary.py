"""What the rows say: federated against local (the paper's Table II), and federated against pooled."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bench.normalization_study.scaling import FROM_FEDERATION, FROM_POOL, LOCAL, NONE, PLACES

Row: TypeAlias = dict[str, Any]
TIE = 0.005  # the paper's rule: below 0.5 % neither wins
SETTING = ("dataset", "clients", "imbalance", "level")


def wide(rows: Sequence[Row]) -> list[Row]:
    """One row a setting and normalization, one column a place; the score without normalization is repeated in each."""
    bare = {_setting(row): row["score"] for row in rows if row["where"] == NONE}
    table: dict[tuple[Any, ...], Row] = {}
    for row in (row for row in rows if row["where"] != NONE):
        kept = {key: row[key] for key in (*SETTING, "normalization", "metric")}
        line = table.setdefault((*_setting(row), row["normalization"]), {**kept, NONE: bare[_setting(row)]})
        line[row["where"]] = row["score"]
        line[f"{row['where']}_sd"] = row["score_sd"]
        if row["where"] == FROM_FEDERATION:
            line["off_pooled"] = row["off_pooled"]
    return list(table.values())


def _setting(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in SETTING)


def against_local(rows: Sequence[Row]) -> list[Row]:
    """Mean of federated minus local by metric and imbalance. An R² below zero counts as zero: nothing was learned."""
    lines = wide(rows)
    found = []
    for metric, imbalance, level in _distinct((x["metric"], x["imbalance"], x["level"]) for x in lines):
        chosen = [x for x in lines if (x["metric"], x["imbalance"], x["level"]) == (metric, imbalance, level)]
        means = {place: float(np.mean([max(x[place], 0.0) for x in chosen])) for place in PLACES}
        gap = means[FROM_FEDERATION] - means[LOCAL]
        found.append(
            {"metric": metric, "imbalance": imbalance, "level": level, "settings": len(chosen)}
            | means
            | {"federated_minus_local": gap}
        )
    return found


def wins(rows: Sequence[Row]) -> list[Row]:
    """The paper's Table II: who is better, in the mean over seeds. As there, only R² > 0 is compared."""
    lines = wide(rows)
    found = []
    for (dataset,) in _distinct((x["dataset"],) for x in lines):
        chosen = [x for x in lines if x["dataset"] == dataset]
        fair = [x for x in chosen if x["metric"] != "R2" or min(x[FROM_FEDERATION], x[LOCAL]) > 0.0]
        gaps = [x[FROM_FEDERATION] - x[LOCAL] for x in fair]
        better = [gap for gap in gaps if gap >= TIE]
        found.append(
            {
                "dataset": dataset,
                "federated": len(better),
                "local": sum(gap <= -TIE for gap in gaps),
                "ties": sum(abs(gap) < TIE for gap in gaps),
                "left_out": len(chosen) - len(fair),
                "mean_federated_improvement": float(np.mean(better)) if better else 0.0,
            }
        )
    return found


def against_pooled(rows: Sequence[Row]) -> list[Row]:
    """The largest differences of federated from pooled: in any normalized training value, and in the score."""
    lines = wide(rows)
    found = []
    for (normalization,) in _distinct((x["normalization"],) for x in lines):
        chosen = [x for x in lines if x["normalization"] == normalization]
        found.append(
            {
                "normalization": normalization,
                "largest_value_difference": max(x["off_pooled"] for x in chosen),
                "largest_score_difference": max(abs(x[FROM_FEDERATION] - x[FROM_POOL]) for x in chosen),
                "scores_equal": sum(x[FROM_FEDERATION] == x[FROM_POOL] for x in chosen),
                "settings": len(chosen),
            }
        )
    return found


def summary(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """All three tables by name."""
    return {
        "federated against local": against_local(rows),
        "wins": wins(rows),
        "federated against pooled": against_pooled(rows),
    }


def _distinct(keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(keys))
