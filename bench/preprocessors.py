"""Table 5 of the FedPS paper: what a site sends for each preprocessor, as a job over real processes and mTLS.

Adult, Bank and Covertype with as many rows at each site as asked for; categories are numbers, as in the paper's own
measurement. `bytes_up` is all that a site sends in the job, admission and agreement included; `rounds` is how many
messages that is. Every result is compared with scikit-learn's own on the pooled rows.
"""

import csv
import lzma
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn import preprocessing
from sklearn.impute import SimpleImputer

from bench.normalization_study.data import data_directory
from bench.usage import finished_job, sent_by_a_site, usage
from commonscale.cli.console import run
from commonscale.errors import ConfigError
from commonscale.estimators import storage
from commonscale.localnet import ENCRYPTION, LocalFederation
from commonscale.ordering import Floats
from commonscale.transforms import TRANSFORMS

DATASETS = ("adult", "bank", "cover")
_FILES = {
    "adult": "adult/adult.data.xz",
    "bank": "bank_marketing/bank-full.csv.xz",
    "cover": "covertype/covtype.csv.xz",
}
_SEED = 5


@dataclass(frozen=True)
class Measured:
    """One step: its options, scikit-learn's own, which fitted numbers to compare, and the paper's bytes by data set."""

    step: dict[str, Any]
    oracle: Any
    fitted: Callable[[Any], Iterable[Any]]
    paper: tuple[float, float, float] | None = None


def _edges(bins: Any) -> list[Floats]:
    return [edges[np.isfinite(edges)] for edges in bins.bin_edges_]


def _kbins(strategy: str) -> Any:
    return preprocessing.KBinsDiscretizer(strategy=strategy, subsample=None, quantile_method="linear", encode="ordinal")


# transform/variant; the paper's kB.
STEPS: dict[str, Measured] = {
    "zscore/masks": Measured(
        {"transform": "zscore"}, preprocessing.StandardScaler(), lambda s: (s.mean_, s.scale_), (0.57, 0.61, 1.21)
    ),
    "minmax/search": Measured(
        {"transform": "minmax", "method": "search"},
        preprocessing.MinMaxScaler(), lambda s: (s.data_min_, s.data_max_),
    ),
    "robust/masks": Measured(
        {"transform": "robust"}, preprocessing.RobustScaler(), lambda s: (s.center_, s.scale_)
    ),
    "kbins/uniform": Measured(
        {"transform": "kbins", "strategy": "uniform", "encode": "ordinal"},
        _kbins("uniform"), _edges, (0.48, 0.51, 1.11),
    ),
    "kbins/quantile": Measured(
        {"transform": "kbins", "encode": "ordinal"}, _kbins("quantile"), _edges, (18.88, 21.53, 55.05)
    ),
    "quantile/1000": Measured(
        {"transform": "quantile"}, preprocessing.QuantileTransformer(subsample=None), lambda q: (q.quantiles_,)
    ),
    "spline/quantile": Measured(
        {"transform": "spline", "knots": "quantile"},
        preprocessing.SplineTransformer(knots="quantile"), lambda s: [curve.t for curve in s.bsplines_],
    ),
    "impute/mean": Measured(
        {"transform": "impute"}, SimpleImputer(), lambda i: (i.statistics_,), (0.46, 0.48, 0.82)
    ),
    "impute/median": Measured(
        {"transform": "impute", "strategy": "median"},
        SimpleImputer(strategy="median"), lambda i: (i.statistics_,), (18.40, 21.02, 70.83),
    ),
    "power/yeo-johnson": Measured(
        {"transform": "power"},
        preprocessing.PowerTransformer(), lambda p: (p.lambdas_,), (73.46, 75.18, 360.18),
    ),
}  # fmt: skip


def measure(
    directory: Path, *, parties: int, rows: int, datasets: list[str], steps: list[str], prefer: str,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """One row of figures for each data set and step."""
    found = []
    for dataset in datasets:
        say(f"starting {parties + 1} daemons on {dataset}")
        columns, table = _table(dataset, parties * rows)
        data = _write(directory / dataset, columns, np.split(table, parties))
        policies = {site: {**ENCRYPTION, "transforms": list(TRANSFORMS)} for site in data}
        with LocalFederation(directory / dataset, data, policies=policies) as federation:
            run(partial(finished_job, federation, {"columns": columns[:1]}))
            for name in steps:
                say(f"measuring {name} on {dataset}")
                found.append({"dataset": dataset, **_measure_job(federation, dataset, name, columns, table, prefer)})
    return found


def _measure_job(
    federation: LocalFederation, dataset: str, name: str, columns: list[str], table: Floats, prefer: str
) -> dict[str, Any]:
    measured, (protocol, variant) = STEPS[name], name.split("/")
    step = {**measured.step, "columns": columns}
    if "prefer" in TRANSFORMS[protocol].model_fields:
        step["prefer"] = prefer
    before, start = usage(federation), time.perf_counter()
    job = run(lambda: finished_job(federation, step))
    wall = time.perf_counter() - start
    after = usage(federation)
    results = federation.directory / federation.sites[0] / "state" / "results" / job.id
    bytes_up = round((after["sent"] - before["sent"]) / len(federation.sites))
    paper = round(1000 * measured.paper[DATASETS.index(dataset)]) if measured.paper else None
    return {
        "protocol": protocol,
        "variant": variant,
        "columns": len(columns),
        "bytes_up": bytes_up,
        "rounds": len(sent_by_a_site(federation, job.id)),
        "wall_s": round(wall, 2),
        "max_rel_error": _error(measured, storage.load(results / f"0-{protocol}.skops"), table),
        "paper_bytes": paper,
        "times_paper": round(bytes_up / paper, 2) if paper else None,
    }


def _error(measured: Measured, found: Any, table: Floats) -> float:
    """The largest difference from scikit-learn's own, of a column's largest number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = measured.oracle.fit(table)
    pairs = zip(measured.fitted(found), measured.fitted(expected), strict=True)
    errors = [np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-300) for ours, theirs in pairs if theirs.size]
    return float(max(errors))


def _table(dataset: str, rows: int) -> tuple[list[str], Floats]:
    """So many rows by lot, without the label; a column of texts becomes one of numbers."""
    path = data_directory() / _FILES[dataset]
    if not path.is_file():
        raise ConfigError(f"{path} is missing.", "Set COMMONSCALE_DATA to the directory of the data sets.")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        lines = list(filter(None, csv.reader(file, delimiter=";" if dataset == "bank" else ",")))
    columns = [f"x{place}" for place in range(len(lines[0]) - 1)]
    body = lines if dataset == "adult" else lines[1:]
    if len(body) < rows:
        raise ConfigError(f"{dataset} has {len(body)} rows, not {rows}.", "Ask for fewer parties or rows.")
    chosen = np.random.default_rng(_SEED).choice(len(body), rows, replace=False)
    cells = [[cell.strip() for cell in body[at][:-1]] for at in chosen]
    return columns, np.column_stack([_numbers(column) for column in zip(*cells, strict=True)])


def _numbers(cells: tuple[str, ...]) -> Floats:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        return np.unique(cells, return_inverse=True)[1].astype(np.float64)


def _write(directory: Path, columns: list[str], parts: list[Floats]) -> dict[str, Path]:
    directory.mkdir()
    data = {}
    for number, part in enumerate(parts):
        data[f"site-{number}"] = directory / f"site-{number}.parquet"
        pq.write_table(pa.table(dict(zip(columns, part.T, strict=True))), data[f"site-{number}"])
    return data
