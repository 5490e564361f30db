"""One picture of the study: a panel for each data set, a group of bars for each method, the paper's beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.encoding_study.summary import Row
from bench.normalization_study.plot import check

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check", "draw"]
OURS, PAPERS = "#0072b2", "#e69f00"  # told apart by the colour-blind too


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the picture; methods that were not run have only the paper's bar."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "commonscale", "font.size": 8}):
        figure = Figure(figsize=(8.2, 1.7 * len(datasets) + 1.1), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(datasets), 1, squeeze=False, sharex=True)[:, 0]
        for axes, dataset in zip(panels, datasets, strict=True):
            _panel(axes, [row for row in rows if row["dataset"] == dataset])
            axes.set_ylabel(f"{dataset}\nF1")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    where = np.arange(len(rows))
    heights, spreads, theirs = (
        [row[key] if row[key] is not None else np.nan for row in rows] for key in ("f1", "f1_sd", "paper_f1")
    )
    axes.bar(where - 0.2, heights, 0.38, yerr=spreads, color=OURS, label="here", error_kw={"lw": 0.6})
    axes.bar(where + 0.2, theirs, 0.38, color=PAPERS, label="in the paper")
    for x, value in zip(where, theirs, strict=True):
        if value == 0.0:
            axes.text(x + 0.2, 0.0, "0", ha="center", va="bottom", color=PAPERS)
    axes.set_ylim(0.0, 1.0)
    axes.set_xticks(where, [row["method"] for row in rows], rotation=30, ha="right")
    axes.spines[["top", "right"]].set_visible(False)
