"""A round that is begun anew without a site: what its two attempts say together.

To a coordinator that lost a site, to one that only says so, alone and together with a site, and to a curious site.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.channel.seal import Envelope
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import first_error
from commonscale.errors import Disagreement
from commonscale.protocols import sums
from commonscale.protocols.psi import group_key
from commonscale.statistics.training import rounds
from crypto import field61, fixed61, masks
from crypto.rings import FIELD61, Vector
from tests.attacks.equations import Equations
from tests.attacks.training_views import (
    LOSS_IN,
    NAMES,
    SAMPLE,
    Classifier,
    Recorded,
    Recording,
    lots_that_are_the_same_in_every_run,
    recorded,
)
from tests.misbehaving.roles import ChangingMailbox, changing

fixed_lots = lots_that_are_the_same_in_every_run
pytestmark = pytest.mark.usefixtures("fixed_lots")

PARAMETERS = 4


class CoordinatorThatCallsASiteMissing:
    """It has the site's vector, and says that it has not."""

    def __init__(self, view: Recording, site: str, number: int = LOSS_IN) -> None:
        self._view, self._site, self._number = view, site, number

    async def put(self, slot: Slot, payload: bytes) -> None:
        await self._view.put(slot, payload)

    async def get(self, slot: Slot) -> bytes:
        if (slot.sender, slot.kind) == (self._site, "update.1.MaskedVector") and slot.run.endswith(f"/{self._number}"):
            await anyio.sleep_forever()
        return await self._view.get(slot)


def lied_about(directory: Path, place: int, **options: Any) -> Recorded:
    """A job in which one of the sites that were drawn, by its place in the ring, is called missing."""
    site = rounds.chosen_sites(NAMES, SAMPLE, b"", LOSS_IN)[place]
    job = recorded(
        directory,
        lost=site,
        mailboxes=lambda view: {COORDINATOR: CoordinatorThatCallsASiteMissing(view, site)},
        **options,
    )
    assert job.found[COORDINATOR].fitted.history.lost == (site,)
    # It is called missing, and its vector is there.
    assert set(job.vectors(LOSS_IN, 1)) - set(job.vectors(LOSS_IN, 2)) == {site}
    return job


def combinations(vectors: list[Vector]) -> np.ndarray:
    """Everything that comes out when each vector is added, subtracted or left out."""
    found = np.zeros((1, len(vectors[0])), np.uint64)
    for vector in vectors:
        minus = field61.subtract(np.zeros_like(vector), vector)
        found = np.concatenate([found, field61.add(found, vector), field61.add(found, minus)])
    return found[1:]


def readable(vectors: list[Vector]) -> list[np.ndarray]:
    """Of all combinations the updates of those that are numbers and no noise, which is large in some place."""
    # Of the updates: parts of sums are large by what is carried between them.
    found = combinations([vector[:PARAMETERS] for vector in vectors])
    small = np.minimum(found, np.uint64(field61.PRIME) - found).max(axis=1) < 1 << 52
    return [fixed61.decode(row) for row in found[small]]


def both_attempts(job: Recorded) -> list[Vector]:
    return [*job.vectors(LOSS_IN, 1).values(), *job.vectors(LOSS_IN, 2).values()]


def is_among(wanted: np.ndarray, found: list[np.ndarray]) -> bool:
    """Or its negative; rounding differs in the two attempts."""
    return any(np.allclose(sign * one, wanted, rtol=0, atol=1e-10) for one in found for sign in (1, -1))


def without_the_sites_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weakened: sums are opened to whoever adds them."""
    original = sums._send_masked

    async def weak(*args: Any, hidden_by: bytes | None = None) -> None:
        await original(*args)

    monkeypatch.setattr(sums, "_send_masked", weak)
    monkeypatch.setattr(masks, "remove", lambda _ring, announced, *_: announced)


def with_masks_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weakened: masks are bound to the round, not to the attempt and what was announced before it."""
    monkeypatch.setattr(sums, "_context", lambda ch, _: ch.run.encode())


def test_a_coordinator_that_lost_a_site_reads_neither_attempt(tmp_path: Path) -> None:
    """No sum or difference of what came for both attempts is a number."""
    job = recorded(tmp_path)
    assert len(both_attempts(job)) == 2 * (SAMPLE - 1)
    assert readable(both_attempts(job)) == []


def test_it_would_read_the_sum_of_those_who_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: without the mask from the sites' own key."""
    without_the_sites_key(monkeypatch)
    job = recorded(tmp_path)
    left = sum(job.contribution(name, LOSS_IN) for name in job.vectors(LOSS_IN, 2))
    assert is_among(np.asarray(left), readable(both_attempts(job)))


@pytest.mark.parametrize("place", [0, 2], ids=["first", "third"])
def test_a_coordinator_that_calls_a_site_missing_reads_nothing_alone(tmp_path: Path, place: int) -> None:
    """Also not if it is the site that adds the sites' own mask."""
    job = lied_about(tmp_path, place)
    assert len(both_attempts(job)) == 2 * SAMPLE - 1
    assert readable(both_attempts(job)) == []


@pytest.mark.parametrize("weaken", [without_the_sites_key, with_masks_of_the_round])
def test_it_would_read_the_update_of_that_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weaken: Any) -> None:
    """Positive control: without the sites' own mask, or with the same masks in both attempts."""
    weaken(monkeypatch)
    job = lied_about(tmp_path, 2)
    assert is_among(job.contribution(job.lost, LOSS_IN), readable(both_attempts(job)))


class Accomplice:
    """A site that tells the coordinator its keys, and what its masks are bound to."""

    def __init__(self, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.key = b""
        self.pair_keys: dict[str, bytes] = {}
        self.contexts: dict[tuple[str, str], bytes] = {}
        share, context, pair_keys = group_key.share, sums._context, Envelope.pair_keys

        async def shared(ch: Any) -> bytes:
            found = await share(ch)
            self.key = found if ch.me == site else self.key
            return found

        def bound(ch: Any, announced: bytes) -> bytes:
            found = context(ch, announced)
            if ch.me == site:
                self.contexts[ch.run.rpartition("/")[2], ch.prefix] = found
            return found

        def derived(envelope: Envelope, others: Any) -> dict[str, bytes]:
            found = pair_keys(envelope, others)
            if envelope.me == site:
                self.pair_keys |= found
            return found

        monkeypatch.setattr(group_key, "share", shared)
        monkeypatch.setattr(sums, "_context", bound)
        monkeypatch.setattr(Envelope, "pair_keys", derived)

    def stripped(self, vectors: Mapping[str, Vector], attempt: int) -> dict[str, Vector]:
        """The other sites' vectors without the masks that this site knows."""
        context = self.contexts[str(LOSS_IN), f"update.{attempt}."]
        found = {}
        for site, vector in vectors.items():
            if site == self.site:
                continue
            mask = masks.mask(FIELD61, self.pair_keys[site], context, len(vector))
            found[site] = field61.subtract(vector, mask) if site < self.site else field61.add(vector, mask)
            if site == next(iter(sorted(vectors))):
                found[site] = masks.remove(FIELD61, found[site], self.key, context)
        return found


def test_together_with_a_site_it_reads_the_site_that_it_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the documentation says, of that round; of the others it has their sum, as that site has in every round."""
    accomplice = Accomplice(rounds.chosen_sites(NAMES, SAMPLE, b"", LOSS_IN)[1], monkeypatch)
    job = lied_about(tmp_path, 2)
    first = accomplice.stripped(job.vectors(LOSS_IN, 1), 1)
    second = accomplice.stripped(job.vectors(LOSS_IN, 2), 2)
    found = readable([*first.values(), *second.values()])
    assert is_among(job.contribution(job.lost, LOSS_IN), found)
    others = [job.contribution(name, LOSS_IN) for name in second]
    assert len(others) == 2
    assert is_among(others[0] + others[1], found)
    assert not any(is_among(one, found) for one in others)
    # Both sums, added and subtracted, with both signs.
    assert len(found) == 8


def test_sites_that_were_told_different_things_add_noise(tmp_path: Path) -> None:
    """One site hears that two are missing, the others that one is: no sum is taken, and nothing can be read."""
    views: list[Recording] = []

    def mailboxes(view: Recording) -> dict[str, Any]:
        views.append(view)
        told = changing("absent.1.Attendance", lambda said: said.missing.append("site-4"), receiver="@all")
        only_then = lambda slot, payload: told(slot, payload) if slot.run.endswith(f"/{LOSS_IN}") else payload  # noqa: E731
        return {
            COORDINATOR: CoordinatorThatCallsASiteMissing(view, "site-1"),
            "site-2": ChangingMailbox(view, shown=only_then),
        }

    with pytest.raises(BaseException) as caught:
        recorded(tmp_path, lost="site-1", mailboxes=mailboxes, sample=0)
    assert isinstance(first_error(caught.value), Disagreement)
    job = Recorded(views[0], {}, {}, "site-1", None)  # type: ignore[arg-type]
    assert len(both_attempts(job)) == 2 * len(NAMES) - 1
    assert readable(both_attempts(job)) == []


def opened_at_a_site(monkeypatch: pytest.MonkeyPatch) -> dict[int, np.ndarray]:
    """By round, the sums of BatchNorm layers that a curious site opens: of three channels, and the layer's count."""
    found: dict[int, np.ndarray] = {}
    applied = rounds.Contribution.applied

    def noted(own: Any, ready: Any, model: Any, total: Vector, scale: float) -> Any:
        found[own.number] = fixed61.decode_parts(total[own.updated :])
        return applied(own, ready, model, total, scale)

    monkeypatch.setattr(rounds.Contribution, "applied", noted)
    return found


def sets_of(job: Recorded) -> Iterator[tuple[int, list[str]]]:
    """Who added to the update of each round, as everyone knows."""
    for number in range(1, job.found[COORDINATOR].fitted.history.rounds + 1):
        yield number, sorted(job.vectors(number, 2) or job.vectors(number, 1))


def rows_by_layer_counts(job: Recorded, opened: Mapping[int, np.ndarray]) -> dict[str, int]:
    """Rows of sites, by linear algebra."""
    equations = Equations()
    for number, chosen in sets_of(job):
        equations.add({(site,): 1.0 for site in chosen}, float(opened[number][-1]))
    return {site: rows for (site,), rows in equations.determined().items()}


def test_counts_of_batchnorm_layers_show_no_sites_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sets change every site counts alike, so a round's count says how many sites there were."""
    opened = opened_at_a_site(monkeypatch)
    job = recorded(tmp_path)
    average = job.total_rows // len(NAMES)
    assert {number: float(found[-1]) for number, found in opened.items()} == {
        number: float(average * len(chosen)) for number, chosen in sets_of(job)
    }
    solved = rows_by_layer_counts(job, opened)
    assert set(solved.values()) == {average}


def test_counts_as_they_are_would_show_every_sites_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: sums as the workers answer them, to any site that looks."""
    opened = opened_at_a_site(monkeypatch)
    monkeypatch.setattr(rounds.Contribution, "counts_alike", False)
    job = recorded(tmp_path)
    assert rows_by_layer_counts(job, opened) == {name: site.rows for name, site in job.sites.items()}


def updates_at_a_site(monkeypatch: pytest.MonkeyPatch) -> dict[int, np.ndarray]:
    """By round, the sum of weighted updates that every site opens."""
    found: dict[int, np.ndarray] = {}
    applied = rounds.Contribution.applied

    def noted(own: Any, ready: Any, model: Any, total: Vector, scale: float) -> Any:
        found[own.number] = fixed61.decode(total[: own.updated])
        return applied(own, ready, model, total, scale)

    monkeypatch.setattr(rounds.Contribution, "applied", noted)
    return found


def test_a_site_reads_rows_from_a_weight_that_changes_alike_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not defended, as the documentation says: of such a weight a set's sum is its share of the rows."""
    opened, work = updates_at_a_site(monkeypatch), Classifier.work

    async def decaying(self: Classifier, order: Any) -> Any:
        answer = await work(self, order)
        if order.kind == "train":
            answer["weights"][-1] = 0.9 * order.arrays["weights"][-1] - 0.1
        return answer

    monkeypatch.setattr(Classifier, "work", decaying)
    job = recorded(tmp_path)
    equations = Equations()
    for number, chosen in sets_of(job):
        before = job.sites[chosen[0]].answers[number]["before"][-1]
        share = opened[number][-1] / (-0.1 * before - 0.1)
        equations.add({(site,): 1.0 for site in chosen}, share * job.total_rows)
    assert equations.determined() == {(name,): site.rows for name, site in job.sites.items()}


def test_a_site_estimates_the_update_of_a_lost_one_from_the_rounds_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not defended, as the documentation says: while a model hardly moves, two averages differ by that update."""
    opened = updates_at_a_site(monkeypatch)
    slow = {"learning_rate": 1e-4, "steps": 1, "batch_rows": 0}
    job = recorded(tmp_path, sample=0, local=slow)
    estimate, truth = opened[LOSS_IN - 1] - opened[LOSS_IN], job.contribution(job.lost, LOSS_IN - 1)
    assert estimate @ truth / (np.linalg.norm(estimate) * np.linalg.norm(truth)) > 0.99
