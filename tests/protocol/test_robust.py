"""Robust rounds, all roles in memory: the rules of one process that sees everything, with liars and without."""

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from bench.batchnorm_study.attacks import BY_NAME
from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import first_error
from commonscale.errors import BadMessage, Disagreement
from commonscale.plan import plan_of
from commonscale.statistics.training import robust
from commonscale.statistics.training.batchnorm import Statistics
from commonscale.statistics.training.robust_rules import Robustly, batch_statistics
from commonscale.v1.protocols_pb2 import Plains
from tests.federation import Federation, Result
from tests.linear_worker import LinearWorker, trained, workers
from tests.misbehaving.statistics import with_liars
from tests.protocol.test_training import LOCAL, job

ROUNDS = 6


def run(directory: Path, sites: dict[str, LinearWorker], **options: Any) -> dict[str, Result]:
    return in_federation(Federation(directory, list(sites)), sites, **options)


def in_federation(federation: Federation, sites: dict[str, LinearWorker], **options: Any) -> dict[str, Result]:
    wanted = {"rounds": ROUNDS, "batchnorm": "fbn", "local": {**LOCAL, "steps": 1}, "evaluation": {"every": 0}}
    try:
        return anyio.run(federation.run, job(sites, **{**wanted, **options}), sites)
    except BaseException as error:  # noqa: BLE001 - the first error of a group, as itself
        raise first_error(error) from None


def training_rows(site: LinearWorker) -> np.ndarray:
    return site.x[: -site.evaluation]


def pooled(sites: dict[str, LinearWorker], rule: Robustly) -> Statistics:
    """In one process; every site has the same batch in every round."""
    rows = [training_rows(site) for site in sites.values()]
    means, variances = np.stack([x.mean(axis=0) for x in rows]), np.stack([x.var(axis=0) for x in rows])
    # As if all had the rows of the average site.
    n = len(rows) * (sum(map(len, rows)) // len(rows))
    found = Statistics.initial(3)
    for _ in range(ROUNDS):
        mean, variance = batch_statistics(rule, means, variances)
        found = Statistics(0.9 * found.mean + 0.1 * mean, 0.9 * found.variance + 0.1 * variance * n / (n - 1))
    return found


RULES: list[dict[str, Any]] = [
    {"rule": "median"},
    {"rule": "median", "nnm": True, "dishonest": 2},
    {"rule": "trimmed-mean", "dishonest": 1},
    {"rule": "trimmed-mean", "nnm": True, "dishonest": 2},
    {"rule": "median", "method": "counts"},
]


@pytest.mark.parametrize("count", [5, 6])
@pytest.mark.parametrize("options", RULES)
def test_statistics_are_those_of_one_process(tmp_path: Path, options: dict[str, Any], count: int) -> None:
    """Of an odd and an even number of sites, alike at all of them."""
    sites = workers(count, layered=True)
    found = run(tmp_path, sites, robust=options)
    plain = {name: value for name, value in options.items() if name != "method"}
    expected = pooled(sites, Robustly(**{"dishonest": (count - 1) // 2, **plain}))
    for name in sites:
        statistics = found[name].fitted.model.statistics
        np.testing.assert_allclose(statistics.mean, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(statistics.variance, expected.variance, rtol=1e-9)


@pytest.mark.parametrize("mode", ["naive", "fixbn"])
@pytest.mark.parametrize("method", ["clear", "counts"])
def test_averaged_statistics_may_be_robust_too(tmp_path: Path, mode: str, method: str) -> None:
    """The median of the sites' own running statistics; fixbn pools them in the first half alone."""
    sites = workers(5, layered=True)
    found = run(tmp_path, sites, batchnorm=mode, robust={"rule": "median", "method": method})
    rows = [training_rows(site) for site in sites.values()]
    statistics = found["site-0"].fitted.model.statistics
    # The workers' statistics grow with the rounds.
    last = ROUNDS if mode == "naive" else ROUNDS // 2
    mean, variance = ([last * take(x) for x in rows] for take in (_mean, _variance))
    np.testing.assert_allclose(statistics.mean, np.median(mean, axis=0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance, np.median(variance, axis=0), rtol=1e-9)


def _mean(x: np.ndarray) -> np.ndarray:
    return np.asarray(x.mean(axis=0))


def _variance(x: np.ndarray) -> np.ndarray:
    return np.asarray(x.var(axis=0, ddof=1))


@pytest.mark.parametrize("options", RULES)
@pytest.mark.parametrize("attack", BY_NAME)
def test_liars_do_not_move_statistics_far(tmp_path: Path, attack: str, options: dict[str, Any]) -> None:
    """Two of seven: means stay among the honest ones'."""
    sites = with_liars(workers(7, layered=True), attack, 2)
    found = run(tmp_path, sites, robust={**options, "dishonest": 2})
    means = np.stack([training_rows(site).mean(axis=0) for name, site in sites.items() if name < "site-5"])
    # After some rounds from 0 towards what is agreed on.
    share = 1 - 0.9**ROUNDS
    mean = found["site-0"].fitted.model.statistics.mean / share
    assert (mean >= means.min(axis=0) - 1e-9).all()
    assert (mean <= means.max(axis=0) + 1e-9).all()


def test_the_same_liars_spoil_a_sum(tmp_path: Path) -> None:
    """Positive control: what the rules above hold off is an attack."""
    honest = workers(7, layered=True)
    liars = with_liars(honest, "foe", 2)
    statistics = run(tmp_path, liars)["site-0"].fitted.model.statistics
    truth = run(tmp_path / "honest", honest)["site-0"].fitted.model.statistics
    assert np.abs(statistics.mean - truth.mean).max() > 3


@pytest.mark.parametrize("attack", ["sf", "foe"])
def test_updates_may_be_robust_in_clear(tmp_path: Path, attack: str) -> None:
    """Liars among five sites: the median of the updates in one process; the average of the sums goes the other way."""
    sites = with_liars(workers(5, layered=True), attack, 2)
    options = {"batchnorm": "", "model_for": "everyone"}
    found = run(tmp_path, sites, **options, robust={"rule": "median", "of": "updates"})
    weights = np.zeros(4)
    for _ in range(ROUNDS):
        honest = [sites[f"site-{number}"] for number in range(3)]
        updates = [trained(weights, training_rows(s), s.y[: -s.evaluation], 0.01) - weights for s in honest]
        lie = -np.mean(updates, axis=0) * (10.0 if attack == "foe" else 1.0)
        weights = weights + np.median([*updates, lie, lie], axis=0)
    for name in sites:
        np.testing.assert_allclose(found[name].fitted.model.weights, weights, rtol=1e-9)


class AlteringMailbox(MemoryMailbox):
    """A coordinator that shows other statistics than a site sent."""

    async def put(self, slot: Slot, payload: bytes) -> None:
        if slot.kind.endswith("Plains"):
            said = Plains.FromString(payload)
            changed = np.frombuffer(said.vectors[1].elements, "<f8") + 1
            said.vectors[1].elements = changed.tobytes()
            payload = said.SerializeToString(deterministic=True)
        await super().put(slot, payload)


def test_a_coordinator_cannot_alter_what_a_site_says(tmp_path: Path) -> None:
    """Each site has signed its own."""
    sites = workers(3, layered=True)
    federation = Federation(tmp_path, list(sites))
    federation.mailbox = AlteringMailbox()
    with pytest.raises(Disagreement, match="signature of site-1"):
        in_federation(federation, sites, robust="median")


def test_what_cannot_be_a_count_of_sites_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that adds a thousand."""
    original = robust._below
    calls = iter(range(10**6))

    def more(*arguments: Any) -> Any:
        found = original(*arguments)
        return found + np.uint64(1000) if next(calls) == 0 else found

    monkeypatch.setattr(robust, "_below", more)
    with pytest.raises(BadMessage, match="no counts of 5 sites"):
        run(tmp_path, workers(5, layered=True), robust={"rule": "median", "method": "counts"})


def test_statistics_may_be_robust_in_sampled_rounds(tmp_path: Path) -> None:
    """Of the chosen sites; everyone ends with the same."""
    sites = workers(6, layered=True)
    found = run(tmp_path, sites, sample=3, robust="median")
    states = {found[name].fitted.model.statistics.variance.tobytes() for name in sites}
    assert len(states) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"robust": {"rule": "trimmed-mean", "method": "counts"}}, "secure counts give the median"),
        ({"robust": {"rule": "median", "nnm": True, "method": "counts"}}, "secure counts give the median"),
        ({"robust": {"dishonest": 1}}, "robust needs a rule"),
        ({"robust": "median", "batchnorm": ""}, "those of BatchNorm layers"),
        ({"robust": {"rule": "median", "of": "updates"}}, "shown to everyone"),
        ({"robust": "median", "patience_s": 5}, "a robust round waits"),
        ({"robust": {"rule": "median", "dishonest": 2}}, "a majority must be honest"),
        ({"robust": {"rule": "median", "method": "counts"}}, "at least 5 sites, the same in all rounds"),
    ],
)
def test_what_does_not_fit_together_is_said(options: dict[str, Any], words: str) -> None:
    """When the pipeline is read."""
    with pytest.raises(ValueError, match=words):
        job(workers(4, layered=True), **{"batchnorm": "fbn", **options})


def test_the_coordinator_learns_no_update_where_statistics_are_robust(tmp_path: Path) -> None:
    """Statistics in clear, the model hidden."""
    found = run(tmp_path, workers(4, layered=True), robust="median")
    with pytest.raises(TypeError):
        bool(found[COORDINATOR].fitted.model)


@pytest.mark.parametrize(
    ("options", "methods", "shown"),
    [
        ({"robust": "median"}, {"masks", "clear"}, {robust.STATISTICS}),
        # In the first half of the rounds only.
        ({"robust": "median", "batchnorm": "fixbn"}, {"masks", "clear"}, {robust.STATISTICS}),
        ({"robust": {"rule": "median", "method": "counts"}}, {"masks"}, {robust.MEDIANS, robust.SPREADS}),
        (
            {"robust": {"rule": "median", "of": "updates"}, "model_for": "everyone"},
            {"masks", "clear"},
            {robust.STATISTICS, robust.UPDATES},
        ),
    ],
)
def test_a_plan_names_what_is_shown(options: dict[str, Any], methods: set[str], shown: set[Any]) -> None:
    """So a policy that does not list `clear` refuses, and the approval page says what everyone would see."""
    pipeline = job(workers(5, layered=True), **{"batchnorm": "fbn", **options})
    plan = plan_of(pipeline.steps[-1], 5)
    assert plan.methods == methods
    assert shown <= set(plan.all_reveals)
