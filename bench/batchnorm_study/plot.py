"""Two pictures: accuracies (final by split, curves, attacks), and the normalization error of Figure 2c."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.batchnorm_study.plan import (
    A_CLASS_EACH,
    ATTACKED,
    CENTRALIZED,
    DISHONEST,
    FBN,
    FIXBN,
    METHODS,
    NAIVE,
    NO_ATTACK,
    SITES,
)
from bench.batchnorm_study.summary import Row, by_attack, by_gamma, by_method
from bench.normalization_study.plot import check

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check", "draw", "draw_example"]
# Told apart by the colour-blind too.
COLOURS = {CENTRALIZED: "0.4", FBN: "#0072b2", FIXBN: "#e69f00", NAIVE: "#d55e00"}
BARS = ("#999999", "#0072b2", "#56b4e9", "#009e73", "#b3e2cd")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the picture: a panel of final accuracies, one of curves, and two of attacks if there were some."""
    attacked = [method for method in ATTACKED if any(line["method"] == method for line in _attacks(rows))]

    def panels(figure: Any) -> None:
        axes = figure.subplots(1 + bool(attacked), 2, squeeze=False, sharey=True)
        _final(axes[0, 0], by_method(rows))
        _curves(axes[0, 1], rows)
        for axis, method in zip(axes[-1], attacked, strict=False):
            _bars(axis, method, [line for line in _attacks(rows) if line["method"] == method])
        for axis in axes[1:, len(attacked) :].flat:
            axis.set_visible(False)
        for axis in axes[:, 0]:
            axis.set_ylabel("test accuracy (%)")
        axes[0, 0].set_ylim(bottom=0.0)

    _save(panels, (8.2, 2.9 * (1 + bool(attacked))), path)


def draw_example(examples: Sequence[Row], path: Path) -> None:
    """Write Figure 2c."""

    def panel(figure: Any) -> None:
        axes, lines = figure.subplots(), by_gamma(examples)
        where = list(range(len(lines)))
        for method in (FBN, FIXBN, NAIVE):
            axes.plot(where, [line[method] for line in lines], "o-", color=COLOURS[method], label=method)
        axes.set_xticks(where, [f"γ = {line['gamma']:g}" for line in lines])
        axes.set_ylabel("distance from the centralized run")
        axes.set_ylim(bottom=0.0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)

    _save(panel, (4.2, 2.9), path)


def _save(fill: Callable[[Any], None], size: tuple[float, float], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "commonscale", "font.size": 8}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        fill(figure)
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _attacks(rows: Sequence[Row]) -> list[Row]:
    """Of the split with a class for each site, or of the last that was attacked."""
    lines = by_attack(rows)
    splits = [line["split"] for line in lines]
    shown = str(A_CLASS_EACH) if str(A_CLASS_EACH) in splits else splits[-1] if splits else ""
    return [line for line in lines if line["split"] == shown]


def _final(axes: Axes, lines: Sequence[Row]) -> None:
    where = list(range(len(lines)))
    for method in METHODS:
        heights, spreads = ([line.get(name, float("nan")) for line in lines] for name in (method, f"{method}_sd"))
        axes.errorbar(where, heights, yerr=spreads, fmt="o", color=COLOURS[method], label=method, elinewidth=0.6)
        for kind in ("gamma", "alpha"):
            # What is joined is one scale.
            chosen = [at for at, line in enumerate(lines) if line["split"].startswith(kind)]
            axes.plot(chosen, [heights[at] for at in chosen], color=COLOURS[method])
    axes.set_xticks(where, [_shown(line["split"]) for line in lines])
    axes.set_title("after the last round")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _shown(split: str) -> str:
    return split.replace("gamma=", "γ = ").replace("alpha=", "α = ")


def _curves(axes: Axes, rows: Sequence[Row]) -> None:
    for row in rows:
        if row["split"] == str(A_CLASS_EACH) and row["attack"] == NO_ATTACK:
            rounds, accuracies = zip(*row["curve"], strict=True)
            axes.plot(rounds, accuracies, color=COLOURS[row["method"]], label=row["method"])
    axes.set_title(f"over the rounds, {_shown(str(A_CLASS_EACH))}")
    axes.set_xlabel("round")
    axes.spines[["top", "right"]].set_visible(False)


def _bars(axes: Axes, method: str, lines: Sequence[Row]) -> None:
    defences = [name for name in lines[0] if name not in _BESIDE]
    width = 0.8 / len(defences)
    for number, defence in enumerate(defences):
        where = [at + (number - (len(defences) - 1) / 2) * width for at in range(len(lines))]
        label = "no defence" if defence == "mean" else defence
        axes.bar(where, [line[defence] for line in lines], 0.92 * width, color=BARS[number], label=label)
    if lines[0]["no_attack"] is not None:
        axes.axhline(lines[0]["no_attack"], color="0.2", ls="--", lw=0.8, label="no attack")
    axes.set_xticks(range(len(lines)), [line["attack"].upper() for line in lines])
    axes.set_title(f"{method}, {DISHONEST} of {SITES} sites lie, {_shown(lines[0]['split'])}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)


_BESIDE = ("split", "method", "attack", "no_attack", "diverged")
