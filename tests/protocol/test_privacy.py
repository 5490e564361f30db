"""What the coordinator and the other sites see of a site, in what was really sent."""

import hashlib
import math
from pathlib import Path

import anyio
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from commonscale.channel.seal import JobKeys
from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.channel.transcript import Transcript
from commonscale.pipeline import Pipeline
from commonscale.v1 import protocols_pb2 as wire
from crypto import fixed_point, masks
from crypto.rings import Z256, Vector
from tests.federation import Federation, NumpySource

SITES = ("east", "north", "west")
COLUMNS = ["a", "b"]
TABLES = {
    site: np.random.default_rng(index + 40).normal(50 + 10 * index, 3, (40 + index, 2))
    for index, site in enumerate(SITES)
}


def record(directory: Path, method: str, tables: dict[str, np.ndarray] | None = None) -> dict[Slot, bytes]:
    """Every message of a job: more than the coordinator can see, since it is all that went through it."""
    federation = Federation(directory, SITES)
    job = Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": COLUMNS, "method": method}]})
    data = {site: NumpySource(COLUMNS, rows) for site, rows in (tables or TABLES).items()}
    anyio.run(federation.run, job, data)
    return federation.mailbox.slots


def local_statistics(rows: np.ndarray) -> list[float]:
    """Everything of one site that a z-score could leak."""
    pooled = np.vstack(list(TABLES.values())).mean(axis=0)
    squared = np.square(rows - pooled).sum(axis=0)
    found = [len(rows), *rows.mean(axis=0), *rows.sum(axis=0), *rows.var(axis=0), *rows.std(axis=0), *squared]
    return [float(value) for value in (*found, *np.square(rows).sum(axis=0))]


def encodings(value: float) -> list[bytes]:
    """The ways in which a number could stand in a message."""
    fixed = Z256.to_bytes(fixed_point.encode([value], addends=1))
    texts = [f"{value:.6g}".encode(), repr(value).encode()]
    # The upper half of the fixed point is the number's integer part with its sign: rounding cannot hide it.
    return [np.float64(value).tobytes(), np.float64(value).tobytes()[::-1], fixed, *(t for t in texts if len(t) > 4)]


@pytest.mark.parametrize("method", ["masks", "shares"])
def test_no_local_statistic_can_be_read_from_any_message(tmp_path: Path, method: str) -> None:
    """Not as a float, not in fixed point, not as text, in nothing that passed the coordinator."""
    view = record(tmp_path, method)
    for rows in TABLES.values():
        for value in local_statistics(rows):
            for needle in encodings(value):
                assert not any(needle in payload for payload in view.values())


def test_the_test_above_would_find_a_statistic(tmp_path: Path) -> None:
    """The same search finds the pooled count and sum, which are revealed."""
    view = record(tmp_path, "masks")
    pooled = np.vstack(list(TABLES.values()))
    needle = Z256.to_bytes(fixed_point.encode([float(len(pooled))], addends=1))
    assert any(needle in payload for slot, payload in view.items() if slot.kind == "mean.Total")


def test_messages_from_sites_are_of_known_kinds(tmp_path: Path) -> None:
    """Nothing is sent but answers, confirmations and masked vectors."""
    view = record(tmp_path, "masks")
    kinds = {slot.kind for slot in view if slot.sender != COORDINATOR}
    assert kinds == {
        "Signed", "roster.Confirmation", "mean.MaskedVector", "variance.MaskedVector", "finish.Confirmation",
    }  # fmt: skip
    assert {slot.receiver for slot in view} == {COORDINATOR, ALL}


def decoded(view: dict[Slot, bytes], kind: str, site: str) -> Vector:
    payload = next(payload for slot, payload in view.items() if slot.kind == kind and slot.sender == site)
    return Z256.from_bytes(wire.MaskedVector.FromString(payload).elements, 2 * len(COLUMNS))


def test_a_masked_vector_is_independent_of_what_it_hides(tmp_path: Path) -> None:
    """Over many jobs on the same data, its bits are balanced and two jobs share nothing."""
    seen = []
    for index in range(40):
        view = record(tmp_path / str(index), "masks")
        seen.append(np.unpackbits(decoded(view, "mean.MaskedVector", "north").view(np.uint8).ravel()))
    bits = np.array(seen)
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / math.sqrt(bits.size)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.5, "no bit is the same in all 40 jobs"


def test_masks_differ_between_the_two_sums(tmp_path: Path) -> None:
    """The difference of a site's two masked vectors is not the difference of its numbers."""
    view = record(tmp_path, "masks")
    difference = Z256.subtract(
        decoded(view, "mean.MaskedVector", "north"), decoded(view, "variance.MaskedVector", "north")
    )
    assert all(abs(float(value)) > 1e30 for value in fixed_point.decode(difference))


def test_the_coordinator_and_one_site_cannot_unmask_another(tmp_path: Path) -> None:
    """With all that east knows, its mask with north comes off; the one between north and west still hides the numbers.

    With west's keys too, north's count and sums stand there: the same computation would have found them.
    """
    federation = Federation(tmp_path, SITES)
    job = Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": COLUMNS}]})
    anyio.run(federation.run, job, {site: NumpySource(COLUMNS, rows) for site, rows in TABLES.items()})
    view = federation.mailbox.slots
    # Masks are bound to the slot, and to what was announced before: nothing yet.
    context = Slot("job-1/0", "mean.MaskedVector", "", COORDINATOR).context() + Transcript().digest
    roster = wire.Roster.FromString(next(p for s, p in view.items() if s.kind == "Roster"))
    digest = hashlib.sha256(roster.SerializeToString(deterministic=True)).digest()
    answers = {entry.site: wire.Answer.FromString(entry.answer.body).acceptance for entry in roster.entries}
    north_key = X25519PublicKey.from_public_bytes(answers["north"].mask_key)

    def without_mask_of(colluder: str, vector: Vector) -> Vector:
        kept = federation.members[colluder].journal.kept[Slot("job-1", "Keys", colluder, colluder)]
        pair = masks.pair_key(JobKeys.from_bytes(kept).mask, north_key, digest)
        mask = masks.mask(Z256, pair, context, len(vector))
        return Z256.subtract(vector, mask) if colluder > "north" else Z256.add(vector, mask)

    seen_by_east = without_mask_of("east", decoded(view, "mean.MaskedVector", "north"))
    rows = TABLES["north"]
    truth = [len(rows), len(rows), rows[:, 0].sum(), rows[:, 1].sum()]
    assert all(abs(float(value)) > 1e30 for value in fixed_point.decode(seen_by_east))
    seen_by_both = fixed_point.decode(without_mask_of("west", seen_by_east))
    np.testing.assert_allclose([float(value) for value in seen_by_both], truth, rtol=1e-12)
