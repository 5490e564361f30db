"""What the rows say, in the shape of the paper's Tables 1, 3 and 5, beside its own figures."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bench.encoding_study import paper
from bench.encoding_study.partition import SITES

Row: TypeAlias = dict[str, Any]
TABLE_3_METHODS = (*paper.TABLE_3_COLUMNS[:-1], "target-local-mean", paper.TABLE_3_COLUMNS[-1])


def table_1(rows: Sequence[Row]) -> list[Row]:
    """Local, uniform encoding, uniform scaling, both."""
    return _beside(rows, paper.TABLE_1_COLUMNS)


def table_3(rows: Sequence[Row]) -> list[Row]:
    """One column a method. Our Table 3 has *server* and *local* in common with Table 1, as the paper's."""
    return _beside(rows, TABLE_3_METHODS)


def _beside(rows: Sequence[Row], methods: Iterable[str]) -> list[Row]:
    lines = []
    for dataset, of_method in _by_dataset(rows).items():
        for what in ("f1", "f1_sd", "macro_f1", "paper_f1"):
            chosen = {m: of_method[m][what] for m in methods if m in of_method}
            lines.append({"dataset": dataset, "what": what} | chosen)
    return lines


def dimensions(rows: Sequence[Row]) -> list[Row]:
    """Width of the network's input."""
    return [
        {"dataset": dataset} | {method: row["inputs"] for method, row in of_method.items()}
        for dataset, of_method in _by_dataset(rows).items()
    ]


def table_5(rows: Sequence[Row], sites: int = SITES) -> list[Row]:
    """Messages, loss against the server's F1 (mean over the data sets, as in the paper), and what is shared.

    `messages` is for what `commonscale bench encode` counts.
    """
    tables = _by_dataset(rows)
    lines = []
    for name, cost in paper.TABLE_5.items():
        method = name.partition(" ")[0]
        lines.append(
            {
                "method": name,
                "paper_messages": cost.messages,
                f"paper_messages_of_{sites}": cost.count(sites) if cost.count else None,
                "our_messages": OURS.get(name),
                "messages": None,
                "dimension": cost.dimension,
                "loss": _loss(tables, method),
                "paper_loss": cost.loss,
                "shared": cost.shared,
            }
        )
    return lines


# Between sites. A ring hands its sizes on and round again; two sites need one execution, not one in either role.
OURS = {"ring": "2n - 1", "psi (apsi)": "2n - 1 + 4 · n(n - 1)/2"}


def _loss(tables: dict[str, dict[str, Row]], method: str) -> float | None:
    pairs = [(t["server"]["f1"], t[method]["f1"]) for t in tables.values() if {"server", method} <= t.keys()]
    known = [best - f1 for best, f1 in pairs if best is not None and f1 is not None]
    return float(np.mean(known)) if known else None


def _by_dataset(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    tables: dict[str, dict[str, Row]] = {}
    for row in rows:
        tables.setdefault(row["dataset"], {})[row["method"]] = row
    return tables


def summary(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """All tables by name."""
    return {
        "table 1": table_1(rows),
        "table 3": table_3(rows),
        "table 5": table_5(rows),
        "input dimensions": dimensions(rows),
    }
