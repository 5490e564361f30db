"""What the rows say: methods by how sites differ (Figures 3a and 5a), and attacks by defence (Figures 4, 6 to 13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.batchnorm_study.plan import METHODS, NO_ATTACK

Row = dict[str, Any]


def by_method(rows: Sequence[Row]) -> list[Row]:
    """One line per split, one column per method: test accuracy in percent, nobody lying."""
    lines: dict[str, Row] = {}
    for row in (row for row in rows if row["attack"] == NO_ATTACK):
        line = lines.setdefault(row["split"], {"split": row["split"]})
        line[row["method"]] = row["accuracy"]
        line[f"{row['method']}_sd"] = row["accuracy_sd"]
    order = [name for method in METHODS for name in (method, f"{method}_sd")]
    return [{"split": split} | {name: line[name] for name in order if name in line} for split, line in lines.items()]


def by_attack(rows: Sequence[Row]) -> list[Row]:
    """One line per split, method and attack, one column per defence, beside the accuracy without an attack."""
    honest = {(row["split"], row["method"]): row["accuracy"] for row in rows if row["attack"] == NO_ATTACK}
    lines: dict[tuple[str, ...], Row] = {}
    for row in (row for row in rows if row["attack"] != NO_ATTACK):
        place = (row["split"], row["method"])
        first = dict(zip(("split", "method", "attack"), (*place, row["attack"]), strict=True))
        line = lines.setdefault((*place, row["attack"]), {**first, "no_attack": honest.get(place)})
        line[row["defence"]] = row["accuracy"]
        line["diverged"] = line.get("diverged", 0) + row["diverged"]
    # At the end, where a table of several defences has it.
    return [line | {"diverged": line.pop("diverged")} for line in lines.values()]


def by_gamma(examples: Sequence[Row]) -> list[Row]:
    """Figure 2c: one line per γ, one column per method."""
    lines: dict[float, Row] = {}
    for row in examples:
        line = lines.setdefault(row["gamma"], {"gamma": row["gamma"]})
        line[row["method"]] = row["error"]
        line[f"{row['method']}_last"] = row["last_error"]
    return list(lines.values())


def summary(rows: Sequence[Row], examples: Sequence[Row]) -> dict[str, list[Row]]:
    """All tables by name."""
    tables = {"accuracy by method": by_method(rows), "accuracy by attack": by_attack(rows)}
    return {name: table for name, table in tables.items() if table} | {"normalization error": by_gamma(examples)}
