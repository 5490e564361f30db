"""What a coordinator sees of a whole training job, with sampling and a site that drops out, searched and solved.

Searched for every site's updates, gradients, rows and BatchNorm sums, in every encoding; solved, as one linear system,
for every number of a site of which sums were opened.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.statistics.training import rounds
from crypto import fixed61, masks
from tests.attacks.equations import Equations, Unknown
from tests.attacks.training_views import (
    LEARNING_RATE,
    LOSS_IN,
    NAMES,
    ROUNDS,
    SAMPLE,
    Classifier,
    Recorded,
    lots_that_are_the_same_in_every_run,
    recorded,
)
from tests.needles import present

fixed_lots = lots_that_are_the_same_in_every_run
pytestmark = pytest.mark.usefixtures("fixed_lots")


def secrets_of(site: Classifier, total_rows: int) -> Iterator[np.ndarray]:
    """Everything of a site that must not be seen: weights, updates and gradients, weighted and not, and layer sums."""
    rows = float(site.rows)
    for answer in site.answers.values():
        update = answer["weights"] - answer["before"]
        yield from (answer["weights"], update, update * rows, update * (rows / total_rows))
        yield from (update / LEARNING_RATE, update * (rows / LEARNING_RATE))
        yield from (answer["sum"], answer["square"], answer["sum"] / rows, answer["square"] / rows)
        yield from (answer["mean"], answer["variance"], answer["count"])
    yield np.array([rows, rows / total_rows, float(site.evaluation), site.evaluation / total_rows])
    yield from (np.array([float(count) for count in site.class_counts]), np.array([rows, rows + site.evaluation]))


def encodings(numbers: np.ndarray) -> Iterator[bytes]:
    """As anyone might have written them, eight bytes each: fewer would be found by chance."""
    # A zero stands everywhere.
    numbers = numbers[np.abs(numbers) > 1e-6]
    for order in "<>":
        double, single = numbers.astype(f"{order}f8"), numbers.astype(f"{order}f4")
        yield from (double[at : at + 1].tobytes() for at in range(len(double)))
        yield from (single[at : at + 2].tobytes() for at in range(len(single) - 1))
    # Whole numbers would be found as parts of totals of counts, moved by some bytes; equations are for them.
    numbers = numbers[numbers != np.rint(numbers)]
    for bits in (16, 24, 32, 40):
        for number in np.rint(np.ldexp(numbers, bits)).tolist():
            for near in (int(number) - 1, int(number), int(number) + 1):
                for modulus in (2**61 - 1, 2**64):
                    # Where it is that short, it might be anything.
                    if abs(near) > 1 << 24:
                        yield (near % modulus).to_bytes(8, "little")
                        yield (near % modulus).to_bytes(8, "big")
    if np.abs(numbers).max(initial=0) < 1e5:
        parts = [fixed61.encode_parts(numbers[at : at + 1], addends=SAMPLE)[1:] for at in range(len(numbers))]
        yield from (low.tobytes() for low in parts if 1 << 24 < int(low[0]) < 2**61 - (1 << 25))


def found_in(view: bytes, job: Recorded) -> int:
    """How many of the sites' numbers stand in the view, in whatever encoding."""
    secrets = [numbers for site in job.sites.values() for numbers in secrets_of(site, job.total_rows)]
    return len(present(view, {raw for numbers in secrets for raw in encodings(numbers)}))


def layer_sums_in(job: Recorded) -> set[tuple[str, int, str]]:
    """Of which site and round a BatchNorm sum stands in the view, as it is or scaled to the average site.

    Sums go as two elements, with a random number of carries between them (fixed61.encode_parts): what is behind the
    point stays, in the lower 40 bits.
    """
    elements = np.concatenate([vector for attempt in (1, 2) for one in range(1, ROUNDS + 1)
                               for vector in job.vectors(one, attempt).values()])  # fmt: skip
    behind = {int(element) % 2**40 for element in (*elements, *(2**61 - 1 - elements))}
    found = set()
    for site in job.sites.values():
        for number, answer in site.answers.items():
            for what in ("sum", "square"):
                for numbers in (answer[what], answer[what] * (job.total_rows // len(NAMES) / site.rows)):
                    points = np.rint((numbers - np.floor(numbers)) * 2.0**40).astype(np.int64)
                    if any(int(point + near) % 2**40 in behind for point in points for near in range(-2, 3)):
                        found.add((site.name, number, what))
    return found


def test_no_number_of_a_site_is_in_the_view(tmp_path: Path) -> None:
    """In float32, float64 and fixed point, weighted and not; nor is any round's model."""
    job = recorded(tmp_path)
    assert job.lost
    assert job.found["@coordinator"].fitted.history.rounds == ROUNDS
    # The attempt that lacked a site is in the view as well as the one after it.
    assert set(job.vectors(LOSS_IN, 1)) == set(job.vectors(LOSS_IN, 2))
    assert sum(len(site.answers) for site in job.sites.values()) == SAMPLE * ROUNDS - 1
    assert found_in(job.view.content, job) == 0
    assert layer_sums_in(job) == set()
    models = [answer["before"] for site in job.sites.values() for answer in site.answers.values()]
    models += [job.found[name].fitted.model.weights for name in NAMES if name != job.lost]
    assert not present(job.view.content, {raw for model in models for raw in encodings(model)})


def test_the_search_finds_them_where_masks_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: of every site the weighted updates and the layer sums, each by itself, in fixed point."""
    monkeypatch.setattr(masks, "apply", lambda _ring, vector, *_: vector)
    monkeypatch.setattr(masks, "remove", lambda _ring, announced, *_: announced)
    job = recorded(tmp_path)
    assert found_in(job.view.content, job) > 100
    answered = {(site.name, number) for site in job.sites.values() for number in site.answers}
    for site, number in answered:
        assert present(job.view.content, set(encodings(job.contribution(site, number)))), (site, number)
    assert layer_sums_in(job) == {(*one, what) for one in answered for what in ("sum", "square")}


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", ">f8"])
def test_the_search_finds_floats(tmp_path: Path, kind: str) -> None:
    """Positive control: an update, gradient or layer sum somewhere in a view, at an odd place."""
    job = recorded(tmp_path, rounds=2, loss_in=0)
    answer = next(answer for site in job.sites.values() for answer in site.answers.values())
    update = answer["weights"] - answer["before"]
    for secret in (answer["weights"], update, update / LEARNING_RATE, answer["sum"], answer["square"]):
        assert found_in(b"\x01\x02\x03" + secret.astype(kind).tobytes() + b"\x04", job) >= 2


def what_was_opened(job: Recorded) -> Equations:
    """All totals of all rounds, and what anyone knows: every row has a class, and keeps it."""
    found = Equations()
    for slot, senders, total in job.totals():
        scope = slot.kind.partition(".")[0]
        for at, value in enumerate(total.tolist()):
            if (named := meaning(scope, slot.run, at)) is not None:
                found.add({(site, *named): 1.0 for site in senders}, value)
        if scope == "metrics":
            for site in senders:
                for actual in range(2):
                    of_class = {(site, "class", actual): -1.0}
                    by_prediction = {(site, "confusion", slot.run, 2 * actual + other): 1.0 for other in range(2)}
                    by_score = {(site, "score", slot.run, 100 * actual + place): 1.0 for place in range(100)}
                    found.add(of_class | by_prediction, 0)
                    found.add(of_class | by_score, 0)
    for site in NAMES:
        found.add({(site, "evaluation"): -1.0, (site, "class", 0): 1.0, (site, "class", 1): 1.0}, 0)
    return found


def meaning(scope: str, run: str, at: int) -> Unknown | None:
    """Which numbers of the sites an opened total adds up; none for what is the same at all sites, and for the loss."""
    if scope == "sizes":
        return (("rows",), ("evaluation",))[at] if at < 2 else None
    if scope == "metrics":
        return None if at < 2 else ("confusion", run, at - 2) if at < 6 else ("score", run, at - 6)
    return {"set-rows": ("rows",), "set-classes": ("class", at)}[scope]


def test_nothing_of_a_site_follows_from_all_totals(tmp_path: Path) -> None:
    """Not its rows, not those of a class, true or predicted or of a score, of the lost site or another."""
    job = recorded(tmp_path)
    opened = [slot.kind for slot, _, _ in job.totals()]
    # None after the loss in the fifth of ten rounds.
    assert opened == ["sizes.Total", "metrics.Total", "metrics.Total"]
    assert all(senders == NAMES for _, senders, _ in job.totals())
    assert what_was_opened(job).determined() == {}


def weakened(monkeypatch: pytest.MonkeyPatch, reveal: Reveal, own: Any, among: Any) -> None:
    """A training that opens counts of some sites in each round."""
    original = rounds._round

    async def weak(pool: Pool, options: Any, sizes: Any, ready: Any, model: Any, history: Any, number: int) -> Any:
        model, history = await original(pool, options, sizes, ready, model, history, number)
        left = [site for site in pool.sites if site not in history.lost]
        here = pool.among(among(left, number))
        length = len(own("site-0"))
        await here.add_counts(reveal, length, lambda: own(pool.me))
        return model, history

    monkeypatch.setattr(rounds, "_round", weak)


def test_totals_of_each_sampled_set_would_give_every_sites_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positive control: the attack on a training that opens the rows of each round's set."""
    rows = {name: site.rows for name, site in recorded(tmp_path / "before", rounds=1, loss_in=0).sites.items()}

    def drawn(left: list[str], number: int) -> list[str]:
        return rounds.chosen_sites(left, SAMPLE, b"", number)

    weakened(monkeypatch, Reveal("set-rows", "rows of the sites of this round"), lambda name: [rows[name]], drawn)
    solved = what_was_opened(recorded(tmp_path / "weak")).determined()
    assert {name: solved[name, "rows"] for name in NAMES} == rows


def test_counts_without_the_lost_site_would_give_its_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: the attack on a training that goes on measuring after a loss."""
    sites = recorded(tmp_path / "before", rounds=1, loss_in=0).sites
    counts = Reveal("set-classes", "rows of each class of the sites that are left")
    weakened(monkeypatch, counts, lambda name: sites[name].class_counts, lambda left, _: left)
    job = recorded(tmp_path / "weak")
    solved = {unknown: value for unknown, value in what_was_opened(job).determined().items() if unknown[1] == "class"}
    assert solved == {(job.lost, "class", at): count for at, count in enumerate(sites[job.lost].class_counts)}
