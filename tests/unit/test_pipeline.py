"""Pipelines: their form on the wire, chained steps, and what a plan says of each."""

import contextlib
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from commonscale import disclosure
from commonscale.errors import BadMessage
from commonscale.hidden import HIDDEN, known
from commonscale.pipeline import Pipeline
from commonscale.plan import plan_of
from commonscale.results import canonical_json
from commonscale.transforms import TRANSFORMS, Transform
from commonscale.v1 import jobs_pb2
from commonscale.version import __version__
from tests.patience import PATIENCE_S

SITES = ["a", "b", "c"]

CKKS = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["standard", "high-latency", "test"]),
        "keys": st.sampled_from(["fresh", "reuse"]),
        "recovery": st.booleans(),
        "max_abs": st.floats(1e-3, 1e12).map(lambda bound: (bound,)),
    },
).filter(lambda options: not (options.get("recovery") and options.get("keys") == "reuse"))
RULES = {"strip": st.booleans(), "casefold": st.booleans()}
EXTREMES = {
    "method": st.sampled_from(["auto", "search", "sequential", "tree", "all-pairs"]),
    "ckks": CKKS,
    "latency_ms": st.integers(0, 100_000),
}
RANKS = {
    "method": st.sampled_from(["masks", "shares", "ckks", "private", "binary"]),
    "ckks": CKKS,
    "epsilon": st.floats(1e-9, 1.0),
}
IDENTIFIERS = {
    **RULES,
    "method": st.sampled_from(["oprf", "apsi", "apsi-native", "otmppsi"]),
    "max_categories": st.integers(0, 1 << 20),
    "padding": st.integers(0, 1 << 16),
}
# Options of every transform that may be chosen freely; those that it must have stand below.
OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "train": {
        "rounds": st.integers(1, 1000),
        "classes": st.lists(st.text(max_size=5), min_size=2, max_size=4, unique=True),
        "local": st.fixed_dictionaries(
            {
                "learning_rate": st.floats(1e-6, 1.0),
                "steps": st.integers(0, 100),
                "learning_rate_steps": st.dictionaries(st.integers(2, 1000), st.floats(1e-6, 1.0), max_size=3),
            }
        ),
        "server": st.fixed_dictionaries({"rule": st.sampled_from(["fedavg", "fedavgm", "fedadam"])}),
        "batchnorm": st.sampled_from(["", "fbn", "fixbn", "naive", "local"]),
        "model_for": st.sampled_from(["sites", "everyone"]),
        "observers": st.booleans(),
        "init": st.sampled_from(["seed", f"site:{SITES[0]}"]),
    },
    "zscore": {
        "method": st.sampled_from(["masks", "shares", "sac-proportional", "ckks"]),
        "rounds": st.sampled_from(["two", "one"]),
        "ckks": CKKS,
        "max_rows": st.integers(1 << 8, 1 << 30),
    },
    "minmax": {
        **EXTREMES,
        "feature_range": st.floats(-1e6, 1e6).map(lambda low: (low, low + 1.5)),
        "clip": st.booleans(),
    },
    "maxabs": EXTREMES,
    "robust": {
        **RANKS,
        "quantile_range": st.floats(0, 49).map(lambda low: (low, 100 - low)),
        "with_centering": st.booleans(),
        "with_scaling": st.booleans(),
        "unit_variance": st.booleans(),
    },
    "quantiles": {**RANKS, "quantiles": st.lists(st.floats(0, 1), min_size=1, max_size=5).map(tuple)},
    "power": {"method": st.sampled_from(["masks", "shares"]), "standardize": st.booleans()},
    "onehot": {
        **IDENTIFIERS,
        "handle_unknown": st.sampled_from(["ignore", "error", "infrequent-if-exist"]),
        "min_frequency": st.integers(0, 1 << 40),
    },
    "ordinal": {**IDENTIFIERS, "handle_unknown": st.sampled_from(["ignore", "error"]), "extends": st.just("job-1")},
    "target": {
        **IDENTIFIERS,
        "means": st.sampled_from(["federated", "local"]),
        "smoothing": st.floats(0, 1e11),
        "formula": st.sampled_from(["mean", "printed"]),
    },
    "bytes-norm": RULES,
    "mod-norm": RULES,
    "fasttext": RULES,
    "rolling-hash": {**RULES, "prime": st.integers(28, 1 << 30), "buckets": st.integers(2, 1 << 20)},
}
NEEDED: dict[str, dict[str, Any]] = {
    "target": {"target": "died"},
    "fasttext": {"model": "english"},
    "train": {"model": "risk", "target": "died"},
}
COLUMN_NAMES = st.lists(
    st.text(min_size=1, max_size=20).filter(lambda name: name != "died" and name.isprintable()),
    min_size=1, max_size=4, unique=True,
)  # fmt: skip


def job(*steps: dict[str, Any], **top: Any) -> Pipeline:
    return Pipeline.model_validate({"sites": SITES, "steps": list(steps), **top})


def spec(*steps: jobs_pb2.Step, release: str = "") -> bytes:
    """A job as a peer may write it."""
    wire = jobs_pb2.JobSpec(name="a", dataset="d", sites=SITES, deadline_s=1, steps=steps, release=release)
    return wire.SerializeToString()


# The form on the wire.


def test_options_that_are_chosen_below_are_options() -> None:
    """Of transforms that there are."""
    for name, options in OPTIONS.items():
        assert set(options) | set(NEEDED.get(name, {})) <= set(TRANSFORMS[name].model_fields)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_step_survives_the_wire(name: str) -> None:
    """With any options: what a site reads is what the analyst wrote, and canonical JSON has one form of it."""

    @settings(max_examples=25)
    @given(columns=COLUMN_NAMES, options=st.fixed_dictionaries({}, optional=OPTIONS.get(name, {})))
    def check(columns: list[str], options: dict[str, Any]) -> None:
        written = job({"transform": name, "columns": columns, **NEEDED.get(name, {}), **options})
        raw = written.to_bytes()
        read = Pipeline.from_bytes(raw)
        assert read == written
        assert type(read.steps[0]) is TRANSFORMS[name]
        assert read.to_bytes() == raw
        wire = jobs_pb2.JobSpec.FromString(raw)
        assert wire.release == __version__
        assert wire.steps[0].transform == name
        assert canonical_json(json.loads(wire.steps[0].options)) == wire.steps[0].options
        assert "transform" not in json.loads(wire.steps[0].options)

    check()


def test_an_unknown_transform_names_the_release_that_knows_it() -> None:
    """And says what to do about it here."""
    raw = spec(
        jobs_pb2.Step(transform="zscore", options='{"columns": ["x"]}'),
        jobs_pb2.Step(transform="tomorrow", options="{}"),
        release="99.1",
    )
    with pytest.raises(BadMessage) as caught:
        Pipeline.from_bytes(raw)
    assert str(caught.value) == (
        f"Step 1 asks for transform 'tomorrow', and release {__version__}, which runs here, does not know it. "
        "Release 99.1, which submitted the job, does. Upgrade this daemon."
    )


def test_an_unknown_option_names_the_release_that_knows_it() -> None:
    """Instead of being ignored; a release that does not name itself is spoken of so."""
    options = '{"columns": ["x"], "flavour": "sweet"}'
    with pytest.raises(BadMessage, match=r"does not know its option 'flavour'\. Release 99\.1, which submitted"):
        Pipeline.from_bytes(spec(jobs_pb2.Step(transform="zscore", options=options), release="99.1"))
    with pytest.raises(BadMessage, match=r"'flavour'\. Another release may\. Upgrade this daemon\."):
        Pipeline.from_bytes(spec(jobs_pb2.Step(transform="zscore", options=options)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ('{"columns": ["x"], "method": "tomorrows"}', "steps.0.zscore.method: input should be 'masks', "),
        ('{"columns": ["x"], "ckks": {"checked": true}}', "known keys here: keys, max_abs, profile, recovery, "),
    ],
    ids=["value", "nested"],
)
def test_a_value_of_another_release_names_that_release(options: str, words: str) -> None:
    """So that nobody looks for a spelling mistake; of the same release, nothing is said of releases."""
    step = jobs_pb2.Step(transform="zscore", options=options)
    with pytest.raises(BadMessage) as caught:
        Pipeline.from_bytes(spec(step, release="99.1"))
    assert words in str(caught.value)
    assert f"Release 99.1 submitted the job; release {__version__} runs here." in str(caught.value)
    with pytest.raises(BadMessage) as caught:
        Pipeline.from_bytes(spec(step, release=__version__))
    assert "elease" not in str(caught.value)


@pytest.mark.parametrize("name", ["\\ud800", "age\\u001b[2K", "a\\u202eb", "a\\nb", ""])
@pytest.mark.parametrize("where", ["columns", "target"])
def test_a_column_cannot_be_named_by_control_characters(name: str, where: str) -> None:
    """They would write to the terminal of whoever approves the job, or have no form on the wire."""
    columns, target = (f'["{name}"]', '"y"') if where == "columns" else ('["x"]', f'"{name}"')
    options = f'{{"columns": {columns}, "target": {target}}}'
    with pytest.raises(BadMessage, match=r"column's name|valid string|unicode"):
        Pipeline.from_bytes(spec(jobs_pb2.Step(transform="target", options=options)))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (
            [
                {"transform": "target", "columns": ["ward"], "target": "died"},
                {"transform": "zscore", "columns": ["ward"]},
            ],
            "step 1 (zscore) would open numbers of column 'ward', which step 0 (target) makes from sums that only",
        ),
        (
            [{"transform": "bytes-norm", "columns": ["ward"]}, {"transform": "quantiles", "columns": ["ward"]}],
            "step 1 (quantiles) would open numbers of column 'ward', which step 0 (bytes-norm) makes",
        ),
        (
            [
                {"transform": "ordinal", "columns": ["ward"]},
                {"transform": "onehot", "columns": ["ward"], "extends": "job-1"},
            ],
            "step 1 (onehot) extends an earlier job with column 'ward', which step 0 (ordinal) changes",
        ),
    ],
    ids=["target", "bytes-norm", "extends"],
)
def test_a_later_step_opens_nothing_that_is_for_the_sites_alone(steps: list[dict[str, Any]], words: str) -> None:
    """A coordinator that lied about a hidden sum would read it there; means of a site alone are no such sum."""
    with pytest.raises(ValidationError, match=re.escape(words)):
        job(*steps)
    job({"transform": "target", "columns": ["ward"], "target": "died", "means": "local"}, {"columns": ["ward"]})


@pytest.mark.parametrize(
    ("step", "made"),
    [
        ({"transform": "impute", "columns": ["x"], "add_indicator": True}, "missingindicator_x"),
        ({"transform": "spline", "columns": ["x"]}, "x_sp_0"),
    ],
)
def test_a_later_step_names_columns_of_the_table(step: dict[str, Any], made: str) -> None:
    """Not those that an earlier one makes: the site would look for them in its table."""
    words = f"names column '{made}', which step 0 ({step['transform']}) makes: name columns of the table"
    with pytest.raises(ValueError, match=re.escape(words)):
        job(step, {"columns": [made]})


def test_what_a_peer_wrote_is_not_repeated_at_length() -> None:
    """Names in an error are cut off: a spec may be a megabyte."""
    long = "x" * 100_000
    for step in (
        jobs_pb2.Step(transform=long, options="{}"),
        jobs_pb2.Step(transform="zscore", options=json.dumps({"columns": ["x"], long: 1})),
    ):
        with pytest.raises(BadMessage) as caught:
            Pipeline.from_bytes(spec(step, release=long))
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "options",
    [
        "",
        "{",
        "nonsense",
        '{"columns": ["x"]} {}',
        '{"columns": ["x"], "max_rows": NaN}',
        '{"columns": ["x"], "ckks": {"max_abs": [Infinity]}}',
        '{"columns": ["x"], "ckks": {"max_abs": [-Infinity]}}',
        "[" * 100_000 + "]" * 100_000,
        '{"columns": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "[]",
        "3",
        "null",
        '"columns"',
        '{"columns": ["x"], "transform": "minmax"}',
        "{}",
        '{"columns": "x"}',
        '{"columns": []}',
        '{"columns": [3]}',
        '{"columns": ["x", "x"]}',
        '{"columns": ["x"], "max_rows": 1e400}',
        '{"columns": ["x"], "max_rows": "many"}',
        '{"columns": ["x"], "ckks": {"profile": "none"}}',
        '{"columns": ["x"], "ckks": {"unknown": 1}}',
        '{"columns": ["x"], "ckks": []}',
    ],
    ids=lambda options: options[:40],
)
def test_damaged_options_are_a_bad_message(options: str) -> None:
    """Whatever is wrong with them, it is our error and no library's."""
    with pytest.raises(BadMessage):
        Pipeline.from_bytes(spec(jobs_pb2.Step(transform="zscore", options=options)))


@settings(max_examples=200)
@given(st.text(max_size=60) | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(json.dumps))
def test_any_options_are_read_or_refused(options: str) -> None:
    """Never another exception."""
    with contextlib.suppress(BadMessage):
        Pipeline.from_bytes(spec(jobs_pb2.Step(transform="zscore", options=options)))


def test_a_spec_that_is_too_long_is_not_read() -> None:
    """Its size is known before anything of it is parsed."""
    with pytest.raises(BadMessage, match="too long"):
        Pipeline.from_bytes(bytes(1 << 21))


# Chained steps.


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (
            [{"transform": "onehot", "columns": ["ward", "sex"]}, {"transform": "ordinal", "columns": ["sex"]}],
            "step 1 (ordinal) names column 'sex', in whose place step 0 (onehot) has put columns of its own: "
            "name it before, or leave it out",
        ),
        (
            [{"transform": "rolling-hash", "columns": ["note"]}, {"columns": ["age"]}, {"columns": ["note"]}],
            "step 2 (zscore) names column 'note', in whose place step 0 (rolling-hash) has put",
        ),
        (
            [
                {"transform": "onehot", "columns": ["died"]},
                {"transform": "target", "columns": ["ward"], "target": "died"},
            ],
            "step 1 (target) names column 'died', in whose place step 0 (onehot)",
        ),
        (
            [{"columns": ["age"]}, {"transform": "onehot", "columns": ["age"]}],
            "step 1 (onehot) would compare column 'age' as text, of which step 0 (zscore) has made numbers on a scale: "
            "put it before that step",
        ),
        (
            [{"transform": "mod-norm", "columns": ["note"]}, {"transform": "bytes-norm", "columns": ["note"]}],
            "step 1 (bytes-norm) would compare column 'note' as text, of which step 0 (mod-norm)",
        ),
        (
            [
                {"transform": "rolling-hash", "columns": ["note"], "buckets": 2},
                {"transform": "rolling-hash", "columns": ["ward"], "buckets": 3},
            ],
            "steps 0 and 1 would both make a column 'hash_0': leave one of them out",
        ),
    ],
)
def test_steps_that_cannot_follow_each_other_are_named(steps: list[dict[str, Any]], words: str) -> None:
    """Column, both steps and the remedy, when the job is submitted; a peer's spec the same."""
    with pytest.raises(ValueError, match=r".") as caught:
        job(*steps)
    assert words in str(caught.value)
    wire = [
        jobs_pb2.Step(
            transform=step.get("transform", "zscore"),
            options=json.dumps({name: value for name, value in step.items() if name != "transform"}),
        )
        for step in steps
    ]
    with pytest.raises(BadMessage) as refused:
        Pipeline.from_bytes(spec(*wire))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("steps", "numeric", "texts"),
    [
        ([{"columns": ["age", "bmi"]}, {"transform": "minmax", "columns": ["age"]}], ["age", "bmi"], []),
        ([{"transform": "ordinal", "columns": ["ward"]}, {"transform": "minmax", "columns": ["ward"]}], [], ["ward"]),
        # An ordinal's identifiers are categories still.
        ([{"transform": "ordinal", "columns": ["ward"]}, {"transform": "onehot", "columns": ["ward"]}], [], ["ward"]),
        # Quantiles make nothing: the column is as it was.
        ([{"transform": "quantiles", "columns": ["k"]}, {"transform": "onehot", "columns": ["k"]}], ["k"], ["k"]),
        (
            [
                {"transform": "target", "columns": ["ward"], "target": "died", "means": "local"},
                {"columns": ["ward"]},
                {"columns": ["died"]},
            ],
            ["died"],
            ["ward"],
        ),
        ([{"transform": "onehot", "columns": ["ward"]}, {"columns": ["ward_0"]}], ["ward_0"], ["ward"]),
    ],
)
def test_what_a_sites_table_must_have(steps: list[dict[str, Any]], numeric: list[str], texts: list[str]) -> None:
    """As numbers and as texts: not what an earlier step makes."""
    assert job(*steps).source_columns() == (numeric, texts, [])


def test_what_a_later_step_cannot_lack_the_table_must_have() -> None:
    """A value that is missing is missing after every step on numbers; an identifier of missing is one."""
    bins = {"transform": "kbins", "columns": ["age", "ward"], "encode": "ordinal"}
    chained = job({"columns": ["age"]}, {"transform": "ordinal", "columns": ["ward"]}, bins)
    assert chained.source_columns() == (["age"], ["ward"], ["age"])


# Plans.

EVERY_METHOD = [
    {"transform": "zscore", "method": method} for method in ("masks", "shares", "sac-proportional", "ckks")
] + [
    {"transform": transform, "method": method}
    for transform, methods in {
        "minmax": ("search", "sequential", "tree", "all-pairs"),
        "maxabs": ("search", "sequential", "tree", "all-pairs"),
        "robust": ("masks", "shares", "ckks", "private", "binary"),
        "quantiles": ("masks", "shares", "ckks", "private", "binary"),
        "power": ("masks", "shares"),
        "onehot": ("oprf", "apsi", "apsi-native", "otmppsi", "ring"),
        "ordinal": ("oprf", "apsi", "apsi-native", "otmppsi", "ring"),
        "target": ("oprf", "apsi", "apsi-native", "otmppsi"),
    }.items()
    for method in methods
]  # fmt: skip
EVERY_METHOD += [{"transform": "train", "method": method, "model_for": "everyone"} for method in ("masks", "shares")]
EVERY_METHOD += [{"transform": name} for name in TRANSFORMS if "method" not in TRANSFORMS[name].model_fields]


def steps_of_every_method() -> list[Transform]:
    return [job({"columns": ["x"], **NEEDED.get(step["transform"], {}), **step}).steps[0] for step in EVERY_METHOD]


def test_every_transform_is_planned_below() -> None:
    """None is left out."""
    assert {step["transform"] for step in EVERY_METHOD} == set(TRANSFORMS)


def test_a_plan_needs_no_encryption_library() -> None:
    """Nor scikit-learn, SciPy or a table: any role plans every transform and method."""
    specs = [job({"columns": ["x"], **NEEDED.get(s["transform"], {}), **s}).to_bytes().hex() for s in EVERY_METHOD]
    code = (
        "import sys\nfrom commonscale.pipeline import Pipeline\nfrom commonscale.plan import plan_of\n"
        "for spec in sys.stdin.read().split():\n"
        "    plan_of(Pipeline.from_bytes(bytes.fromhex(spec)).steps[0], 3)\n"
        "heavy = ('openfhe', 'sklearn', 'scipy', 'pandas', 'pyarrow', 'duckdb', 'skops')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(specs),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("step", steps_of_every_method(), ids=lambda step: step.protocol(3))
def test_what_a_plan_says(step: Transform) -> None:
    """A method that the step names is among those that the policy sees, and every scope has one wording."""
    plan = plan_of(step, 3)
    scopes = [(reveal.scope, reveal.to) for reveal in plan.reveals]
    assert len(set(scopes)) == len(scopes)
    method = getattr(step, "method", "masks")
    encrypted = {"sequential", "tree", "all-pairs", "private", "binary", "ckks"}
    expected = {"search": "masks"}.get(method, "ckks" if method in encrypted else method)
    if plan.queries and (plan.reveals or plan.methods):
        assert expected in plan.methods
    assert bool(plan.profiles) == ("ckks" in plan.methods)
    asked = {column for query in plan.queries for column in (*query.numeric_columns, *query.text_columns)}
    assert asked <= {*step.columns, *step.numeric_columns}
    assert plan_of(step, 3) is plan


def test_a_planned_line_says_whether_it_only_may_be_opened() -> None:
    """One round of a z-score opens the variance only where squares would cost digits."""
    lines = disclosure.planned(job({"columns": ["x"], "rounds": "one"}))
    may = {line["what"]: line.get("may", False) for line in lines if line.get("step") == 0}
    assert may == {
        "pooled count of present values, mean and mean square of each column": False,
        "pooled variance of each column": True,
    }
    assert not any("may" in line for line in disclosure.planned(job({"columns": ["x"]})))


def test_what_is_hidden_cannot_be_read() -> None:
    """Not as a truth, not as a number, not through `known`; and it shows nothing."""
    with pytest.raises(TypeError, match="no role without data may branch on it"):
        bool(HIDDEN)
    with pytest.raises(TypeError, match="compared with nothing"):
        _ = HIDDEN == 3
    with pytest.raises(TypeError, match="only the sites know"):
        known(HIDDEN)
    for read in (float, int, len, iter, lambda hidden: hidden[0], lambda hidden: hidden + 1, lambda hidden: hidden < 1):
        with pytest.raises(TypeError):
            read(HIDDEN)  # type: ignore[operator]
    assert repr(HIDDEN) == "HIDDEN"
    assert known(0) == 0
