"""`commonscale bench`: measure this machine."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from commonscale.cli.bench_studies import batchnorm_study, chosen, encoding_study, normalization_study
from commonscale.cli.console import Format, FormatOption, err

app = typer.Typer(no_args_is_help=True)
app.command("normalization-study")(normalization_study)
app.command("encoding-study")(encoding_study)
app.command("batchnorm-study")(batchnorm_study)

METHODS = ("masks/two", "masks/one", "shares/two", "sac-proportional/two")
PPF_PROFILES = ("standard", "high-latency", "test")

Sites = Annotated[int, typer.Option(min=3, max=100, help="Sites.")]
Columns = Annotated[int, typer.Option(min=1, max=4000, help="Columns.")]
Rows = Annotated[int, typer.Option(min=1, help="Rows of each site.")]
Repeats = Annotated[int, typer.Option(min=1, max=100, help="The median of this many jobs is shown.")]
Profile = Annotated[str, typer.Option(help=f"Encryption parameters: {', '.join(PPF_PROFILES)}.")]


def _publish(name: str, output: Format, measure: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Measure in a directory that is gone afterwards, and print the rows."""
    from bench import report

    with tempfile.TemporaryDirectory() as directory, err.status("preparing") as status:
        rows = measure(Path(directory), say=status.update)
    report.publish(name, rows, output)
    return rows


@app.command()
def zscore(
    parties: Sites = 10,
    features: Columns = 30,
    rows: Rows = 100_000,
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated, of: {', '.join(METHODS)}.")
    ] = "masks/two,masks/one,shares/two",
    repeats: Repeats = 5,
    output: FormatOption = Format.TEXT,
) -> None:
    """The whole z-score job over real processes and mTLS."""
    from bench.zscore import measure

    named = (name.split("/") for name in chosen(methods, METHODS, "--methods"))
    pairs = [(method, rounds) for method, rounds in named]
    zscores = partial(measure, parties=parties, features=features, rows=rows, methods=pairs, repeats=repeats)
    _publish("zscore", output, zscores)


@app.command()
def relay(
    largest_mib: Annotated[int, typer.Option(min=1, max=256, help="The largest payload.")] = 256,
    output: FormatOption = Format.TEXT,
) -> None:
    """One payload through the relay, beside the same payload on a bare gRPC mTLS stream."""
    from bench.relay import SIZES, measure

    sizes = tuple(size for size in SIZES if size <= largest_mib << 20)
    _publish("relay", output, partial(measure, sizes=sizes))


@app.command()
def sums(
    values: Annotated[int, typer.Option(min=1, max=100_000_000, help="Numbers of one site.")] = 1_000_000,
    peers: Annotated[int, typer.Option(min=1, max=999, help="Other sites.")] = 9,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="The median of this many is shown.")] = 5,
    output: FormatOption = Format.TEXT,
) -> None:
    """The arithmetic of a secure sum at one site, on one core: encode, mask for all peers, decode."""
    from bench.sums import measure

    _publish("sums", output, lambda _, say: measure(values=values, peers=peers, repeats=repeats, say=say))


def _ppf_methods(text: str) -> list[str]:
    """Comma-separated: "minmax", "minmax/tree" or just "tree"."""
    from bench.ppf import PAPER_S

    named: dict[str, None] = {}
    for wanted in text.split(","):
        matching = [name for name in PAPER_S if wanted in (name, *name.split("/"))]
        if not matching:
            raise typer.BadParameter(f"{wanted!r} is none of {', '.join(PAPER_S)}", param_hint="--methods")
        named |= dict.fromkeys(matching)
    return list(named)


@app.command()
def ppf(
    parties: Sites = 10,
    features: Columns = 30,
    rows: Rows = 1000,
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated transforms, methods or transform/method; see docs/benchmarks.md."),
    ] = None,
    profile: Profile = "standard",
    repeats: Repeats = 1,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every normalization protocol and method over real processes and mTLS, the paper's own algorithms beside."""
    from bench.ppf import DEFAULT, measure

    chosen(profile, PPF_PROFILES, "--profile")
    named = _ppf_methods(methods) if methods else list(DEFAULT)
    federation = partial(measure, parties=parties, features=features, rows=rows, profile=profile)
    _publish("ppf", output, partial(federation, methods=named, repeats=repeats))


@app.command()
def preprocessors(
    parties: Sites = 4,
    rows: Rows = 1000,
    datasets: Annotated[str, typer.Option(help="Comma-separated, of: adult, bank, cover.")] = "adult,bank,cover",
    steps: Annotated[
        str | None, typer.Option(help="Comma-separated transform/variant; see docs/benchmarks.md.")
    ] = None,
    prefer: Annotated[str, typer.Option(help="What searches spare: bytes or rounds.")] = "bytes",
    output: FormatOption = Format.TEXT,
) -> None:
    """What a site sends for each preprocessor of FedPS (Table 5) on three data sets, against pooled scikit-learn."""
    from bench.preprocessors import DATASETS, STEPS, measure

    named = list(chosen(steps, tuple(STEPS), "--steps") if steps else STEPS)
    sets = list(chosen(datasets, DATASETS, "--datasets"))
    (spared,) = chosen(prefer, ("bytes", "rounds"), "--prefer")
    jobs = partial(measure, parties=parties, rows=rows, datasets=sets, steps=named, prefer=spared)
    _publish("preprocessors", output, jobs)


@app.command()
def encode(
    sites: Sites = 4,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; see docs/benchmarks.md.")] = None,
    categories: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="So many made-up categories per site in one column; 0: Adult.")
    ] = 0,
    fasttext_model: Annotated[Path | None, typer.Option(help="A fastText .bin file, for method fasttext.")] = None,
    repeats: Repeats = 1,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every encoding of categorical columns over real processes and mTLS, compared with the pooled dictionary."""
    from bench.encode import DEFAULT, STEPS, measure

    named = list(chosen(methods, tuple(STEPS), "--methods") if methods else DEFAULT)
    encodings = partial(measure, sites=sites, categories=categories, methods=named, model=fasttext_model)
    _publish("encode", output, partial(encodings, repeats=repeats))


@app.command()
def ckks(
    parties: Sites = 10,
    ring: Annotated[int, typer.Option(help="14 (profile standard), 15 (high-latency); 11 is a quick try.")] = 14,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every micro-operation of threshold CKKS, collectively, over real processes and mTLS."""
    from bench.ckks import RINGS, measure

    chosen(str(ring), [str(known) for known in RINGS], "--ring")
    _publish("ckks", output, partial(measure, parties=parties, ring=ring))


@app.command()
def growth(
    parties: Annotated[str, typer.Option(help="Numbers of sites, comma-separated.")] = "5,10,20,50",
    features: Columns = 30,
    methods: Annotated[str, typer.Option(help="As of bench ppf.")] = "zscore/ckks,minmax/search,minmax/tree",
    profile: Profile = "standard",
    plot: Annotated[Path | None, typer.Option(help="Where to draw the curve (.svg or .png).")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The same jobs with more and more sites, all as real processes on this machine."""
    from bench import growth as benchmark

    numbers, named = [int(number) for number in parties.split(",")], _ppf_methods(methods)
    growing = partial(benchmark.measure, parties=numbers, features=features, methods=named, profile=profile)
    rows = _publish("growth", output, growing)
    if plot is not None:
        benchmark.plot(rows, plot)


@app.command()
def replicas(
    database: Annotated[str, typer.Option(help="An empty PostgreSQL database to write to: postgresql://…")],
    parties: Sites = 4,
    repeats: Repeats = 10,
    output: FormatOption = Format.TEXT,
) -> None:
    """Small jobs on SQLite, on PostgreSQL and with two coordinators, of which one is killed."""
    from bench.replicas import measure

    _publish("replicas", output, partial(measure, database=database, parties=parties, repeats=repeats))


@app.command()
def training(
    parties: Sites = 10,
    parameters: Annotated[str, typer.Option(help="Numbers of parameters, comma-separated.")] = "157610,1310922",
    rounds: Annotated[int, typer.Option(min=2, max=100_000, help="Rounds of each training.")] = 20,
    vector_mb: Annotated[int, typer.Option(min=0, max=2000, help="A vector to one worker and back; 0: none.")] = 100,
    flower_python: Annotated[
        Path | None,
        typer.Option(help="A Python with flwr, for its SecAgg+ on the same vectors; else that is left out."),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Rounds of training by attached workers, over real processes and mTLS, without the training itself."""
    from bench.training import measure

    sizes = _sizes(parameters)
    trainings = partial(measure, parties=parties, parameters=sizes, rounds=rounds, vector_mb=vector_mb)
    _publish("training", output, partial(trainings, flower_python=flower_python))


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or any(not 1 <= size <= 1 << 28 for size in sizes):
        raise typer.BadParameter(f"{text!r} is not a list of numbers of parameters", param_hint="--parameters")
    return sizes
