"""How cost grows with the number of sites: the same jobs with more and more real processes, as a table and a plot."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import ppf


def measure(
    directory: Path, *, parties: Sequence[int], features: int, methods: list[str], profile: str,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """One row per method and number of sites."""
    rows: list[dict[str, Any]] = []
    for number in parties:
        rows += ppf.measure(
            directory / str(number), parties=number, features=features, rows=200, methods=methods, profile=profile,
            repeats=1, say=lambda what, number=number: say(f"{number} sites: {what}"),  # type: ignore[misc]
        )  # fmt: skip
    return rows


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Rounds, seconds and bytes of a site, each against the number of sites."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys((row["protocol"], row["method"]) for row in rows))
    panels = (("rounds", "messages of a site", 1.0), ("total_s", "seconds, all roles on one machine", 1.0),
              ("bytes_up", "MB sent by a site", 1e6))  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, (key, label, unit) in zip(axes, panels, strict=True):
        for protocol, method in names:
            mine = [row for row in rows if (row["protocol"], row["method"]) == (protocol, method)]
            axis.plot(
                [row["parties"] for row in mine], [row[key] / unit for row in mine], "o-", label=f"{protocol} {method}"
            )
        axis.set_xlabel("sites")
        axis.set_title(label, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path)
