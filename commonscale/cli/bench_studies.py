"""`commonscale bench normalization-study`, `encoding-study`, `batchnorm-study`: what papers give a federated model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from commonscale.cli.console import Format, FormatOption, err, print_json
from commonscale.errors import ConfigError

Rows = Sequence[dict[str, Any]]
PlotOption = Annotated[Path | None, typer.Option(help="Write a picture here (.png or .svg).")]


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
    plot: PlotOption = None,
    seed: Annotated[int, typer.Option(min=0, help="The first of three seeds.")] = 0,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Runs at the same time.")] = 2,
    output: FormatOption = Format.TEXT,
) -> None:
    """Train on three data sets with no, local, federated and pooled normalization, and compare."""
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
    with _progress() as say:
        rows = study.run(plan, data_directory(), seed=seed, processes=processes, say=say)
    if plot is not None:
        picture.draw(rows, plot)
    _publish("normalization-study", rows, wide(rows), summary(rows), output)


def encoding_study(
    small: Annotated[
        bool, typer.Option("--small", help="At most 4,000 rows and three seeds: under two minutes.")
    ] = False,
    datasets: Annotated[str, typer.Option(help="Comma-separated, of: adult, german, law-school; all if empty.")] = "",
    methods: Annotated[str, typer.Option(help="Comma-separated; all if empty.")] = "",
    plot: PlotOption = None,
    seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    fasttext_model: Annotated[
        Path | None, typer.Option(help="A fastText model (.bin); without it that method is left out.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Train on three data sets with every encoding of categories, and compare F1 with the paper's."""
    from bench.encoding_study import plot as picture
    from bench.encoding_study import study
    from bench.encoding_study.data import DATASETS
    from bench.encoding_study.encoding import METHODS
    from bench.encoding_study.summary import summary
    from bench.normalization_study.data import data_directory

    plan = study.SMALL if small else study.FULL
    if datasets:
        plan = replace(plan, datasets=chosen(datasets, tuple(DATASETS), "--datasets"))
    if methods:
        plan = replace(plan, methods=chosen(methods, tuple(METHODS), "--methods"))
    if plot is not None:
        picture.check(plot)
    embedding = None if fasttext_model is None else _embedding(fasttext_model)
    with _progress() as say:
        rows = study.run(plan, data_directory(), seed=seed, embedding=embedding, say=say)
        sites = study.sites(plan, data_directory(), seed=seed)
    if plot is not None:
        picture.draw(rows, plot)
    _publish("encoding-study", rows, rows, {"sites": sites} | summary(rows), output)


def batchnorm_study(
    small: Annotated[
        bool, typer.Option("--small", help="γ = 1 and 0, attacks at γ = 0, 50 rounds: under three minutes.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="small, or paper: the network and training of its Tables 1 and 2.")
    ] = "small",
    parts: Annotated[str, typer.Option(help="Comma-separated, of: methods, attacks.")] = "methods,attacks",
    splits: Annotated[
        str, typer.Option(help="Comma-separated, of: gamma=1, gamma=0.3, gamma=0.01, gamma=0, alpha=1, alpha=0.1.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=0, max=100_000, help="Rounds of each training; 0: the model's.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many seeds.")] = 3,
    python: Annotated[
        Path | None,
        typer.Option(help="A Python with PyTorch and commonscale-worker; that of 'make torch' if not named."),
    ] = None,
    plot: PlotOption = None,
    example_plot: Annotated[Path | None, typer.Option(help="Draw Figure 2c here (.png or .svg).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Runs at the same time.")] = 2,
    output: FormatOption = Format.TEXT,
) -> None:
    """Train with Federated, Fix and Naive BatchNorm while sites differ and lie, and compare with pooled batches."""
    from bench.batchnorm_study import plot as picture
    from bench.batchnorm_study import study
    from bench.batchnorm_study.plan import FULL, PARTS, SETUPS, SMALL, SPLITS
    from bench.batchnorm_study.summary import summary
    from bench.normalization_study.data import data_directory

    chosen(model, tuple(SETUPS), "--model")
    plan = replace(SMALL if small else FULL, seeds=seeds)
    plan = plan.with_setup(plan.setup if model == plan.setup.model else SETUPS[model], rounds)
    if splits:
        plan = plan.among(chosen(splits, tuple(map(str, SPLITS)), "--splits"))
    plan = plan.with_parts(chosen(parts, PARTS, "--parts"))
    for path in (plot, example_plot):
        if path is not None:
            picture.check(path)
    environment, directory = study.torch_python(python), data_directory()
    with _progress() as say:
        examples, rows = study.run(plan, directory, environment, seed=seed, processes=processes, say=say)
    if plot is not None:
        picture.draw(rows, plot)
    if example_plot is not None:
        picture.draw_example(examples, example_plot)
    _publish("batchnorm-study", rows, examples, summary(rows, examples), output)


def chosen(text: str, known: Sequence[str], option: str) -> tuple[str, ...]:
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


def _embedding(path: Path) -> Any:
    from commonscale.estimators.fasttext import Model

    try:
        return Model(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A log file gets a line for each step, a terminal one line that changes."""
    with err.status("preparing") as status:
        yield status.update if err.is_terminal else err.print


def _publish(name: str, rows: Rows, shown: Rows, tables: Mapping[str, Rows], output: Format) -> None:
    from bench import report

    if output is Format.JSON:
        print_json({"bench": name, "machine": report.machine(), "rows": rows, "summary": tables})
        return
    report.publish(name, shown, output)
    for title, table in tables.items():
        report.publish(f"{name}, {title}", table, output)
