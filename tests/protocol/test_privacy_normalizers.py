"""What passes the coordinator in min-max, ranks and z-score under encryption: nothing of one site.

A search must reveal no more than its result. That is shown by simulation: all answers of a job can be computed from the
result alone (and for ranks from the pooled counts), so whoever knows the result learns nothing from the answers.
"""

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.ordering import Keys, to_keys
from commonscale.pipeline import Pipeline
from commonscale.statistics.extremes import DIGIT_BITS
from commonscale.statistics.quantiles import RankSearch
from commonscale.statistics.search import Smallest
from commonscale.v1.protocols_pb2 import Answers, MaskedVector, Opened, Total
from crypto import field61, fixed_point
from crypto.rings import FIELD61, Z256, Vector
from tests.federation import Federation, NumpySource
from tests.needles import present
from tests.one_table import OneTable

SITES = ("east", "north", "west")
COLUMNS = ["a", "b"]
TABLES = {
    site: np.random.default_rng(index + 40).normal(50 + 10 * index, 3, (40 + index, 2))
    for index, site in enumerate(SITES)
}
POOLED = np.vstack(list(TABLES.values()))
CKKS = {"ckks": {"profile": "test"}}
STEPS: dict[str, dict[str, Any]] = {
    "search": {"transform": "minmax", "method": "search"},
    "tree": {"transform": "minmax", "method": "tree", **CKKS},
    "all-pairs": {"transform": "minmax", "method": "all-pairs", **CKKS},
    "counts": {"transform": "robust"},
    "counts-shares": {"transform": "robust", "method": "shares"},
    "counts-ckks": {"transform": "robust", "method": "ckks", **CKKS},
    "private": {"transform": "robust", "method": "private", **CKKS},
    "zscore": {"transform": "zscore", "method": "ckks", "max_rows": 4096, **CKKS},
    "power": {"transform": "power"},
    "box-cox": {"transform": "power", "family": "box-cox"},
    "kbins": {"transform": "kbins", "n_bins": 4},
    "kbins-uniform": {"transform": "kbins", "strategy": "uniform"},
    "spline": {"transform": "spline", "knots": "quantile"},
    "impute": {"transform": "impute", "add_indicator": True},
    "impute-median": {"transform": "impute", "strategy": "median"},
    "describe": {"transform": "describe"},
}


def record(directory: Path, name: str) -> tuple[dict[Slot, bytes], Any]:
    """Every message of a job, and its result."""
    federation = Federation(directory, SITES)
    job = Pipeline.model_validate({"sites": list(SITES), "steps": [{"columns": COLUMNS, **STEPS[name]}]})
    results = anyio.run(federation.run, job, {site: NumpySource(COLUMNS, rows) for site, rows in TABLES.items()})
    return federation.mailbox.slots, results[COORDINATOR]


def encodings(value: float) -> list[bytes]:
    """A number as a float either way round, as an ordered key, as an integer, in fixed point, as text."""
    number = np.float64(value)
    found = [number.tobytes(), number.tobytes()[::-1], to_keys(np.array([value])).tobytes()]
    found += [(~to_keys(np.array([value]))).tobytes(), repr(float(value)).encode()]
    return [*found, Z256.to_bytes(fixed_point.encode([float(value)], addends=1))]


def local_values(rows: np.ndarray) -> list[float]:
    """What a job could leak of one site: extremes, quartiles, moments, rows; not what is also the pooled result."""
    quartiles = np.quantile(rows, [0, 0.25, 0.5, 0.75, 1], axis=0).ravel()
    found = {*quartiles, *rows.mean(axis=0), *rows.std(axis=0), *rows.var(axis=0), *rows.sum(axis=0), *rows.ravel()}
    revealed = {*POOLED.min(axis=0), *POOLED.max(axis=0)}
    # The two neighbours of each pooled quartile are digits of the result.
    for column in POOLED.T:
        ordered = np.sort(column)
        for q in (0.25, 0.5, 0.75):
            at = (len(ordered) - 1) * q
            revealed |= {ordered[int(np.floor(at))], ordered[int(np.ceil(at))]}
    return sorted(found - revealed)


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
def test_no_local_value_can_be_read_from_any_message(tmp_path: Path, name: str) -> None:
    """In no encoding, in nothing that passed the coordinator."""
    messages, _ = record(tmp_path, name)
    view = b"\0".join(messages.values())
    local = [value for rows in TABLES.values() for value in local_values(rows)]
    assert not present(view, [form for value in local for form in encodings(value)])


def test_the_same_search_finds_what_is_revealed(tmp_path: Path) -> None:
    """Pooled counts and opened numbers stand in the view, so a local one would have been found."""
    messages, _ = record(tmp_path, "counts-shares")
    assert np.uint64(len(POOLED)).tobytes() in b"\0".join(messages.values())
    messages, fitted = record(tmp_path / "2", "zscore")
    opened = next(v for s, v in messages.items() if s.kind == "mean.Opened")
    assert len(np.frombuffer(Opened.FromString(opened).numbers, "<f8")) == 2 * len(COLUMNS)
    assert fitted.count is None


def elements_of(payload: bytes) -> Vector:
    """Of a masked vector modulo the prime."""
    raw = MaskedVector.FromString(payload).elements
    return FIELD61.from_bytes(raw, len(raw) // FIELD61.element_bytes)


def test_no_local_count_is_in_any_message_to_the_coordinator(tmp_path: Path) -> None:
    """Masked counts look like noise: no element is small, and no two sites' elements are related."""
    messages, _ = record(tmp_path, "counts")
    elements = np.concatenate([
        elements_of(payload) for slot, payload in messages.items() if slot.kind.endswith("MaskedVector")
    ])  # fmt: skip
    assert len(elements) > 1000
    # No count is larger than the table; of a million random elements, one in a million runs has one as small as this.
    assert elements.min() > 1 << 20 > len(POOLED)
    np.testing.assert_allclose((elements / field61.PRIME).mean(), 0.5, atol=0.02)


def test_all_answers_of_a_search_follow_from_the_result(tmp_path: Path) -> None:
    """The simulator knows minimum and maximum only, and what all values have in common."""
    messages, fitted = record(tmp_path, "search")
    low, high, pool = fitted.fitted[0].low, fitted.fitted[0].high, OneTable(list(POOLED.T))
    found = pool.axes().axes
    for reveal, answers in pool.answered.items():
        announced = Answers.FromString(messages[Slot("job-1/0", f"{reveal.scope}.Answers", COORDINATOR, ALL)]).bits
        assert np.packbits(np.concatenate(answers)).tobytes() == announced
    bits = [axis.bits for axis in found]
    search, number = Smallest(2 * bits, DIGIT_BITS["bytes"]), 0
    minima, maxima = (
        np.concatenate([a.positions(v[None]) for a, v in zip(found, x, strict=True)]) for x in (low, high)
    )
    result: Keys = np.concatenate([minima, np.array([(1 << each) - 1 for each in bits], dtype=np.uint64) - maxima])
    while search:
        number += 1
        simulated = search.answers(result)
        announced = Answers.FromString(messages[Slot("job-1/0", f"range.{number}.Answers", COORDINATOR, ALL)]).bits
        assert np.packbits(simulated).tobytes() == announced
        search.take(simulated)
    assert f"range.{number + 1}.Answers" not in {slot.kind for slot in messages}


def test_what_the_coordinator_adds_up_in_a_search_is_zero_or_uniform(tmp_path: Path) -> None:
    """Not even the number of sites that said yes is there."""
    messages, _ = record(tmp_path, "search")
    totals = []
    for scope in ("grid", "varying", *(f"range.{number}" for number in range(1, 100))):
        parts = [messages.get(Slot("job-1/0", f"{scope}.MaskedVector", site, COORDINATOR)) for site in SITES]
        if parts[0] is None:
            break
        totals.append(FIELD61.add_all([elements_of(part or b"") for part in parts]))
    assert len(totals) > 3
    flat = np.concatenate(totals)
    yes = flat[flat != 0]
    assert 0 < len(yes) < len(flat)
    assert yes.min() > 1 << 20
    np.testing.assert_allclose((yes / field61.PRIME).mean(), 0.5, atol=0.05)


def test_all_openings_of_private_ranks_follow_from_the_result(tmp_path: Path) -> None:
    """The simulator knows the pooled counts and the neighbours of the quartiles only."""
    messages, _ = record(tmp_path, "private")
    counts = FIELD61.from_bytes(Total.FromString(messages[Slot("job-1/0", "n.Total", COORDINATOR, ALL)]).elements, 2)
    assert counts.tolist() == [len(POOLED)] * 2
    search, number = RankSearch(counts, [0.25, 0.5, 0.75], 1 << 10, shared=False), 0
    ordered = np.sort(POOLED, axis=0)
    answers = to_keys(ordered[search.ranks - 1, search.columns])
    while search:
        number += 1
        simulated = np.stack([
            answer <= np.array([cut.first + at * cut.step for at in range(cut.count)], dtype=np.uint64)
            for answer, cut in zip(answers, search.query(tuple(COLUMNS)).cuts, strict=True)
        ])  # fmt: skip
        opened = messages[Slot("job-1/0", f"digits.{number}.Opened", COORDINATOR, ALL)]
        announced = np.frombuffer(Opened.FromString(opened).numbers, "<f8").reshape(simulated.shape)
        np.testing.assert_array_equal(announced, np.where(simulated, 1.0, -1.0))
        search.take(simulated)


def test_what_a_circuit_opens_is_the_result_alone(tmp_path: Path) -> None:
    """As many numbers as the result has, and a padded slot never holds a partial result."""
    for name, kind, size in (("tree", "range.Opened", 4), ("all-pairs", "range.Opened", 4)):
        messages, fitted = record(tmp_path / name, name)
        opened = {s.kind: v for s, v in messages.items() if s.kind.endswith("Opened")}
        assert list(opened) == [kind]
        numbers = np.frombuffer(Opened.FromString(opened[kind]).numbers, "<f8")
        assert len(numbers) == size
        np.testing.assert_allclose(fitted.fitted[0].high, POOLED.max(axis=0), rtol=1e-5)
