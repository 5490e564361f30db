"""`commonscale bench encoding-study`: what an encoding of categories costs a federated model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from commonscale.cli.console import Format, FormatOption, err, print_json
from commonscale.errors import ConfigError

NAME = "encoding-study"


def encoding_study(
    small: Annotated[
        bool, typer.Option("--small", help="At most 4,000 rows and three seeds: under two minutes.")
    ] = False,
    datasets: Annotated[str, typer.Option(help="Comma-separated, of: adult, german, law-school; all if empty.")] = "",
    methods: Annotated[str, typer.Option(help="Comma-separated; all if empty.")] = "",
    plot: Annotated[Path | None, typer.Option(help="Write a picture here (.png or .svg).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    fasttext_model: Annotated[
        Path | None, typer.Option(help="A fastText model (.bin); without it that method is left out.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Train on three data sets with every encoding of categories, and compare F1 with the paper's."""
    from bench import report
    from bench.encoding_study import plot as picture
    from bench.encoding_study import study
    from bench.encoding_study.data import DATASETS
    from bench.encoding_study.encoding import METHODS
    from bench.encoding_study.summary import summary
    from bench.normalization_study.data import data_directory
    from commonscale.cli.bench_study import chosen

    plan = study.SMALL if small else study.FULL
    if datasets:
        plan = replace(plan, datasets=chosen(datasets, tuple(DATASETS), "--datasets"))
    if methods:
        plan = replace(plan, methods=chosen(methods, tuple(METHODS), "--methods"))
    if plot is not None:
        picture.check(plot)
    embedding = None if fasttext_model is None else _embedding(fasttext_model)
    with err.status("preparing") as status:
        # A log file gets a line for each step, a terminal one line that changes.
        say = status.update if err.is_terminal else err.print
        rows = study.run(plan, data_directory(), seed=seed, embedding=embedding, say=say)
        sites = study.sites(plan, data_directory(), seed=seed)
    if plot is not None:
        picture.draw(rows, plot)
    tables = {"sites": sites} | summary(rows)
    if output is Format.JSON:
        print_json({"bench": NAME, "machine": report.machine(), "rows": rows, "summary": tables})
        return
    report.publish(NAME, rows, output)
    for title, table in tables.items():
        report.publish(f"{NAME}, {title}", table, output)


def _embedding(path: Path) -> Any:
    from commonscale.transforms.fasttext import Model

    try:
        return Model(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
