"""The study's parts do what the paper describes: rows dealt out once, attacks as named, Algorithm 2 exactly."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.batchnorm_study import attacks, plot, study
from bench.batchnorm_study.aggregation import Aggregation
from bench.batchnorm_study.data import CLASSES, check, partition
from bench.batchnorm_study.plan import (
    A_CLASS_EACH,
    ATTACKED,
    ATTACKS,
    CENTRALIZED,
    DEFENCES,
    FBN,
    FIXBN,
    FULL,
    METHODS,
    NAIVE,
    NO_ATTACK,
    PAPER,
    SITES,
    SMALL,
    SMALL_MODEL,
    SPLITS,
    UNDEFENDED,
    Defence,
    Plan,
    Run,
    Split,
)
from bench.batchnorm_study.summary import by_attack, by_gamma, by_method, summary
from commonscale.errors import ConfigError
from commonscale.statistics.training.batchnorm import Layer, Statistics, updated
from commonscale.statistics.training.robust_rules import Robustly
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
LAYERS = [Layer("a", 3, 0.1), Layer("b", 2, 0.1)]
CHANNELS = 5


def torch_python() -> Path:
    """The Python of an environment with PyTorch and the worker's package; `make torch` makes one."""
    found = Path(os.environ.get("COMMONSCALE_TORCH_PYTHON", str(ROOT / ".venv" / "torch" / "bin" / "python")))
    if not found.exists():
        if os.environ.get("COMMONSCALE_REQUIRE_TORCH"):
            pytest.fail("an environment with PyTorch is required here and missing: make torch")
        pytest.skip("no environment with PyTorch: make torch")
    return found


def labels(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, CLASSES, rows)


@given(split=st.sampled_from(SPLITS), rows=st.integers(100, 400), seed=st.integers(0, 99))
def test_every_row_has_at_most_one_site_and_sites_are_of_one_size(split: Split, rows: int, seed: int) -> None:
    """Sizes differ by one row at most, and no row is dealt out twice."""
    owned = partition(labels(rows, seed), split, SITES, seed)
    sizes = [len(mine) for mine in owned]
    assert len(owned) == SITES
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) > rows - SITES
    assert len(np.unique(np.concatenate(owned))) == sum(sizes)


def test_gamma_goes_from_all_classes_to_one() -> None:
    """At γ = 1 every site has every class; at 0 none has more than two, where a chunk passes from one to the next."""
    found = labels(2000)
    held = {
        split.level: [len(np.unique(found[mine])) for mine in partition(found, split, SITES, 0)]
        for split in SPLITS
        if split.kind == "gamma"
    }
    assert min(held[1.0]) == CLASSES
    assert max(held[0.0]) <= 2
    assert max(held[0.0]) < min(held[0.3])


def test_a_smaller_alpha_is_more_uneven() -> None:
    """The largest class of a site has more of its rows at α = 0.1 than at 1."""
    found = labels(2000)

    def largest(alpha: float) -> float:
        dealt = partition(found, Split("alpha", alpha), SITES, 0)
        return float(np.mean([np.bincount(found[mine]).max() / len(mine) for mine in dealt]))

    assert largest(0.1) > largest(1.0) + 0.2


def test_attacks_are_those_that_are_named() -> None:
    """SF sends minus the honest mean, FOE ten times that, ALIE what lies 1.5 standard deviations away."""
    means, variances = np.array([[1.0, 2.0], [3.0, 2.0]]), np.array([[4.0, 1.0], [8.0, 1.0]])
    sent = {name: attacks.BY_NAME[name].sent(means, variances) for name in ATTACKS}
    assert [part.tolist() for part in sent["sf"]] == [[-2.0, -2.0], [6.0, 1.0]]
    assert [part.tolist() for part in sent["foe"]] == [[-20.0, -20.0], [6.0, 1.0]]
    assert [part.tolist() for part in sent["alie"]] == [[3.5, 2.0], [3.0, 1.0]]


def test_honest_sites_send_what_they_have() -> None:
    """Only the rows of dishonest sites are replaced, and all of them by the same."""
    rng = np.random.default_rng(0)
    means, variances = rng.normal(size=(SITES, 4)), rng.random((SITES, 4))
    dishonest = np.array([1, 4, 7])
    lying = attacks.attacked(attacks.SignFlipping(), means, variances, dishonest)
    honest = np.setdiff1d(np.arange(SITES), dishonest)
    assert np.array_equal(lying[0][honest], means[honest])
    assert np.array_equal(lying[1][honest], variances[honest])
    assert np.array_equal(lying[0][dishonest], np.repeat(-means[honest].mean(axis=0)[None], 3, axis=0))


@pytest.mark.parametrize("defence", DEFENCES, ids=str)
@pytest.mark.parametrize("attack", ["sf", "foe"])
def test_every_defence_keeps_the_mean_that_an_average_loses(attack: str, defence: Defence) -> None:
    """Three of ten sites that send the opposite move the average, and no robust rule."""
    rng = np.random.default_rng(0)
    means = 5.0 + 0.1 * rng.normal(size=(SITES, 6))
    lying, _ = attacks.attacked(attacks.BY_NAME[attack], means, np.ones((SITES, 6)), np.array([0, 3, 9]))
    assert np.abs(Robustly(defence.rule, 3, defence.nnm)(lying) - 5.0).max() < 0.3
    assert np.abs(lying.mean(axis=0) - 5.0).min() > 2.0


def results(seed: int, before: Statistics) -> list[dict[str, np.ndarray]]:
    """What workers find of batches of one size, at sites far from each other."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(SITES):
        shifted = rng.normal(rng.normal(0, 3, CHANNELS), 1 + rng.random(CHANNELS), (32, CHANNELS)) - before.mean
        found.append({"sum": shifted.sum(0), "square": (shifted**2).sum(0), "count": np.full(len(LAYERS), 32.0)})
    return found


def test_algorithm_2_from_each_site_is_algorithm_2_from_sums() -> None:
    """With the mean as the rule and nobody lying, what robust rules start from gives the statistics of a job."""
    before = Statistics(np.linspace(-2, 2, CHANNELS), np.linspace(0.5, 3, CHANNELS))
    found = results(1, before)
    sums = np.sum([np.concatenate([one["sum"], one["square"], one["count"]]) for one in found], axis=0)
    expected = updated(LAYERS, before, sums, 1)
    aggregation = Aggregation(Run(SMALL_MODEL, A_CLASS_EACH, FBN, 0), LAYERS)
    for reached in (aggregation(before, found), aggregation.of_batches(before, found)):
        assert np.allclose(reached.mean, expected.mean, rtol=0, atol=1e-12)
        assert np.allclose(reached.variance, expected.variance, rtol=1e-12, atol=0)


def test_naive_averages_what_sites_have() -> None:
    """Running statistics of the sites become their means."""
    rng = np.random.default_rng(0)
    found = [{"mean": rng.normal(size=CHANNELS), "variance": rng.random(CHANNELS)} for _ in range(SITES)]
    aggregation = Aggregation(Run(SMALL_MODEL, A_CLASS_EACH, NAIVE, 0), LAYERS)
    reached = aggregation(Statistics.initial(CHANNELS), found)
    assert np.allclose(reached.mean, np.mean([one["mean"] for one in found], axis=0))
    assert np.allclose(reached.variance, np.mean([one["variance"] for one in found], axis=0))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("method", ATTACKED)
def test_no_attack_makes_a_variance_negative(method: str, attack: str) -> None:
    """Whatever is sent, the next layer can take a square root."""
    before = Statistics.initial(CHANNELS)
    for defence in (UNDEFENDED, *DEFENCES):
        found = results(2, before)
        for one in found:
            mean = one["sum"] / 32
            one |= {"mean": 0.1 * mean, "variance": 0.9 + 0.1 * (one["square"] / 32 - mean**2)}
        run = Run(SMALL_MODEL, A_CLASS_EACH, method, 0, attack, defence)
        reached = Aggregation(run, LAYERS)(before, found)
        assert np.isfinite(reached.mean).all()
        assert (reached.variance >= 0).all()


def test_the_paper_training_is_that_of_table_2() -> None:
    """3,000 steps, batches of 50, momentum 0.99, and a rate that falls to a half and a third after each thousand."""
    assert (PAPER.rounds, PAPER.batch_rows, PAPER.momentum) == (3000, 50, 0.99)
    # Its 0.1, times 1 - 0.99: torch adds gradients to the momentum where the paper averages them.
    assert {first: round(rate, 6) for first, rate in PAPER.rates.items()} == {1: 1e-3, 1001: 5e-4, 2001: 3.33e-4}


def test_the_full_plan_has_every_cell_of_the_figures() -> None:
    """Six splits, four methods, and on two of them three attacks with and without four defences; three seeds."""
    runs = FULL.runs(0)
    assert len(runs) == len(set(runs)) == 3 * (6 * 4 + 6 * 2 * 3 * 5)
    assert {run.seed for run in runs} == {0, 1, 2}
    assert set(SMALL.with_setup(SMALL_MODEL, 0).runs(0)) < set(runs)


def test_a_run_comes_back_from_json() -> None:
    """The process with torch gets the run that was described."""
    for run in (*FULL.runs(0)[:3], FULL.runs(0)[-1]):
        assert Run.from_plain(json.loads(json.dumps(run.plain()))) == run


def test_figure_2c() -> None:
    """FBN stays near the centralized run at every γ with torch's own running statistics; the others move away."""
    only_example = Plan(SMALL_MODEL, splits=(), attacked_splits=(), seeds=1)
    examples, rows = study.run(only_example, Path(), torch_python())
    assert rows == []
    errors = {(row["gamma"], row["method"]): row["error"] for row in examples}
    assert len(errors) == 12
    for row in (row for row in examples if row["method"] == FBN):
        assert row["error"] < 0.3
        # One batch's own mean and variance are not quite the running ones.
        assert row["last_error"] < 0.2
        assert max(row["mean_off"], row["variance_off"]) < 1e-9
    for method in (FIXBN, NAIVE):
        levels = [errors[gamma, method] for gamma in (1.0, 0.3, 0.01, 0.0)]
        assert levels == sorted(levels)
        assert levels[-1] > 5 * errors[0.0, FBN]
    # Its last rounds divide by a variance 50 times too small: points stay at a distance of 10 instead of 1.4.
    assert next(row for row in examples if (row["gamma"], row["method"]) == (0.0, FIXBN))["last_error"] > 8


SCRIPT = """
import json, sys
import numpy as np
from bench.batchnorm_study.data import Images
from bench.batchnorm_study.federated import train
from bench.batchnorm_study.networks import SHAPES, layers
from bench.batchnorm_study.plan import Run
labels = np.arange(400) % 10
# Classes that colours tell apart.
colours = 25 * np.stack([labels, 3 * labels % 10, 7 * labels % 10], 1)[:, :, None, None]
pixels = np.random.default_rng(0).integers(0, 25, (400, 3, 16, 16)) + colours
images = Images(pixels.astype(np.uint8), labels.astype(np.int64), 300)
found = [train(Run.from_plain(json.loads(line)), images) for line in sys.stdin]
sizes = {name: sum(p.numel() for part in layers(shape) for p in part.parameters()) for name, shape in SHAPES.items()}
print(json.dumps([found, sizes]))
"""


def test_sites_learn_through_the_worker_unless_others_lie() -> None:
    """Centralized and federated runs learn ten colours; FOE undoes that, and the median with NNM undoes FOE."""
    python = torch_python()
    setup = replace(SMALL_MODEL, rounds=30, batch_rows=8, learning_rate=0.05, test_images=100, every=20)
    honest = [Run(setup, SPLITS[0], method, 0) for method in (CENTRALIZED, FBN)]
    runs = [*honest, *(replace(honest[1], attack="foe", defence=defence) for defence in (UNDEFENDED, DEFENCES[0]))]
    done = subprocess.run(
        [python, "-c", SCRIPT],
        input="".join(json.dumps(run.plain()) + "\n" for run in runs),
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'worker'}", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    found, sizes = json.loads(done.stdout)
    assert [[number for number, _ in one["curve"]] for one in found] == 4 * [[20, 30]]
    centralized, federated, undefended, defended = (one["accuracy"] for one in found)
    assert min(centralized, federated, defended) > 0.4
    assert undefended < 0.2
    # Table 1.
    assert sizes["paper"] == 1_310_922


def rows_of_a_study() -> list[dict[str, Any]]:
    def row(method: str, accuracy: float, attack: str = NO_ATTACK, defence: str = "-") -> dict[str, Any]:
        return {
            "split": "gamma=0", "method": method, "attack": attack, "defence": defence, "accuracy": accuracy,
            "accuracy_sd": 1.0, "diverged": 0, "seeds": 3, "curve": [[40, accuracy / 2], [80, accuracy]],
        }  # fmt: skip

    honest = [row(method, 40.0 + number) for number, method in enumerate(METHODS)]
    attacked = [row(FBN, 10.0 + number, "sf", name) for number, name in enumerate(["mean", "median+nnm"])]
    return honest + attacked


EXAMPLES = [
    {"gamma": gamma, "method": method, "error": 0.2, "last_error": 0.1}
    for gamma in (1.0, 0.0)
    for method in (FBN, FIXBN, NAIVE)
]


def test_summary_has_a_column_for_each_method_and_defence() -> None:
    """Rows become tables beside each other's figures."""
    rows = rows_of_a_study()
    assert [line["naive"] for line in by_method(rows)] == [43.0]
    assert by_attack(rows) == [
        {"split": "gamma=0", "method": FBN, "attack": "sf", "no_attack": 41.0, "mean": 10.0, "median+nnm": 11.0,
         "diverged": 0}
    ]  # fmt: skip
    assert [line["gamma"] for line in by_gamma(EXAMPLES)] == [1.0, 0.0]
    assert list(summary([], EXAMPLES)) == ["normalization error"]


@pytest.mark.parametrize("rows", [rows_of_a_study(), rows_of_a_study()[:4]], ids=["attacks", "no attacks"])
def test_pictures_are_written(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """Both pictures are there, and say what they show."""
    plot.draw(rows, tmp_path / "study.svg")
    plot.draw_example(EXAMPLES, tmp_path / "example.svg")
    assert "test accuracy" in (tmp_path / "study.svg").read_text()
    assert "distance from the centralized run" in (tmp_path / "example.svg").read_text()


def test_what_is_missing_is_said_before_anything_runs(tmp_path: Path) -> None:
    """No images, no Python with torch: an error that names a remedy."""
    with pytest.raises(ConfigError, match="COMMONSCALE_DATA"):
        check(tmp_path)
    with pytest.raises(ConfigError, match="make torch"):
        study.torch_python(tmp_path / "python")


def test_a_process_that_ends_is_an_error(tmp_path: Path) -> None:
    """A Python without what is needed ends the study, and does not hang it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o700)
    with pytest.raises(ConfigError, match="ended"):
        study.run(Plan(SMALL_MODEL, (), (), seeds=1), tmp_path, python, processes=2)
