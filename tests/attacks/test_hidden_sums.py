"""A coordinator that adds to a sum which only the sites see, and reads from a later step what it has moved.

Sums of the target per category are exact fixed point, and nobody checks them. The coordinator cannot read them, but it
can add to one of them. Were the encoded column scaled next, in the open, its pooled mean would move by a part that
depends on how many rows have that category: of a column with two categories, the coordinator reads both counts.

So no step works on what `target` or `bytes-norm` make; and as long as none does, nothing that a coordinator sees
changes with what it adds.
"""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.pipeline import Pipeline
from crypto import fixed_point
from crypto.rings import Z256
from tests.categories import job, means_of, tables_of
from tests.federation import Federation, NumpySource, Result
from tests.misbehaving.roles import CoordinatorThatChanges, Misbehaving, Nobody, field_of, run_pipeline

SITES = ("east", "north", "west")
SMOKES = {"east": "yyn", "north": "nnnnyn", "west": "nynnnyn"}
CELLS = {
    site: {"smokes": list(texts), "y": [float(at % 3) for at in range(len(texts))]} for site, texts in SMOKES.items()
}
ROWS = "".join(SMOKES.values())
SMOOTHING = 10.0
# So much that the numbers of before do not matter.
MOVED = 1e14
TARGET = {"transform": "target", "columns": ["smokes"], "target": "y", "smoothing": SMOOTHING}


class CoordinatorThatMovesATargetSum(CoordinatorThatChanges):
    """It tells all sites a larger sum of the target for the first identifier."""

    def __init__(self) -> None:
        def moved(raw: bytes) -> bytes:
            # Counts and sums take turns.
            total = Z256.from_bytes(raw, 2 * len(set(ROWS)))
            return Z256.to_bytes(Z256.add(total, fixed_point.encode([0.0, MOVED, 0.0, 0.0], addends=1)))

        super().__init__("target.HiddenTotal", field_of("elements", moved))


def encoded(directory: Path, coordinator: Misbehaving) -> tuple[Federation, dict[str, Result]]:
    """A target encoding, all roles to their end."""
    federation = Federation(directory, SITES)
    return federation, run_pipeline(federation, coordinator, job(SITES, **TARGET), tables_of(CELLS))


def scaled(directory: Path, results: dict[str, Result]) -> Result:
    """The z-score of the encoded column that a pipeline would refuse: what the coordinator ends with."""
    sources = {
        site: NumpySource(["smokes"], [[means_of(results[site]).tables[0][text]] for text in SMOKES[site]])
        for site in SITES
    }
    step = {"transform": "zscore", "columns": ["smokes"]}
    pipeline = Pipeline.model_validate({"sites": list(SITES), "steps": [step]})
    return anyio.run(Federation(directory, SITES).run, pipeline, sources)[COORDINATOR]


def possible_counts(rows: int, mean: float) -> Sequence[int]:
    """How many rows may have the category whose sum was moved, by what was opened: `rows` and the mean."""

    def part(count: int) -> float:
        return count / (count + SMOOTHING)

    def moved_by(count: int) -> float:
        return MOVED / rows * (part(count) + SMOOTHING / rows * (part(count) + part(rows - count)))

    return [count for count in range(1, rows) if moved_by(count) == pytest.approx(mean, rel=1e-9)]


def seen(federation: Federation) -> dict[Slot, int]:
    """Every message to the coordinator and its length; what is in it is masked, sealed or signed anew in every job."""
    found = {slot: len(payload) for slot, payload in federation.mailbox.slots.items() if slot.receiver == COORDINATOR}
    # Signatures differ in length by a byte or two.
    return {slot: size // 16 for slot, size in found.items()}


def test_the_attack_reads_counts_where_a_step_may_follow(tmp_path: Path) -> None:
    """The count of one of the two categories, exactly: the refusal below is needed."""
    _, results = encoded(tmp_path / "1", CoordinatorThatMovesATargetSum())
    opened = scaled(tmp_path / "2", results).fitted
    assert opened.count == (len(ROWS),)
    (count,) = possible_counts(len(ROWS), opened.mean[0])
    assert count in (ROWS.count("y"), ROWS.count("n"))


def test_an_honest_sum_shows_no_count(tmp_path: Path) -> None:
    """The attack reads what it moved, and nothing else."""
    _, results = encoded(tmp_path / "1", Nobody())
    opened = scaled(tmp_path / "2", results).fitted
    assert possible_counts(len(ROWS), opened.mean[0]) == []


@pytest.mark.parametrize("before", [TARGET, {"transform": "bytes-norm", "columns": ["smokes"]}])
@pytest.mark.parametrize("after", ["zscore", "minmax", "robust", "power"])
def test_no_step_follows_on_what_only_the_sites_saw(before: dict[str, object], after: str) -> None:
    """Refused when the job is submitted, and by every site that is invited to it."""
    steps = [before, {"transform": after, "columns": ["smokes"]}]
    with pytest.raises(ValueError, match="from sums that only the sites see"):
        Pipeline.model_validate({"sites": list(SITES), "steps": steps})


def test_without_a_later_step_the_coordinator_sees_the_same_whatever_it_adds(tmp_path: Path) -> None:
    """The same messages of the same lengths, and the same public result but for the keyed hash."""
    honest, fitted = encoded(tmp_path / "1", Nobody())
    moved, changed = encoded(tmp_path / "2", CoordinatorThatMovesATargetSum())
    assert means_of(fitted["east"]) != means_of(changed["east"])
    assert seen(honest) == seen(moved)
    assert fitted[COORDINATOR].parameters() | {"layout": ""} == changed[COORDINATOR].parameters() | {"layout": ""}
