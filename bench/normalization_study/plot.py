"""One picture of the study: a panel for each data set and imbalance, a group of bars for each normalization."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.normalization_study.scaling import FROM_FEDERATION, FROM_POOL, LOCAL, NONE
from bench.normalization_study.summary import Row, wide
from commonscale.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {LOCAL: "#e69f00", FROM_FEDERATION: "#0072b2", FROM_POOL: "#56b4e9"}  # told apart by the colour-blind too
LOWEST = -0.1  # a model far below the mean is only shown to be there
FORMATS = (".png", ".svg")


def check(path: Path) -> None:
    """Say before a long run what would make its picture fail after it."""
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"{path} is not a picture that can be written.", f"Name a file that ends in {' or '.join(FORMATS)}."
        )
    if not path.parent.is_dir():
        raise ConfigError(f"There is no directory {path.parent}.")
    try:
        import matplotlib  # noqa: F401  (only asks whether it is there)
    except ImportError:
        raise ConfigError("The plot needs matplotlib.", "Install it with 'pip install commonscale[bench]'.") from None


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the picture; several numbers of clients are averaged."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = wide(rows)
    datasets = list(dict.fromkeys(x["dataset"] for x in lines))
    settings = list(dict.fromkeys((x["imbalance"], x["level"]) for x in lines))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "commonscale", "font.size": 8}):
        figure = Figure(figsize=(2.3 * len(settings) + 0.6, 1.9 * len(datasets) + 0.7), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(datasets), len(settings), squeeze=False, sharey="row")
        for i, dataset in enumerate(datasets):
            for j, setting in enumerate(settings):
                _panel(
                    panels[i, j],
                    [x for x in lines if (x["dataset"], x["imbalance"], x["level"]) == (dataset, *setting)],
                )
                if i == 0:
                    panels[i, j].set_title("IID" if setting[1] == "-" else f"{setting[1]} {setting[0]} imbalance")
            panels[i, 0].set_ylabel(f"{dataset}\n{_metric(lines, dataset)}")
            # Only now: a limit set before the last panel is drawn would cut that one.
            panels[i, 0].set_ylim(bottom=max(LOWEST, panels[i, 0].get_ylim()[0]))
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _metric(lines: Sequence[Row], dataset: str) -> str:
    return "R²" if any(x["metric"] == "R2" for x in lines if x["dataset"] == dataset) else "macro F1"


def _panel(axes: Axes, lines: Sequence[Row]) -> None:
    names = list(dict.fromkeys(x["normalization"] for x in lines))
    for k, (place, colour) in enumerate(COLOURS.items()):
        chosen = [[x for x in lines if x["normalization"] == name] for name in names]
        heights = [max(float(np.mean([x[place] for x in group])), LOWEST) for group in chosen]
        spreads = [min(float(np.mean([x[f"{place}_sd"] for x in group])), 1.0) for group in chosen]
        where = np.arange(len(names)) + (k - 1) * 0.27
        axes.bar(where, heights, 0.25, yerr=spreads, color=colour, label=place, error_kw={"lw": 0.6})
    axes.axhline(max(float(np.mean([x[NONE] for x in lines])), LOWEST), color="0.4", ls="--", lw=0.8, label=NONE)
    axes.set_xticks(range(len(names)), names, rotation=20)
    axes.spines[["top", "right"]].set_visible(False)
