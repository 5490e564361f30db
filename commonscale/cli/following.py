"""A job on its way, in one line for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal
from rich.table import Table

from commonscale.cli.console import table

if TYPE_CHECKING:
    from commonscale.client import Job
    from commonscale.v1 import jobs_pb2

BARS = "▁▂▃▄▅▆▇█"
# So many of the newest figures are drawn, and so many rows are in a table of all.
DRAWN = 24
LISTED = 10


def now(job: Job) -> str:
    """What it does, how far it is, who is awaited."""
    progress = job.wire.progress
    said = [job.state]
    if progress.HasField("training"):
        said.append(training(progress.training, progress.received_bytes))
    if progress.round:
        said.append(f"waiting for {', '.join(progress.awaited)} in {progress.round}")
    return ", ".join(said)


def training(found: jobs_pb2.Training, received_bytes: int = 0) -> str:
    """Round, seconds, bytes that came from all sites, the newest figures, and the loss as a curve."""
    under_way = found.done < found.rounds and not found.stopped_early
    said = [f"round {found.done + under_way} of {found.rounds}"]
    if found.round_s:
        said.append(f"{found.round_s:.2f} s a round")
    if received_bytes:
        said.append(f"{decimal(received_bytes)} received")
    if found.figures:
        newest = found.figures[-1]
        said.append(f"loss {newest.loss:.4g} {curve([one.loss for one in found.figures[-DRAWN:]])}".rstrip())
        said += [f"accuracy {newest.accuracy:.3f}"] if newest.HasField("accuracy") else []
        said += [f"AUC {newest.auc:.3f}"] if newest.HasField("auc") else []
    if found.lost:
        said.append(f"without {', '.join(found.lost)}")
    return " · ".join(said)


def curve(values: Sequence[float]) -> str:
    """One bar a value, between the lowest and the highest; nothing of less than two."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[min(int((value - low) / span * len(BARS)), len(BARS) - 1)] for value in values)


def training_table(number: int, step: dict[str, Any]) -> Table:
    """How good the model was after some rounds, the last among them."""
    metrics = step["metrics"]
    every = -(-len(metrics) // LISTED) or 1
    names = [name for name in ("loss", "accuracy", "auc") if any(name in one for one in metrics)]
    rows = [
        (str(one["round"]), *(f"{one[name]:.6g}" if name in one else "" for name in names))
        for one in reversed(metrics[::-1][::every])
    ]
    early = ", stopped early" if step["stopped_early"] else ""
    title = f"step {number}: train {step['model']}, {step['rounds']} rounds{early}, {step['rows']:,} rows"
    return table("round", *names, rows=rows, title=title)
