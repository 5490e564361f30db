"""`commonscale bench normalization-study`: local against federated normalization, as in the paper's section IV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from commonscale.cli.console import Format, FormatOption, err, print_json

NAME = "normalization-study"


def normalization_study(
    small: Annotated[
        bool, typer.Option("--small", help="10 clients, high imbalance, fewer rows: under two minutes.")
    ] = False,
    datasets: Annotated[
        str, typer.Option(help="Comma-separated, of: breast-cancer, hcv, parkinsons; all if empty.")
    ] = "",
    clients: Annotated[
        str, typer.Option(help="Comma-separated numbers of clients; 10,20,30 (small: 10) if empty.")
    ] = "",
    imbalances: Annotated[
        str, typer.Option(help="Comma-separated, of: iid, quantity, label, feature; all if empty.")
    ] = "",
    plot: Annotated[Path | None, typer.Option(help="Write a picture here (.png or .svg).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first of three seeds.")] = 0,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Runs at the same time.")] = 2,
    output: FormatOption = Format.TEXT,
) -> None:
    """Train on three data sets with no, local, federated and pooled normalization, and compare."""
    from bench import report
    from bench.normalization_study import plot as picture
    from bench.normalization_study import study
    from bench.normalization_study.data import DATASETS, data_directory
    from bench.normalization_study.summary import summary, wide

    plan = study.SMALL if small else study.FULL
    if datasets:
        plan = replace(plan, datasets=chosen(datasets, tuple(DATASETS), "--datasets"))
    if clients:
        plan = replace(plan, clients=_numbers(clients))
    if imbalances:
        kinds = chosen(imbalances, tuple(dict.fromkeys(i.kind for i in plan.imbalances)), "--imbalances")
        plan = replace(plan, imbalances=tuple(i for i in plan.imbalances if i.kind in kinds))
    if plot is not None:
        picture.check(plot)
    with err.status("preparing") as status:
        # A log file gets a line for each step, a terminal one line that changes.
        say = status.update if err.is_terminal else err.print
        rows = study.run(plan, data_directory(), seed=seed, processes=processes, say=say)
    if plot is not None:
        picture.draw(rows, plot)
    if output is Format.JSON:
        print_json({"bench": NAME, "machine": report.machine(), "rows": rows, "summary": summary(rows)})
        return
    report.publish(NAME, wide(rows), output)
    for title, table in summary(rows).items():
        report.publish(f"{NAME}, {title}", table, output)


def chosen(text: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Comma-separated names, each a known one."""
    names = tuple(text.split(","))
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)
    return names


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or any(not 2 <= number <= 50 for number in numbers):
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers from 2 to 50", param_hint="--clients")
    return numbers
