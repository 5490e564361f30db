"""`commonscale bench`: measure this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from commonscale.cli.bench_encoding_study import encoding_study
from commonscale.cli.bench_study import normalization_study
from commonscale.cli.console import Format, FormatOption, err

app = typer.Typer(no_args_is_help=True)
app.command("normalization-study")(normalization_study)
app.command("encoding-study")(encoding_study)

VARIANTS = ("masks/two", "masks/one", "shares/two", "sac-proportional/two")


@contextmanager
def _scratch(first: str) -> Iterator[tuple[Path, Callable[[str], None]]]:
    with tempfile.TemporaryDirectory() as directory, err.status(first) as status:
        yield Path(directory), status.update


@app.command()
def zscore(
    parties: Annotated[int, typer.Option(min=3, max=100, help="Sites.")] = 10,
    features: Annotated[int, typer.Option(min=1, max=4000, help="Columns.")] = 30,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each site.")] = 100_000,
    variants: Annotated[
        str, typer.Option(help=f"Comma-separated, of: {', '.join(VARIANTS)}.")
    ] = "masks/two,masks/one,shares/two",
    repeats: Annotated[int, typer.Option(min=1, max=100, help="The median of this many jobs is shown.")] = 5,
    output: FormatOption = Format.TEXT,
) -> None:
    """The whole z-score job over real processes and mTLS."""
    from bench import report
    from bench import zscore as benchmark

    chosen = []
    for variant in variants.split(","):
        if variant not in VARIANTS:
            raise typer.BadParameter(f"{variant!r} is none of {', '.join(VARIANTS)}", param_hint="--variants")
        sums, _, rounds = variant.rpartition("/")
        chosen.append((sums, rounds))
    with _scratch("preparing") as (directory, say):
        rows_out = benchmark.measure(
            directory, parties=parties, features=features, rows=rows, variants=chosen, repeats=repeats, say=say
        )
    report.publish("zscore", rows_out, output)


@app.command()
def relay(
    largest_mib: Annotated[int, typer.Option(min=1, max=256, help="The largest payload.")] = 256,
    output: FormatOption = Format.TEXT,
) -> None:
    """One payload through the relay, beside the same payload on a bare gRPC mTLS stream."""
    from bench import relay as benchmark
    from bench import report

    with _scratch("preparing") as (directory, say):
        sizes = tuple(size for size in benchmark.SIZES if size <= largest_mib << 20)
        rows = benchmark.measure(directory, say, sizes)
    report.publish("relay", rows, output)


PPF_PROFILES = ("standard", "high-latency", "test")


@app.command()
def ppf(
    parties: Annotated[int, typer.Option(min=3, max=100, help="Sites.")] = 10,
    features: Annotated[int, typer.Option(min=1, max=4000, help="Columns.")] = 30,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each site.")] = 1000,
    variants: Annotated[
        str | None, typer.Option(help="Comma-separated protocols or protocol/variant; see docs/benchmarks.md.")
    ] = None,
    profile: Annotated[str, typer.Option(help=f"Encryption parameters: {', '.join(PPF_PROFILES)}.")] = "standard",
    repeats: Annotated[int, typer.Option(min=1, max=100, help="The median of this many jobs is shown.")] = 1,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every normalization protocol and variant over real processes and mTLS, the paper's own algorithms beside."""
    from bench import ppf as benchmark
    from bench import report

    if profile not in PPF_PROFILES:
        raise typer.BadParameter(f"{profile!r} is none of {', '.join(PPF_PROFILES)}", param_hint="--profile")
    chosen: list[str] = []
    for wanted in variants.split(",") if variants else benchmark.DEFAULT:
        # "minmax", "minmax/tree" or just "tree".
        matching = [name for name in benchmark.STEPS if wanted in (name, *name.split("/"))]
        if not matching:
            raise typer.BadParameter(f"{wanted!r} is none of {', '.join(benchmark.STEPS)}", param_hint="--variants")
        chosen += [name for name in matching if name not in chosen]
    with _scratch("preparing") as (directory, say):
        rows_out = benchmark.measure(
            directory, parties=parties, features=features, rows=rows, variants=chosen, profile=profile,
            repeats=repeats, say=say,
        )  # fmt: skip
    report.publish("ppf", rows_out, output)


@app.command()
def encode(
    sites: Annotated[int, typer.Option(min=3, max=100, help="Sites.")] = 4,
    variants: Annotated[str | None, typer.Option(help="Comma-separated; see docs/benchmarks.md.")] = None,
    categories: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="So many made-up categories a site in one column; 0: Adult.")
    ] = 0,
    fasttext_model: Annotated[Path | None, typer.Option(help="A fastText .bin file, for variant fasttext.")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="The median of this many jobs is shown.")] = 1,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every encoding of categorical columns over real processes and mTLS, compared with the pooled dictionary."""
    from bench import encode as benchmark
    from bench import report

    chosen = variants.split(",") if variants else list(benchmark.DEFAULT)
    for variant in chosen:
        if variant not in benchmark.STEPS:
            known = ", ".join(benchmark.STEPS)
            raise typer.BadParameter(f"{variant!r} is none of {known}", param_hint="--variants")
    with _scratch("preparing") as (directory, say):
        rows = benchmark.measure(
            directory, sites=sites, categories=categories, variants=chosen, model=fasttext_model, repeats=repeats,
            say=say,
        )  # fmt: skip
    report.publish("encode", rows, output)


@app.command()
def ckks(
    parties: Annotated[int, typer.Option(min=3, max=100, help="Sites.")] = 10,
    ring: Annotated[int, typer.Option(help="14 (profile standard), 15 (high-latency); 11 is a quick try.")] = 14,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every micro-operation of threshold CKKS, collectively, over real processes and mTLS."""
    from bench import ckks as benchmark
    from bench import report

    if ring not in benchmark.RINGS:
        raise typer.BadParameter(f"{ring} is none of {', '.join(map(str, benchmark.RINGS))}", param_hint="--ring")
    with _scratch("preparing") as (directory, say):
        rows = benchmark.measure(directory, parties=parties, ring=ring, say=say)
    report.publish("ckks", rows, output)


@app.command()
def growth(
    parties: Annotated[str, typer.Option(help="Numbers of sites, comma-separated.")] = "5,10,20,50",
    features: Annotated[int, typer.Option(min=1, max=4000, help="Columns.")] = 30,
    variants: Annotated[str, typer.Option(help="As of bench ppf.")] = "zscore/ckks,minmax/search,minmax/tree",
    profile: Annotated[str, typer.Option(help=f"Encryption parameters: {', '.join(PPF_PROFILES)}.")] = "standard",
    plot: Annotated[Path | None, typer.Option(help="Where to draw the curve (.svg or .png).")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The same jobs with more and more sites, all as real processes on this machine."""
    from bench import growth as benchmark
    from bench import report

    with _scratch("preparing") as (directory, say):
        rows = benchmark.measure(
            directory, parties=[int(number) for number in parties.split(",")], features=features,
            variants=variants.split(","), profile=profile, say=say,
        )  # fmt: skip
    if plot is not None:
        benchmark.plot(rows, plot)
    report.publish("growth", rows, output)


@app.command()
def replicas(
    database: Annotated[str, typer.Option(help="An empty PostgreSQL database to write to: postgresql://…")],
    parties: Annotated[int, typer.Option(min=3, max=100, help="Sites.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="The median of this many jobs is shown.")] = 10,
    output: FormatOption = Format.TEXT,
) -> None:
    """Small jobs on SQLite, on PostgreSQL and with two coordinators, of which one is killed."""
    from bench import replicas as benchmark
    from bench import report

    with _scratch("preparing") as (directory, say):
        rows = benchmark.measure(directory, database, parties=parties, repeats=repeats, say=say)
    report.publish("replicas", rows, output)
