"""The encoding study's parts do what the paper describes: sites that differ, encodings that know what they may."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import typer
from commonscale_worker.networks.model import Architecture, Task, init
from commonscale_worker.networks.training import Adam, Training
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from typer.testing import CliRunner

from bench.encoding_study import encoding, paper, plot, study
from bench.encoding_study.data import DATASETS, Table
from bench.encoding_study.encoding import METHODS, Embedding, Federation, Site, encode
from bench.encoding_study.partition import SITES, divergence, partition
from bench.encoding_study.summary import TABLE_3_METHODS, dimensions, summary, table_1, table_5
from commonscale.cli.bench_studies import encoding_study
from commonscale.errors import ConfigError

GERMAN = DATASETS["german"]


def made_up(rows: int, seed: int) -> Table:
    """Three categorical columns and two numeric; the label depends on all of them."""
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.integers(0, width, rows) for width in (5, 3, 9)])
    numbers = rng.normal(size=(rows, 2)) * [1.0, 50.0] + [0.0, 100.0]
    score = codes[:, 0] - 2.0 * (codes[:, 1] == 1) + numbers[:, 0] + rng.normal(size=rows)
    categories = np.array([[f"{'abc'[j]}{code}" for j, code in enumerate(row)] for row in codes], dtype=object)
    return Table(categories, numbers, (score > np.median(score)).astype(np.int64))


def federation(rows: int = 400, seed: int = 0) -> Federation:
    made = study.federate(GERMAN, made_up(rows, seed), study.Plan(), seed)
    return replace(made, columns=("first", "second", "third"), rng=np.random.default_rng(seed))


@given(rows=st.integers(80, 300), seed=st.integers(0, 50))
def test_every_row_has_one_site(rows: int, seed: int) -> None:
    """Nothing is lost, nothing is twice, everybody has rows; the largest site is the first."""
    dealt = partition(made_up(rows, seed))
    assert len(dealt) == SITES
    assert np.array_equal(np.sort(np.concatenate(dealt)), np.arange(rows))
    sizes = [len(site) for site in dealt]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 0


def test_sites_differ_in_values_labels_and_sizes(data_directory: Path) -> None:
    """On German Credit: far more than after a random deal of the same sizes, and some values are at some sites only."""
    table = GERMAN.load(data_directory)
    dealt = partition(table)
    shuffled = np.split(np.random.default_rng(0).permutation(len(table)), np.cumsum([len(s) for s in dealt])[:-1])

    def apart(sites: list[npt.NDArray[np.intp]]) -> float:
        pairs = [np.concatenate(pair) for pair in itertools.combinations(sites, 2)]
        sides = [np.isin(rows, first) for rows, (first, _) in zip(pairs, itertools.combinations(sites, 2), strict=True)]
        return float(np.mean([divergence(table.take(rows), side) for rows, side in zip(pairs, sides, strict=True)]))

    assert apart(dealt) > 2.0 * apart(shuffled)
    rates = [table.labels[site].mean() for site in dealt]
    assert max(rates) - min(rates) > 0.2
    assert len(dealt[0]) > 2 * len(dealt[-1])
    held = [{(j, v) for j in range(13) for v in table.categories[site, j]} for site in dealt]
    assert len(set.union(*held)) - len(set.intersection(*held)) >= 5


@pytest.mark.parametrize(
    ("name", "rows", "categorical", "numeric", "one_hot"),
    [("adult", 45222, 8, 5, 103), ("german", 1000, 13, 7, 61), ("law-school", 4586, 5, 2, 19)],
)
def test_data_sets_have_the_columns_of_the_paper(
    data_directory: Path, name: str, rows: int, categorical: int, numeric: int, one_hot: int
) -> None:
    """As many categorical and numeric columns as in its Table 2; nothing is missing."""
    table = DATASETS[name].load(data_directory)
    assert table.categories.shape == (rows, categorical)
    assert table.numbers.shape == (rows, numeric)
    assert np.isfinite(table.numbers).all()
    assert set(np.unique(table.labels)) == {0, 1}
    assert all(type(value) is str for value in table.categories.ravel())
    assert sum(len(set(column)) for column in table.categories.T) + numeric == one_hot


def test_missing_data_are_named(tmp_path: Path) -> None:
    """The error says what is missing and what to set."""
    with pytest.raises(ConfigError, match=r"german\.data.*COMMONSCALE_DATA"):
        GERMAN.load(tmp_path)


def test_psi_is_the_server_encoding_under_other_names() -> None:
    """With the rows of the first weight matrix renamed alike, training is the same to the last digit.

    In extended precision numpy multiplies matrices itself, term after term; a BLAS may take terms in another order.
    """
    made = federation()
    pooled, renamed = encode(METHODS["server"], made), encode(METHODS["psi"], made)
    widths = [len(values) for values in made.union()]
    rng = np.random.default_rng(0)
    again = encoding.psi(replace(made, rng=rng))  # the same names: the generator of `federation` has seed 0
    order = np.arange(pooled.inputs)  # of the server's columns, among the renamed
    for start, values, *dictionaries in zip(np.cumsum([0, *widths[:-1]]), made.union(), *again, strict=True):
        names = {v: i for d in dictionaries for v, i in zip(d.values, d.identifiers, strict=True)}
        order[start : start + len(values)] = start + np.array([names[value] for value in values])
    assert not np.array_equal(order, np.arange(pooled.inputs))
    for one, other in zip([*pooled.train, *pooled.test], [*renamed.train, *renamed.test], strict=True):
        assert np.array_equal(one.x, other.x[:, order])

    dataset, training = replace(GERMAN, rounds=5), Training(16, Adam(1e-2))
    first = init(Architecture(pooled.inputs, GERMAN.hidden, 1, Task.BINARY), rng, np.longdouble)
    moved = [np.empty_like(first[0]), *first[1:]]
    moved[0][order] = first[0]
    results = []
    for encoded, weights in ((pooled, first), (renamed, moved)):
        exact = [replace(part, x=part.x.astype(np.longdouble)) for part in encoded.train]
        results.append(study.train(replace(encoded, train=exact), weights, dataset, training, np.random.default_rng(1)))
    (ours, ours_matrices), (theirs, theirs_matrices) = results
    assert np.array_equal(ours[0], theirs[0][order])
    assert all(np.array_equal(a, b) for a, b in zip(ours[1:], theirs[1:], strict=True))
    assert np.array_equal(ours_matrices, theirs_matrices)
    assert not np.array_equal(ours[0], first[0])


def test_columns_of_zeros_change_nothing() -> None:
    """A rolling hash trains the same network whether its empty columns are there or not."""
    made = federation()
    compact = encode(METHODS["rolling-hash"], made)
    assert compact.inputs == 5002 > len(compact.used)

    def widened(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        whole = np.zeros((len(x), compact.inputs), np.float32)
        whole[:, compact.used] = x
        return whole

    whole = replace(
        compact,
        used=np.arange(compact.inputs),
        train=[replace(part, x=widened(part.x)) for part in compact.train],
        test=[replace(part, x=widened(part.x)) for part in compact.test],
    )
    dataset, training = replace(GERMAN, rounds=2), Training(16, Adam(1e-3))
    weights = init(Architecture(compact.inputs, GERMAN.hidden, 1, Task.BINARY), np.random.default_rng(0), np.float64)
    few, _ = study.train(compact, weights, dataset, training, np.random.default_rng(1))
    many, _ = study.train(whole, weights, dataset, training, np.random.default_rng(1))
    np.testing.assert_allclose(few[0], many[0][compact.used], rtol=0, atol=1e-7)
    unused = np.setdiff1d(whole.used, compact.used)
    np.testing.assert_allclose(many[0][unused], weights[0][unused], rtol=0, atol=1e-12)


def test_local_identifiers_collide_and_those_of_the_ring_do_not() -> None:
    """Local: one identifier, two values. Ring: one value, several identifiers, none of them twice."""
    made = federation()
    local, ring = encoding.local(made), encoding.ring(made)
    collisions = 0
    for j, values in enumerate(made.union()):
        meanings: dict[int, set[str | None]] = {}
        for site in local:
            for value, identifier in zip(site[j].values, site[j].identifiers, strict=True):
                meanings.setdefault(identifier, set()).add(value)
        collisions += sum(len(meaning) > 1 for meaning in meanings.values())
        assert local[0][j].size == max(len(site[j].values) for site in local) <= len(values)
        identifiers = [identifier for site in ring for identifier in site[j].identifiers]
        assert identifiers == list(range(ring[0][j].size))
        assert len(identifiers) > len(values)
    assert collisions > 0


def test_target_encodings() -> None:
    """Formula 7 as printed at one site; the federation's means are those of the pooled rows."""
    table = Table(
        np.array([["a"], ["a"], ["b"], ["b"], ["b"]], dtype=object), np.zeros((5, 1)), np.array([1, 0, 1, 1, 0])
    )
    first, second = table.take(np.array([0, 1, 2])), table.take(np.array([3, 4]))
    made = Federation(("c",), [Site(first, first), Site(second, second)])
    cells = np.array([["a"], ["b"], ["unknown"]], dtype=object)
    alpha = encoding.SMOOTHING
    printed = encoding.target_local(made)[0](cells).ravel()
    mean = 2 / 3  # at the first site: a is in one of two positive rows, b in the other
    expected = [(2 * 1 / 2 + alpha * mean) / (2 + alpha), (1 * 1 / 2 + alpha * mean) / (1 + alpha), mean]
    np.testing.assert_allclose(printed, expected)
    for transform in encoding.target_federated(made):
        pooled = [(1 + alpha * 0.6) / (2 + alpha), (2 + alpha * 0.6) / (3 + alpha), 0.6]
        np.testing.assert_allclose(transform(cells).ravel(), pooled)


def test_bytes_norm_is_a_zscore_of_all_training_rows() -> None:
    """Mean 0 and variance 1 over the federation, in each column."""
    encoded = encode(METHODS["bytes-norm"], federation())
    x = np.vstack([part.x for part in encoded.train])[:, :3]
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), 1.0, atol=1e-5)


@given(st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=20), min_size=1, max_size=5))
def test_f1_of_summed_confusion_matrices_is_that_of_all_rows(sites: list[list[tuple[int, int]]]) -> None:
    """Against scikit-learn, with sites that have no rows or only one class."""
    pairs = [np.array(site, dtype=np.int64).reshape(-1, 2) for site in sites]
    matrix = sum((study.confusion(pair[:, 0], pair[:, 1]) for pair in pairs), np.zeros((2, 2), dtype=np.int64))
    truth, predicted = np.vstack(pairs).T
    if len(truth):
        assert study.f1(matrix) == pytest.approx(f1_score(truth, predicted, zero_division=0.0))
        both = f1_score(truth, predicted, labels=[0, 1], average="macro", zero_division=0.0)
        assert study.macro(matrix) == pytest.approx(both)
    else:
        assert study.f1(matrix) == 0.0


class Lengths:
    """Stands for a model of word vectors."""

    dimension = 3

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        return np.array([len(text), ord(text[0]), 1.0])


def test_tiny_study(data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method has a score beside the paper's; a seed repeats it; without a model only fastText has none."""
    monkeypatch.setitem(DATASETS, "german", replace(GERMAN, rounds=3))
    plan = study.Plan(datasets=("german",), most_rows=300, seeds=2)
    model: Embedding = Lengths()
    said: list[str] = []
    rows = study.run(plan, data_directory, embedding=model, say=said.append)
    assert [row["method"] for row in rows] == list(METHODS)
    assert len(said) == 2 * len(METHODS)
    assert all(0.0 <= row["f1"] <= 1.0 and row["seeds"] == 2 for row in rows)
    widths = dimensions(rows)[0]
    assert widths["fasttext"] == 13 * 3 + 7
    assert widths["rolling-hash"] == 5007
    assert widths["server"] == widths["psi"] >= widths["local"]
    assert widths["ring"] > widths["server"]
    assert rows == study.run(plan, data_directory, embedding=model)
    bare = study.run(replace(plan, methods=("server", "fasttext")), data_directory)
    assert (bare[0]["f1"], bare[1]["f1"], bare[1]["paper_f1"]) == (rows[0]["f1"], None, 0.75)
    for name in ("study.svg", "study.png"):
        plot.draw(bare, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(ConfigError, match="ends in"):
        plot.check(tmp_path / "study.pdf")


def test_tables_stand_beside_the_papers() -> None:
    """Its figures in its columns; the loss is the mean difference from the server's F1."""
    rows = [
        {"dataset": name, "method": method, "inputs": 1, "f1": f1, "f1_sd": 0.0, "macro_f1": f1}
        | {"paper_f1": paper.f1(name, method)}
        for name in DATASETS
        for method, f1 in (("server", 0.8), ("ring", 0.7), ("local", 0.5))
    ]
    assert table_1(rows)[3] == {"dataset": "adult", "what": "paper_f1", "local": 0.60, "server": 0.69}
    lines = {line["method"]: line for line in table_5(rows)}
    assert lines["ring"]["loss"] == pytest.approx(0.1)
    assert lines["rolling-hash"]["loss"] is None
    assert [lines[m]["paper_messages_of_4"] for m in ("ring", "psi (apsi)", "psi (ot-mp-psi)")] == [7, 55, 31]
    assert set(TABLE_3_METHODS) | set(paper.TABLE_1_COLUMNS) == set(METHODS)
    assert list(summary(rows)) == ["table 1", "table 3", "table 5", "input dimensions"]


def test_command(data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON object with rows and tables; unknown names and broken models are told before a long run."""
    monkeypatch.setitem(DATASETS, "german", replace(GERMAN, rounds=1))
    app = typer.Typer()
    app.command()(encoding_study)
    arguments = ["--small", "--datasets", "german", "--methods", "server,psi", "--format", "json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert [row["method"] for row in found["rows"]] == ["server", "psi"]
    assert [site["rows"] for site in found["summary"]["sites"]] == [410, 282, 154, 154]
    assert CliRunner().invoke(app, ["--datasets", "nowhere"]).exit_code == 2
    (tmp_path / "model.bin").write_bytes(b"no model")
    for name in ("model.bin", "missing.bin"):
        broken = CliRunner().invoke(app, ["--small", "--fasttext-model", str(tmp_path / name)])
        assert isinstance(broken.exception, ConfigError)
