"""What was really opened, what every role's ledger says, what the report says from messages, and the plan: all alike.

Every transform with every method runs, with the options that change what is opened.
"""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import anyio
import numpy as np
import pytest

from commonscale import disclosure
from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import COORDINATOR, Slot, step_run
from commonscale.concurrency import first_error
from commonscale.errors import RunOver, Unplanned
from commonscale.pipeline import Pipeline
from commonscale.plan import Plan, PlanPool, plan_of
from commonscale.pool import Pool
from commonscale.protocols import sums
from commonscale.protocols.admission import VERDICTS
from commonscale.protocols.psi import labeled
from commonscale.results import canonical_json
from commonscale.reveal import OPENING, Ledger, Reveal
from commonscale.running import RunningPool
from commonscale.sources import queries
from commonscale.statistics.texts import ModelFile
from commonscale.transforms import TRANSFORMS, Transform
from commonscale.transforms.base import TextTransform
from commonscale.v1 import protocols_pb2 as wire
from crypto import native_apsi
from crypto.rings import Ring, Vector
from tests.categories import SITES, run, tables_of
from tests.federation import JOB, CategorySource, Federation, NumpySource, Table
from tests.linear_worker import workers

RUN = f"{JOB}/0"
COLUMNS = ["a", "b"]
FAST = {"ckks": {"profile": "test"}}
REUSE = {"ckks": {"profile": "test", "keys": "reuse"}}
DECLARED = {"ckks": {"profile": "test", "max_abs": [100.0]}}
EXACT = ("masks", "shares", "sac-proportional")
EXTREMES = ("auto", "search", "sequential", "tree", "all-pairs")
NUMERIC: list[dict[str, Any]] = [
    *({"transform": "zscore", "method": method, "rounds": rounds} for method in EXACT for rounds in ("one", "two")),
    *({"transform": "zscore", "method": "ckks", "max_rows": 4096, **ckks} for ckks in (FAST, REUSE, DECLARED)),
    *({"transform": kind, "method": method, **FAST} for kind in ("minmax", "maxabs") for method in EXTREMES),
    {"transform": "minmax", "method": "tree", **REUSE},
    {"transform": "minmax", "method": "tree", **DECLARED},
    *(
        {"transform": kind, "method": method, "epsilon": 2.0, **FAST}
        for kind in ("robust", "quantiles")
        for method in ("masks", "shares", "ckks", "private", "binary")
    ),
    {"transform": "robust", "method": "ckks", **REUSE},
    {"transform": "quantiles", "method": "private", **REUSE},
    {"transform": "quantiles", "method": "binary", "epsilon": 2.0, **DECLARED},
    *({"transform": "power", "method": method} for method in ("masks", "shares")),
    {"transform": "power", "family": "box-cox"},
    *({"transform": "kbins", "strategy": strategy} for strategy in ("quantile", "uniform")),
    *({"transform": "spline", "knots": knots} for knots in ("quantile", "uniform")),
    *({"transform": "impute", "strategy": s, "add_indicator": True} for s in ("mean", "median", "constant")),
]
TRAINING: list[dict[str, Any]] = [
    {"transform": "train", "method": "masks", "rounds": 1},
    {"transform": "train", "method": "masks", "rounds": 1, "init": "site:east", "batchnorm": "fbn"},
    {"transform": "train", "method": "masks", "rounds": 1, "evaluation": {"every": 0}},
    *({"transform": "train", "method": m, "rounds": 1, "model_for": "everyone"} for m in ("masks", "shares")),
]
IDENTIFIERS = ("onehot", "ordinal", "target")
ENCODING: list[dict[str, Any]] = [
    *(
        {"transform": kind, "method": method}
        for kind in IDENTIFIERS
        for method in ("oprf", "apsi", "apsi-native", "otmppsi", "ring")
        if (kind, method) != ("target", "ring")
    ),
    {"transform": "target", "method": "ring", "means": "local"},
    {"transform": "target", "means": "local"},
    {"transform": "target", "method": "otmppsi", "threshold": 3},
    {"transform": "onehot", "max_categories": 8},
    {"transform": "onehot", "min_frequency": 2},
    {"transform": "onehot", "method": "apsi", "both_directions": True},
    {"transform": "onehot", "method": "apsi", "min_frequency": 2, "max_categories": 8},
    {"transform": "onehot", "method": "otmppsi", "general": True},
    {"transform": "onehot", "method": "otmppsi", "threshold": 3},
    {"transform": "onehot", "method": "otmppsi", "threshold": 3, "general": True, "max_categories": 8},
    {"transform": "onehot", "method": "ring", "padding": 0},
    {"transform": "onehot", "extends": "first"},
    {"transform": "ordinal", "method": "apsi", "extends": "first"},
    {"transform": "onehot", "method": "otmppsi", "extends": "first", "max_categories": 8},
    {"transform": "bytes-norm"},
    {"transform": "mod-norm"},
    {"transform": "fasttext", "model": "words"},
    {"transform": "rolling-hash"},
]
CELLS = {
    site: {"a": ["x", "y", site], "b": ["z"] if site == "east" else ["z", None], "t": [1.0, 0.0, 2.0]} for site in SITES
}
NO_PROTOCOL = ("rolling-hash", "normalizer", "binarizer")
# What is not a scope of its own: numbers of rounds, and the four messages of the package apsi.
NO_SCOPE = ("native-",)


def others() -> list[dict[str, Any]]:
    """Every transform and method that is not named above: a new one is run without being written down here."""
    named = {(step["transform"], step.get("method", "")) for step in [*NUMERIC, *ENCODING, *TRAINING]}
    every = [(name, method) for name, kind in TRANSFORMS.items() for method in methods_of(kind)]
    return [{"transform": n, "method": m} if m else {"transform": n} for n, m in every if (n, m) not in named]


def methods_of(kind: type[Transform]) -> tuple[str, ...]:
    field = kind.model_fields.get("method")
    return get_args(field.annotation) if field else ("",)


def name_of(step: Mapping[str, Any]) -> str:
    """For a test's name."""
    return "-".join(str(value) for value in step.values()).replace(" ", "")


def is_numeric(step: Mapping[str, Any]) -> bool:
    return not issubclass(TRANSFORMS[step["transform"]], TextTransform)


def columns_of(step: Mapping[str, Any]) -> list[str]:
    return ["a"] if step["transform"] == "target" else COLUMNS


def job(step: Mapping[str, Any]) -> Pipeline:
    sites = SITES[:3] if is_numeric(step) else SITES
    needed = {"target": {"target": "t"}, "train": {"target": "t", "model": "linear"}}.get(step["transform"], {})
    named = {"columns": columns_of(step), **step, **needed}
    return Pipeline.model_validate({"sites": list(sites), "steps": [named]})


def tables(directory: Path, step: Mapping[str, Any]) -> dict[str, Table]:
    """Small ones, with what the step needs beside them."""
    if step["transform"] == "train":
        layered = bool(step.get("batchnorm"))
        return dict(zip(SITES[:3], workers(3, layered=layered).values(), strict=True))
    if is_numeric(step):
        generator = np.random.default_rng(8)
        rows = {site: generator.normal(2, 3, (6, 2)).round(2) for site in SITES[:3]}
        if step.get("family") == "box-cox":
            rows = {site: np.abs(numbers) + 0.1 for site, numbers in rows.items()}
        return {site: NumpySource(COLUMNS, numbers) for site, numbers in rows.items()}
    memories: dict[str, Any] = {}
    if step.get("extends"):
        before = {key: value for key, value in step.items() if key not in ("extends", "transform")}
        old = run(directory / "old", tables_of(CELLS), columns_of(step), transform=step["transform"], **before)
        memories = {site: {"first": old[site]} for site in SITES[:3]}
    model = ModelFile(hashlib.sha256(b"model").hexdigest(), directory / "model.bin", 2)
    return {site: CategorySource(CELLS[site], memories.get(site, {}), {"words": model}) for site in SITES}


def run_recorded(directory: Path, step: Mapping[str, Any]) -> tuple[Federation, Pipeline]:
    """A job with planned ledgers, all of its messages kept."""
    pipeline = job(step)
    federation = Federation(directory / "job", pipeline.sites)
    federation.ledgers = {role: disclosure.planned_ledger(JOB, pipeline) for role in (COORDINATOR, *pipeline.sites)}
    try:
        anyio.run(federation.run, pipeline, tables(directory, step))
    except BaseException as error:  # noqa: BLE001 - the first error of a group, as itself
        raise first_error(error) from None
    return federation, pipeline


def opened_scopes(federation: Federation, step: Transform) -> set[str]:
    """By the messages that open something: the innermost scope of their kind."""
    found = set()
    for slot in federation.mailbox.slots:
        *scopes, kind = slot.kind.split(".")
        if step_run(slot.run) == RUN and kind in OPENING:
            named = [scope for scope in scopes if not scope.isdigit() and not scope.startswith(NO_SCOPE)]
            found.add(named[-1])
        if slot.run == RUN and kind == "Share" and step.method_for(3)[0] == "sac-proportional":
            # Its shares, which are no messages that open something else, show signs and sizes.
            found.add("")
    return found


def lines(report: list[dict[str, Any]]) -> list[str]:
    return sorted(map(canonical_json, report))


def compare(federation: Federation, pipeline: Pipeline, plan: Plan) -> set[Reveal]:
    """Raise unless messages, ledgers, report and plan say the same."""
    (step,) = pipeline.steps
    ledger = federation.ledgers[COORDINATOR]
    opened = set(ledger.of(RUN))
    assert {reveal.scope for reveal in opened} == opened_scopes(federation, step), "what was really opened"
    for site in pipeline.sites:
        assert set(federation.ledgers[site].of(RUN)) == opened, f"the ledger of {site}"
        assert federation.ledgers[site].of(JOB) == [VERDICTS]
    assert ledger.of(JOB) == [VERDICTS]
    sent = [(slot.run, slot.kind, slot.sender) for slot in federation.mailbox.slots]
    from_messages = disclosure.from_messages(JOB, pipeline, sent)
    assert lines(from_messages) == lines(disclosure.report(JOB, pipeline, ledger)), "the report from messages"
    assert opened <= set(plan.all_reveals), "all was planned"
    assert set(plan.reveals) <= opened, "what is planned for certain was opened"
    assert opened - set(plan.reveals) <= set(plan.may_reveal)
    return opened


@pytest.mark.parametrize("step", [*NUMERIC, *ENCODING, *TRAINING, *others()], ids=name_of)
def test_messages_ledgers_report_and_plan_say_the_same(tmp_path: Path, step: dict[str, Any]) -> None:
    """At every role, whatever the transform, the method and the options."""
    if step.get("method") == "apsi-native":
        try:
            native_apsi.available()
        except native_apsi.UnavailableError as error:
            pytest.skip(str(error))
    federation, pipeline = run_recorded(tmp_path, step)
    opened = compare(federation, pipeline, plan_of(pipeline.steps[0], len(pipeline.sites)))
    assert bool(opened) == (step["transform"] not in NO_PROTOCOL and step.get("means") != "local")


@pytest.mark.parametrize("far", [False, True], ids=["safe", "squares cancel"])
def test_what_a_plan_says_may_be_opened_is_opened_where_it_must(tmp_path: Path, far: bool) -> None:
    """The variance of a z-score in one round: only where squares would cancel."""
    pipeline = job({"transform": "zscore", "method": "masks", "rounds": "one"})
    federation = Federation(tmp_path, pipeline.sites)
    federation.ledgers = {role: disclosure.planned_ledger(JOB, pipeline) for role in (COORDINATOR, *pipeline.sites)}
    generator = np.random.default_rng(3)
    rows = {site: NumpySource(COLUMNS, generator.normal(1e9 * far, 1, (6, 2))) for site in pipeline.sites}
    anyio.run(federation.run, pipeline, rows)
    plan = plan_of(pipeline.steps[0], len(pipeline.sites))
    variance = next(reveal for reveal in plan.may_reveal if reveal.scope == "variance")
    assert (variance in compare(federation, pipeline, plan)) == far


def test_a_later_job_with_the_same_keys_opens_the_same(tmp_path: Path) -> None:
    """Whether keys are made or used again, what is shown of that is the same line."""
    federation, pipeline = run_recorded(tmp_path, {"transform": "minmax", "method": "tree", **REUSE})
    plan = plan_of(pipeline.steps[0], len(pipeline.sites))
    first = compare(federation, pipeline, plan)
    again = Federation(tmp_path / "again", pipeline.sites)
    again.shelves, again.members = federation.shelves, federation.members
    again.ca, again.authority = federation.ca, federation.authority
    for member in again.members.values():
        member.journal = type(member.journal)()
    again.ledgers = {role: disclosure.planned_ledger(JOB, pipeline) for role in (COORDINATOR, *pipeline.sites)}
    anyio.run(again.run, pipeline, tables(tmp_path, {"transform": "minmax", "method": "tree", **REUSE}))
    assert not any(slot.kind.endswith("KeyShare") for slot in again.mailbox.slots)
    assert compare(again, pipeline, plan) == first


def test_messages_of_the_package_apsi_are_reported(tmp_path: Path) -> None:
    """Also where the package is not installed: by their kinds."""
    pipeline = job({"transform": "onehot", "method": "apsi-native"})
    report = disclosure.from_messages(JOB, pipeline, [(RUN, "psi.native-4.PsiAnswer", "a")])
    assert [line["what"] for line in report] == [labeled.REVEALS.what]


# The comparison can fail


def renamed(plan: Plan, scope: str) -> Plan:
    """A plan that says something else of one scope than is opened there."""
    other = tuple(replace(r, what="nothing much") if r.scope == scope else r for r in plan.reveals)
    return replace(plan, reveals=other)


def test_an_opening_that_the_plan_words_differently_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every role's ledger, before anything is sent."""
    monkeypatch.setattr(disclosure, "plan_of", lambda step, sites: renamed(plan_of(step, sites), "mean"))
    with pytest.raises(Unplanned, match="would reveal what its plan does not name"):
        run_recorded(tmp_path, {"transform": "zscore"})


def test_a_plan_with_other_words_does_not_pass_the_comparison(tmp_path: Path) -> None:
    """Also where no ledger refuses."""
    federation, pipeline = run_recorded(tmp_path, {"transform": "zscore"})
    plan = plan_of(pipeline.steps[0], 3)
    compare(federation, pipeline, plan)
    with pytest.raises(AssertionError, match="all was planned"):
        compare(federation, pipeline, renamed(plan, "mean"))
    more = replace(plan, reveals=(*plan.reveals, Reveal("more", "something that is not opened")))
    with pytest.raises(AssertionError, match="what is planned for certain was opened"):
        compare(federation, pipeline, more)


def test_an_opening_that_a_ledger_lacks_does_not_pass_the_comparison(tmp_path: Path) -> None:
    """At one site, at the coordinator, or in the messages."""
    federation, pipeline = run_recorded(tmp_path, {"transform": "zscore"})
    plan = plan_of(pipeline.steps[0], 3)
    whole = federation.ledgers["north"]
    for role, says in (("north", "the ledger of north"), (COORDINATOR, "what was really opened")):
        federation.ledgers[role], kept = Ledger(), federation.ledgers[role]
        with pytest.raises(AssertionError, match=says):
            compare(federation, pipeline, plan)
        federation.ledgers[role] = kept
    assert federation.ledgers["north"] is whole
    for slot in [slot for slot in federation.mailbox.slots if slot.kind == "variance.Total"]:
        del federation.mailbox.slots[slot]
    with pytest.raises(AssertionError, match="what was really opened"):
        compare(federation, pipeline, plan)


def test_a_protocol_that_opens_without_a_reveal_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator cannot send a total in a scope that speaks of nothing."""

    async def add(
        pool: RunningPool, reveal: Reveal, ring: Ring, length: int, mine: Any, *, method: str = "masks", number: int = 0
    ) -> Vector:
        return await sums.add(pool.ch.scope(reveal.scope), ring, length, mine, pool.transcript, method)

    monkeypatch.setattr(RunningPool, "add", add)
    with pytest.raises(RuntimeError, match="opens what no Reveal speaks of"):
        run_recorded(tmp_path, {"transform": "zscore"})


def test_a_transform_that_opens_more_than_its_plan_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that does something else over a real pool than over a plan's."""
    kind = TRANSFORMS["zscore"]
    honest, more = kind.fit, Reveal("more", "the same sums once more")

    async def fit(step: Any, pool: Pool) -> Any:
        if isinstance(pool, RunningPool):
            await pool.any_says(more, 1, lambda: np.array([True]))
        return await honest(step, pool)

    monkeypatch.setattr(kind, "fit", fit)
    with pytest.raises(Unplanned, match="the same sums once more"):
        run_recorded(tmp_path, {"transform": "zscore"})


def test_a_coordinator_that_withholds_a_total_has_read_it(tmp_path: Path) -> None:
    """Every site that sent its part says so, and so does a report from the messages, once all parts are there."""
    pipeline = job({"transform": "zscore"})
    federation = Federation(tmp_path, pipeline.sites)
    federation.ledgers = {role: disclosure.planned_ledger(JOB, pipeline) for role in (COORDINATOR, *pipeline.sites)}
    federation.mailbox = SilentAfter("mean.Total")
    with pytest.raises(BaseException) as caught:
        anyio.run(federation.run, pipeline, tables(tmp_path, {"transform": "zscore"}))
    assert isinstance(first_error(caught.value), RunOver)
    (mean,) = (reveal for reveal in plan_of(pipeline.steps[0], 3).reveals if reveal.scope == "mean")
    for site in pipeline.sites:
        assert federation.ledgers[site].of(RUN) == [mean]
    sent = [(slot.run, slot.kind, slot.sender) for slot in federation.mailbox.slots]
    assert mean.what in [line["what"] for line in disclosure.from_messages(JOB, pipeline, sent)]
    fewer = [entry for entry in sent if entry != (RUN, "mean.MaskedVector", pipeline.sites[0])]
    assert len(fewer) == len(sent) - 1
    assert mean.what not in [line["what"] for line in disclosure.from_messages(JOB, pipeline, fewer)]


class SilentAfter(MemoryMailbox):
    """In which one announcement never arrives: the job is over for everyone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.withheld = kind

    async def put(self, slot: Slot, payload: bytes) -> None:
        if slot.kind == self.withheld:
            raise RunOver("The job is over.")
        await super().put(slot, payload)


def test_a_transform_that_asks_more_than_its_plan_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another question, or the same of another column: before the rows are looked at."""
    kind = TRANSFORMS["zscore"]
    honest = kind.fit
    for query in (queries.Extremes(tuple(COLUMNS)), queries.Sums((*COLUMNS, "other"))):

        async def fit(step: Any, pool: Pool, query: Any = query) -> Any:
            if isinstance(pool, RunningPool):
                pool.ask(query)
            return await honest(step, pool)

        monkeypatch.setattr(kind, "fit", fit)
        with pytest.raises(Unplanned, match=f"would ask what its plan does not name: {query.title}"):
            run_recorded(tmp_path / type(query).__name__, {"transform": "zscore"})


def test_a_plan_of_the_papers_search_is_short() -> None:
    """A site makes it before its policy can refuse the job."""
    options = {"transform": "quantiles", "method": "binary", "quantiles": tuple(np.linspace(0, 1, 100))}
    pool = PlanPool(3)
    step = TRANSFORMS["quantiles"].model_validate({**options, "columns": [f"c{n}" for n in range(50)]})
    with contextlib.suppress(StopIteration):
        step.fit(pool).send(None)
    assert 0 < len(pool.reveals) < 1000


# Every message of the wire

PART = "part of another message"
KEYS = "of collective keys, which depend on no data"
UNDER_ENCRYPTION = "under a key of which every site has a share; what comes of it is Opened"
KEPT = "kept by its owner, never sent"
BLINDED = "blinded: uniform points to its receiver"
SHOWS_NOTHING = {
    "Answer": PART,
    "Acceptance": PART,
    "Refusal": PART,
    "Column": PART,
    "RosterEntry": PART,
    "Confirmation": "the hash of what all sites were shown already",
    "Confirmations": "the same of all sites",
    "MaskedVector": "uniformly random to whoever lacks the pair keys",
    "Share": "uniformly random alone; proportional ones have a Reveal that names no scope",
    "PartialSum": "uniformly random, but for the sum of all, which is a Total",
    "KeyShare": KEYS,
    "JointKey": KEYS,
    "RelinShare": KEYS,
    "RelinJoint": KEYS,
    "RelinProduct": KEYS,
    "RotationShare": KEYS,
    "EncryptedInput": UNDER_ENCRYPTION,
    "RefreshRequest": UNDER_ENCRYPTION,
    "RefreshShare": UNDER_ENCRYPTION,
    "DecryptRequest": UNDER_ENCRYPTION,
    "DecryptShare": "hidden by noise; all together are what Opened says",
    "KeyChoice": "one of the sets that KeyOffer named, in the same scope",
    "EscrowPart": "a part of what unlocks a key share, too few alone",
    "Escrow": "locked",
    "Deposit": KEPT,
    "GroupKey": "random",
    "BlindedItems": BLINDED,
    "EvaluatedItems": BLINDED,
    "TokenPositions": "random positions; that two sites have equal ones is what in-use and the layout speak of",
    "PsiQuery": "encrypted to the querier's own key",
    "PsiOffer": BLINDED,
    "NativeMessage": "blinded, evaluated or encrypted items of the package apsi; what it answers is a PsiAnswer",
    "OwnShares": "shares of the receiver's own values",
    "KnownByAll": "repeats what Known has shown, in the same scope",
    "Outcome": "the hash of a result that the coordinator has too, or an error, which shows no cell",
    "Success": PART,
    "Failure": PART,
    "KeySet": KEPT,
    "Checkpoint": KEPT,
    "OpenedLine": PART,
}


def test_every_message_opens_something_or_has_a_reason_not_to() -> None:
    """A message that is new on the wire must be put in one of the two lists."""
    everything = set(wire.DESCRIPTOR.message_types_by_name)
    assert OPENING | set(SHOWS_NOTHING) == everything
    assert not OPENING & set(SHOWS_NOTHING)
    assert all(SHOWS_NOTHING.values())
