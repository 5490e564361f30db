"""The study's parts do what the paper describes: rows dealt out once, federated parameters those of the pooled rows."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.normalization_study import federated, plot, scaling, study
from bench.normalization_study.data import DATASETS, Part, Split, load_split
from bench.normalization_study.data import data_directory as find_data
from bench.normalization_study.partition import HIGH, IID, LOW, MIN_ROWS, Imbalance, partition
from bench.normalization_study.summary import against_local, against_pooled, wide, wins
from commonscale.errors import ConfigError

EVERY = (IID, *HIGH, *LOW)


def numbered(rows: int, classes: int, rng: np.random.Generator) -> Split:
    """Parts whose first feature is the number of the row, all different."""
    sizes = (rows, max(rows // 9, 1), max(rows // 4, 1))
    starts = np.cumsum([0, *sizes])
    labels = rng.integers(0, classes, sum(sizes)) if classes else rng.normal(size=sum(sizes))
    parts = [
        Part(np.column_stack([np.arange(a, b, dtype=float), rng.normal(size=b - a)]), labels[a:b])
        for a, b in pairwise(starts)
    ]
    return Split(*parts)


@given(
    imbalance=st.sampled_from([i for i in EVERY if i.kind != "feature"]),
    clients=st.integers(1, 30),
    rows=st.integers(30, 300),
    classes=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_every_row_has_one_client_and_every_client_has_rows(
    imbalance: Imbalance, clients: int, rows: int, classes: int, seed: int
) -> None:
    """Training, validation and test rows each go to exactly one client; nobody trains on nothing."""
    rng = np.random.default_rng(seed)
    split = numbered(rows, classes, rng)
    dealt = partition(split, imbalance, clients, rng)
    assert len(dealt) == clients
    assert min(len(client.train) for client in dealt) >= min(MIN_ROWS, rows // clients)
    for whole, parts in zip(split.parts(), zip(*(client.parts() for client in dealt), strict=True), strict=True):
        merged = study.merged(parts)
        order = np.argsort(merged.x[:, 0])
        assert np.array_equal(merged.x[order], whole.x)
        assert np.array_equal(merged.y[order], whole.y)


def test_iid_and_feature_imbalance_deal_equally() -> None:
    """Sizes differ by one row at most."""
    for imbalance in (IID, HIGH[2]):
        dealt = partition(numbered(409, 2, np.random.default_rng(0)), imbalance, 30, np.random.default_rng(1))
        sizes = [len(client.train) for client in dealt]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("kind", ["quantity", "label"])
def test_high_is_more_imbalanced_than_low(kind: str) -> None:
    """β = 0.5 spreads sizes, or the clients' shares of a class, more than β = 5."""

    def spread(imbalance: Imbalance) -> float:
        found = []
        for seed in range(5):
            rng = np.random.default_rng(seed)
            dealt = partition(numbered(2000, 2, rng), imbalance, 10, rng)
            found.append(np.std([len(c.train) if kind == "quantity" else c.train.y.mean() for c in dealt]))
        return float(np.mean(found))

    high, low = (next(i for i in level if i.kind == kind) for level in (HIGH, LOW))
    assert spread(high) > 1.5 * spread(low)


def test_noise_grows_from_client_to_client() -> None:
    """Client i of P adds variance σ·i/P in units of the column's pooled variance, to its test rows too."""
    rng = np.random.default_rng(0)
    part = Part(rng.normal(scale=[0.001, 1000.0], size=(20_000, 2)), np.zeros(20_000, dtype=np.int64))
    split = Split(part, part, part)
    for i, client in enumerate(partition(split, HIGH[2], 4, rng), start=1):
        for some in client.parts():
            np.testing.assert_allclose(some.x.var(axis=0) / part.x.var(axis=0), 1.0 + 0.7 * i / 4, rtol=0.1)


tables = st.integers(3, 40).flatmap(
    lambda rows: arrays(
        np.float64,
        (rows, 2),
        # Halves and few of them: ties are the rule.
        elements=st.one_of(st.integers(-6, 6).map(lambda k: k / 2), st.floats(-1e3, 1e3, width=32)),
    )
)


def dealt_at_random(table: npt.NDArray[np.float64], clients: int, seed: int) -> list[npt.NDArray[np.float64]]:
    owners = np.random.default_rng(seed).permutation(np.arange(len(table)) % min(clients, len(table)))
    return [table[owners == owner] for owner in range(owners.max() + 1)]


@pytest.mark.parametrize(("normalization", "tolerance"), [("z-score", 1e-9), ("min-max", 1e-12), ("robust", 1e-12)])
@given(table=tables, clients=st.integers(1, 8), seed=st.integers(0, 9))
def test_federated_parameters_are_those_of_the_pooled_rows(
    normalization: str, tolerance: float, table: npt.NDArray[np.float64], clients: int, seed: int
) -> None:
    """Sums, extremes and counts of the clients give what scikit-learn finds in the stacked rows, with ties too."""
    ours = scaling.FEDERATED[normalization](dealt_at_random(table, clients, seed))
    theirs = scaling.POOLED[normalization]().fit(table)
    np.testing.assert_allclose(ours(table), theirs.transform(table), rtol=tolerance, atol=tolerance)


@given(table=tables, k=st.integers(1, 40), clients=st.integers(1, 8), seed=st.integers(0, 9))
def test_order_statistic_is_the_value_itself(table: npt.NDArray[np.float64], k: int, clients: int, seed: int) -> None:
    """The k-th smallest, to the bit, from counts alone."""
    assume(k <= len(table))
    found = federated.order_statistic(dealt_at_random(table, clients, seed), k)
    assert np.array_equal(found, np.sort(table, axis=0)[k - 1])


@pytest.mark.parametrize("scale", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("clients", [1, 7])
def test_federated_power_is_that_of_the_pooled_rows(scale: float, clients: int) -> None:
    """Yeo-Johnson λ and values, on skewed, signed, tied and constant columns; to scikit-learn's own accuracy."""
    rng = np.random.default_rng(4)
    skewed, signed = rng.lognormal(size=300), rng.normal(size=300) ** 3
    table = np.column_stack([skewed, -skewed, signed, np.round(signed), np.full(300, 2.5)]) * scale
    ours = federated.power(dealt_at_random(table, clients, 0))
    theirs = scaling.POOLED["yeo-johnson"]().fit(table)
    np.testing.assert_allclose(ours.lambdas, theirs.lambdas_, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(ours(table), theirs.transform(table), rtol=1e-5, atol=1e-5)


def test_derivative_of_the_power_by_lambda_is_right() -> None:
    """Against central differences, through λ = 0 and λ = 2."""
    x = np.array([[-30.0], [-1.5], [-1e-3], [0.0], [1e-3], [2.0], [40.0]])
    for value in (-1.3, 0.0, 1e-5, 0.7, 2.0, 2.4):
        at = [federated.yeo_johnson(x, np.array([value + step]))[0] for step in (-1e-5, 1e-5)]
        found = federated.yeo_johnson(x, np.array([value]))[1]
        np.testing.assert_allclose(found, (at[1] - at[0]) / 2e-5, rtol=1e-5, atol=1e-9)


def test_local_parameters_are_each_clients_own() -> None:
    """Every client's training rows have mean 0 after a local z-score, only the pooled ones after a federated."""
    rng = np.random.default_rng(0)
    clients = [Split(*[Part(rng.normal(loc=i, size=(30, 2)), np.zeros(30))] * 3) for i in range(3)]
    for client in scaling.scale(clients, "z-score", "local"):
        np.testing.assert_allclose(client.train.x.mean(axis=0), 0.0, atol=1e-12)
    joint = scaling.scale(clients, "z-score", "federated")
    assert abs(joint[0].train.x.mean()) > 0.5
    np.testing.assert_allclose(study.merged([c.train for c in joint]).x.mean(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "rows", "features"), [("breast-cancer", 569, 30), ("hcv", 615, 12), ("parkinsons", 5875, 16)]
)
def test_data_sets_are_those_of_the_paper(data_directory: Path, name: str, rows: int, features: int) -> None:
    """Sizes of Table VIII, split 80/20 and 90/10, nothing missing."""
    split = load_split(DATASETS[name], data_directory, seed=0)
    assert sum(len(part) for part in split.parts()) == rows
    assert len(split.test) == pytest.approx(0.2 * rows, abs=1)
    assert len(split.validation) == pytest.approx(0.08 * rows, abs=1)
    assert {part.x.shape[1] for part in split.parts()} == {features} == {DATASETS[name].architecture.inputs}
    assert all(np.isfinite(part.x).all() for part in split.parts())


def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where it looked and what to set."""
    monkeypatch.setenv("COMMONSCALE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"nowhere.*COMMONSCALE_DATA"):
        find_data()
    with pytest.raises(ConfigError, match=r"hcvdat0.*COMMONSCALE_DATA"):
        load_split(DATASETS["hcv"], tmp_path, seed=0)


@pytest.mark.long
def test_tiny_study(tmp_path: Path) -> None:
    """Every arm has a score; federated is pooled, local falls behind where labels are uneven; a seed repeats it all."""
    plan = replace(study.SMALL, datasets=("breast-cancer",), imbalances=(HIGH[1],), most_rounds=10)
    said: list[str] = []
    rows = study.run(plan, tmp_path, seed=1, say=said.append)  # breast cancer needs no files
    assert [(row["normalization"], row["where"]) for row in rows] == list(scaling.ARMS)
    assert all(0.0 <= row["score"] <= 1.0 and row["seeds"] == study.SEEDS for row in rows)
    assert len(said) == study.SEEDS
    line = next(line for line in wide(rows) if line["normalization"] == "z-score")
    assert line["federated"] == line["pooled"] > line["local"] + 0.1
    for line in against_pooled(rows):
        assert line["largest_value_difference"] < 1e-6
        assert line["largest_score_difference"] < 0.02
    cell, short = study.cells(plan, 1)[0], replace(plan, most_rounds=2)
    assert study.run_cell(short, tmp_path, cell) == study.run_cell(short, tmp_path, cell)
    for name in ("study.svg", "study.png"):
        plot.check(tmp_path / name)
        plot.draw(rows, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_a_picture_that_cannot_be_written_is_refused_early(tmp_path: Path) -> None:
    """Before the runs, not after."""
    for path in (tmp_path / "study.txt", tmp_path / "nowhere" / "study.svg"):
        with pytest.raises(ConfigError):
            plot.check(path)


def made_up(dataset: str, metric: str, normalization: str, scores: dict[str, float]) -> list[dict[str, Any]]:
    setting = {
        "dataset": dataset,
        "clients": 10,
        "imbalance": "label",
        "level": "high",
        "metric": metric,
        "score_sd": 0.0,
    }
    rows = [
        {**setting, "normalization": normalization, "where": where, "score": score, "off_pooled": 0.0}
        for where, score in scores.items()
    ]
    return [{**setting, "normalization": "none", "where": "none", "score": 0.5}, *rows]


def test_wins_ties_and_losses_follow_the_papers_rule() -> None:
    """Half a percent decides; an R² that is not positive is left out, and counts as zero in a mean."""
    rows = [
        *made_up("a", "F1", "z-score", {"local": 0.80, "federated": 0.90, "pooled": 0.90}),
        *made_up("a", "F1", "min-max", {"local": 0.80, "federated": 0.804, "pooled": 0.80}),
        *made_up("a", "F1", "robust", {"local": 0.90, "federated": 0.80, "pooled": 0.80}),
        *made_up("b", "R2", "z-score", {"local": -50.0, "federated": 0.20, "pooled": 0.20}),
    ]
    first, second = wins(rows)
    assert (first["federated"], first["local"], first["ties"], first["left_out"]) == (1, 1, 1, 0)
    assert first["mean_federated_improvement"] == pytest.approx(0.1)
    assert (second["federated"], second["left_out"]) == (0, 1)
    assert against_local(rows)[1]["federated_minus_local"] == pytest.approx(0.2)
    assert against_pooled(rows)[1]["largest_score_difference"] == pytest.approx(0.004)
