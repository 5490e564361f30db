"""Training, all roles in memory: equal to one process on the same rows, with every rule and a crash anywhere."""

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from exceptiongroup import BaseExceptionGroup

from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import first_error
from commonscale.errors import Disagreement, ModelMismatch, Overflow, TooFewSites
from commonscale.hidden import HIDDEN
from commonscale.pipeline import Pipeline
from commonscale.statistics.training.batchnorm import Statistics
from commonscale.statistics.training.rounds import chosen_sites
from tests.federation import Federation, Result
from tests.linear_worker import LinearWorker, predicted, trained, workers
from tests.patience import PATIENCE_S
from tests.protocol.test_crash import QUICK, Crash, CrashingObserver

LOCAL = {"learning_rate": 0.01}


def job(sites: dict[str, LinearWorker], **options: Any) -> Pipeline:
    train = {"model": "linear", "columns": ["a", "b", "c"], "target": "y", "precision": "float64", "local": LOCAL}
    return Pipeline.model_validate({"sites": list(sites), "train": {**train, **options}})


def run(directory: Path, sites: dict[str, LinearWorker], **options: Any) -> dict[str, Result]:
    try:
        return anyio.run(Federation(directory, list(sites)).run, job(sites, **options), sites)
    except BaseException as error:  # noqa: BLE001 - the first error of a group, as itself
        raise first_error(error) from None


def fedavg(sites: dict[str, LinearWorker], rounds: int, chosen: Any = None) -> np.ndarray:
    """One process that has all rows: the average of the sites' models, by their rows."""
    rows = {name: len(site.x) - site.evaluation for name, site in sites.items()}
    weights = np.zeros(4)
    for number in range(1, rounds + 1):
        taking_part = chosen(number) if chosen else list(sites)
        update = np.zeros(4)
        for name in taking_part:
            site = sites[name]
            after = trained(weights, site.x[: rows[name]], site.y[: rows[name]], LOCAL["learning_rate"])
            update += rows[name] / sum(rows.values()) * (after - weights)
        weights = weights + update * len(sites) / len(taking_part)
    return weights


@pytest.mark.parametrize("count", [3, 5])
def test_the_average_is_that_of_one_process(tmp_path: Path, count: int) -> None:
    """To nine digits after eight rounds, the same at every site; the coordinator has none of it."""
    sites = workers(count)
    found = run(tmp_path, sites, rounds=8)
    oracle = fedavg(sites, 8)
    for name in sites:
        np.testing.assert_allclose(found[name].fitted.model.weights, oracle, atol=1e-9)
        assert found[name].fitted.model.weights.tobytes() == found["site-0"].fitted.model.weights.tobytes()
        assert found[name].parameters() == found[COORDINATOR].parameters()
    assert found[COORDINATOR].fitted.model is HIDDEN


def test_figures_are_those_of_the_pooled_rows(tmp_path: Path) -> None:
    """The loss on all rows that the sites keep apart, after every second round and the last."""
    sites = workers(3)
    found = run(tmp_path, sites, rounds=5, evaluation={"every": 2})
    figures = found[COORDINATOR].parameters()["metrics"]
    assert [one["round"] for one in figures] == [2, 4, 5]
    weights = found["site-0"].fitted.model.weights
    x = np.concatenate([site.x[-site.evaluation :] for site in sites.values()])
    y = np.concatenate([site.y[-site.evaluation :] for site in sites.values()])
    assert figures[-1]["loss"] == pytest.approx(np.square(predicted(weights, x) - y).mean(), rel=1e-6)
    assert figures[-1]["rows"] == len(x)


def test_sampled_sites_are_drawn_by_lot_and_scaled(tmp_path: Path) -> None:
    """Only those that were drawn train; the update of three of five counts as that of all."""
    sites = workers(5)
    federation = Federation(tmp_path, list(sites))
    found = anyio.run(federation.run, job(sites, rounds=6, sample=3, evaluation={"every": 0}), sites)
    asked = {name: [number for _, number in site.orders] for name, site in sites.items()}
    chosen = {number: [name for name in sites if number in asked[name]] for number in range(1, 7)}
    assert {len(drawn) for drawn in chosen.values()} == {3}
    assert len({tuple(drawn) for drawn in chosen.values()}) > 1
    oracle = fedavg(sites, 6, chosen.__getitem__)
    for name in sites:
        np.testing.assert_allclose(found[name].fitted.model.weights, oracle, atol=1e-9)


def test_lots_are_fair_and_public() -> None:
    """Everyone draws the same; over many rounds each site comes up about as often."""
    names = [f"s{number}" for number in range(10)]
    drawn = [chosen_sites(names, 3, b"seed", number) for number in range(2000)]
    assert drawn == [chosen_sites(names, 3, b"seed", number) for number in range(2000)]
    counts = [sum(name in one for one in drawn) for name in names]
    assert min(counts) > 500
    assert max(counts) < 700


def test_statistics_are_those_of_the_pooled_batch(tmp_path: Path) -> None:
    """Federated BatchNorm over 30 rounds against torch's formula on all rows at once, to nine digits."""
    sites = workers(3, layered=True)
    found = run(tmp_path, sites, rounds=30, batchnorm="fbn", local={**LOCAL, "steps": 1, "batch_rows": 0})
    rows = np.concatenate([site.x[: -site.evaluation] for site in sites.values()])
    oracle = Statistics.initial(3)
    for _ in range(30):
        mean = 0.9 * oracle.mean + 0.1 * rows.mean(axis=0)
        variance = 0.9 * oracle.variance + 0.1 * rows.var(axis=0, ddof=1)
        # Algorithm 2 takes the variance around the batch's own mean.
        oracle = Statistics(mean, variance)
    for name in sites:
        statistics = found[name].fitted.model.statistics
        np.testing.assert_allclose(statistics.mean, oracle.mean, rtol=1e-9)
        np.testing.assert_allclose(statistics.variance, oracle.variance, rtol=1e-9)


@pytest.mark.parametrize(("mode", "moves"), [("naive", 6), ("fixbn", 3), ("local", 0)])
def test_running_statistics_are_averaged_or_stay(tmp_path: Path, mode: str, moves: int) -> None:
    """Naive averages the sites' own by rows in each round, fixbn in the first half only, local never."""
    sites = workers(3, layered=mode != "local")
    found = run(tmp_path, sites, rounds=6, batchnorm=mode)
    statistics = found["site-0"].fitted.model.statistics
    if mode == "local":
        assert len(statistics.mean) == 0
        return
    rows = [len(site.x) - site.evaluation for site in sites.values()]
    own = [site.x[:count].mean(axis=0) for site, count in zip(sites.values(), rows, strict=True)]
    np.testing.assert_allclose(statistics.mean, moves * np.average(own, axis=0, weights=rows), atol=1e-9)


def test_running_statistics_of_drawn_sites_are_their_mean(tmp_path: Path) -> None:
    """Whatever their rows: weights of all sites would not add up to 1 among those that were drawn."""
    sites = workers(5, layered=True)
    found = run(tmp_path, sites, rounds=4, sample=3, batchnorm="naive", evaluation={"every": 0})
    drawn = [site for site in sites.values() if ("train", 4) in site.orders]
    own = [4 * site.x[: -site.evaluation].mean(axis=0) for site in drawn]
    spread = [4 * site.x[: -site.evaluation].var(axis=0, ddof=1) for site in drawn]
    statistics = found["site-0"].fitted.model.statistics
    assert len(drawn) == 3
    np.testing.assert_allclose(statistics.mean, np.mean(own, axis=0), atol=1e-9)
    np.testing.assert_allclose(statistics.variance, np.mean(spread, axis=0), atol=1e-9)


def test_training_stops_when_the_loss_stays(tmp_path: Path) -> None:
    """At every role alike, after as many measurements without a lower loss as the job says."""
    sites = workers(3)
    found = run(tmp_path, sites, rounds=50, local={"learning_rate": 0.2}, evaluation={"every": 1, "patience": 2})
    said = found[COORDINATOR].parameters()
    assert said["stopped_early"]
    assert said["rounds"] < 50
    losses = [one["loss"] for one in said["metrics"]]
    assert min(losses[-2:]) >= min(losses[:-2])


def test_watchers_are_told_after_every_round(tmp_path: Path) -> None:
    """How many are done, and the figures that all sites have agreed on; the same again as the result says at last."""
    sites = workers(3)
    federation = Federation(tmp_path, list(sites))
    found = anyio.run(federation.run, job(sites, rounds=4, evaluation={"every": 2}), sites)
    assert [(one.done, one.rounds, len(one.metrics)) for one in federation.standings] == [
        (0, 4, 0), (1, 4, 0), (2, 4, 1), (3, 4, 1), (4, 4, 2),
    ]  # fmt: skip
    last = federation.standings[-1]
    assert [one.plain() for one in last.metrics] == found[COORDINATOR].parameters()["metrics"]


def test_one_site_may_give_the_first_weights(tmp_path: Path) -> None:
    """Where each would begin elsewhere."""
    sites = workers(3)
    for number, site in enumerate(sites.values()):
        site.first = float(number)
    with pytest.raises(ModelMismatch, match='init = "site:site-0"'):
        run(tmp_path / "each", sites, rounds=1)
    found = run(tmp_path / "one", sites, rounds=1, init="site:site-2", local={"learning_rate": 1e-9})
    np.testing.assert_allclose(found["site-0"].fitted.model.weights, 2.0, atol=1e-5)


def test_an_update_that_does_not_fit_is_not_sent(tmp_path: Path) -> None:
    """The error names site and tensor."""
    sites = workers(3)
    sites["site-1"].y *= 1e12
    with pytest.raises(Overflow, match=r"site-1: tensor '(coef|intercept)' is not finite, or too large"):
        run(tmp_path, sites, rounds=1)


@pytest.mark.crash
@pytest.mark.parametrize("victim", [COORDINATOR, "site-1"])
def test_a_crash_anywhere_ends_with_the_same_weights(tmp_path: Path, victim: str) -> None:
    """After every operation of a job of three rounds with sampling: nothing is made twice."""
    options = {"rounds": 3, "sample": 3, "batchnorm": "fbn"}

    async def attempt(directory: Path, after: int | None) -> tuple[Federation, dict[str, Result], int]:
        sites = workers(4, layered=True)
        federation, pipeline = Federation(directory, list(sites)), job(sites, **options)
        observer, found = CrashingObserver(after), dict[str, Result]()

        async def role(name: str) -> None:
            def start(seen: CrashingObserver) -> Any:
                if name == COORDINATOR:
                    return federation.coordinator(pipeline, observer=seen)
                return federation.site(name, pipeline, sites[name], observer=seen)

            try:
                found[name] = await start(observer if name == victim else CrashingObserver())
            except BaseException as error:
                if not isinstance(first_error(error), Crash):
                    raise
                found[name] = await start(CrashingObserver())

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for name in (COORDINATOR, *sites):
                    tasks.start_soon(role, name)
        return federation, found, observer.seen

    after, stride = 1, 9 if QUICK else 1
    while True:
        federation, found, seen = anyio.run(partial(attempt, tmp_path / str(after), after))
        weights = {name: found[name].fitted.model.weights.tobytes() for name in federation.members}
        assert len(set(weights.values())) == 1, after
        for name, member in federation.members.items():
            assert set(member.journal.made.values()) == {1}, (name, after)
        assert {result.fitted.history.rounds for result in found.values()} == {3}
        if seen < after:
            break
        after += stride
    assert after > 25


def with_a_lost_site(
    directory: Path, when: int, count: int = 5, **options: Any
) -> tuple[Federation, dict[str, Any], dict[str, Any]]:
    """Some sites, of which the last but one that trains in a round is gone for good when its worker is asked to."""
    sites = workers(count, layered=True)
    federation = Federation(directory, list(sites))
    pipeline = job(sites, **{"rounds": 5, "patience_s": 3, "batchnorm": "fbn", **options})
    asked: list[str] = []

    def losing(name: str, work: Any) -> Any:
        async def lost(order: Any) -> Any:
            if order.round == when and order.kind == "train":
                asked.append(name)
                # All of them are asked at once.
                await anyio.sleep(0.2)
                if name == sorted(asked[: options.get("sample", count)])[-2]:
                    await anyio.sleep_forever()
            return await work(order)

        return lost

    for name, site in sites.items():
        site.work = losing(name, site.work)  # type: ignore[method-assign]
    found = dict[str, Any]()

    async def everyone() -> None:
        async def role(name: str, work: Any) -> None:
            found[name] = await work
            if len(found) == len(sites):
                tasks.cancel_scope.cancel()

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(role, COORDINATOR, federation.coordinator(pipeline))
                for name, site in sites.items():
                    tasks.start_soon(role, name, federation.site(name, pipeline, site))

    anyio.run(everyone)
    return federation, found, sites


def test_the_others_go_on_without_a_site_that_is_silent(tmp_path: Path) -> None:
    """From what their workers had answered already, scaled to all; every role says who was lost, none measures on."""
    federation, found, sites = with_a_lost_site(tmp_path, when=3)
    assert set(found) == {COORDINATOR, "site-0", "site-1", "site-2", "site-4"}
    left = [name for name in sites if name != "site-3"]
    oracle = fedavg(sites, 5, lambda number: list(sites) if number < 3 else left)
    for name in left:
        np.testing.assert_allclose(found[name].fitted.model.weights, oracle, atol=1e-9)
        assert [order for order in sites[name].orders if order[0] == "train"] == [("train", n) for n in range(1, 6)]
        assert found[name].parameters() == found[COORDINATOR].parameters()
        assert set(federation.members[name].journal.made.values()) == {1}
    said = found[COORDINATOR].parameters()
    assert said["lost"] == ["site-3"]
    assert [one["round"] for one in said["metrics"]] == [1, 2]


def test_a_round_is_never_opened_over_two_sets(tmp_path: Path) -> None:
    """Of the attempt that lacked a site there is no total; of the next there is one."""
    federation, _, _ = with_a_lost_site(tmp_path, when=5)
    kinds = {slot.kind for slot in federation.mailbox.slots if slot.run.endswith("/5") and slot.sender == COORDINATOR}
    assert "update.1.HiddenTotal" not in kinds
    assert {"absent.1.Attendance", "absent.2.Attendance", "update.2.HiddenTotal"} <= kinds


def test_the_next_by_lot_takes_the_place_of_a_lost_site(tmp_path: Path) -> None:
    """Of six sites three are drawn, and one of these is silent: the round goes on with three."""
    _, found, sites = with_a_lost_site(tmp_path, when=2, count=6, rounds=6, sample=3, evaluation={"every": 0})
    (lost,) = set(sites) - set(found)
    assert found[COORDINATOR].parameters()["lost"] == [lost]
    drawn = {
        number: [name for name, site in sites.items() if ("train", number) in site.orders] for number in range(1, 7)
    }
    assert {len(names) for names in drawn.values()} == {3}
    assert all(lost not in names for number, names in drawn.items() if number > 1)
    oracle = fedavg(sites, 6, drawn.__getitem__)
    for name in set(sites) - {lost}:
        np.testing.assert_allclose(found[name].fitted.model.weights, oracle, atol=1e-9)
        asked = [number for _, number in sites[name].orders]
        assert asked == sorted(set(asked))
        # So that a worker that has lost its momentum notices.
        trained = [number for number in asked if name in drawn[number]]
        assert found[name].fitted.history.trained.get(name, 0) == max(trained, default=0)


def test_too_few_sites_are_an_error(tmp_path: Path) -> None:
    """Of three sites none may be lost: two would read each other's update."""
    with pytest.raises(BaseExceptionGroup) as caught:
        with_a_lost_site(tmp_path, when=2, count=3)
    assert isinstance(first_error(caught.value), TooFewSites)


@pytest.mark.parametrize("method", ["masks", "shares"])
def test_everyone_may_have_the_model(tmp_path: Path, method: str) -> None:
    """The coordinator ends with the sites' file, bit for bit."""
    sites = workers(3)
    found = run(tmp_path, sites, rounds=2, model_for="everyone", method=method)
    files = {found[name].step.files(found[name].fitted, "job")["model.safetensors"] for name in sites}
    assert files == {found[COORDINATOR].fitted.published}
    assert found[COORDINATOR].parameters() == found["site-0"].parameters()


def test_a_model_that_was_altered_on_its_way_is_not_taken(tmp_path: Path) -> None:
    """Every site has its own to compare with."""

    class Altering(MemoryMailbox):
        async def put(self, slot: Slot, payload: bytes) -> None:
            changed = slot.sender == COORDINATOR and slot.kind.endswith("Published")
            await super().put(slot, payload[:-1] + b"!" if changed else payload)

    sites = workers(3)
    federation = Federation(tmp_path, list(sites))
    federation.mailbox = Altering()
    with pytest.raises(BaseExceptionGroup) as caught:
        anyio.run(federation.run, job(sites, rounds=1, model_for="everyone"), sites)
    assert isinstance(first_error(caught.value), Disagreement)


def test_first_weights_come_from_a_site_of_the_job() -> None:
    """A name that is none would be a model of zeros."""
    with pytest.raises(ValueError, match="names no site of the job"):
        job(workers(3), init="site:nobody")
