"""A site's policy refuses with a reason, and with nothing of the data."""

import sys
from typing import Any

import pytest

from commonscale.config import Policy
from commonscale.errors import Refused
from commonscale.pipeline import Pipeline
from commonscale.statistics.axes import Decimals
from commonscale.transforms import TRANSFORMS
from participant import policy

JOB = Pipeline.model_validate({"sites": ["a", "b", "c"], "steps": [{"columns": ["age", "lab_k"], "method": "shares"}]})


def job(*steps: dict[str, Any]) -> Pipeline:
    return Pipeline.model_validate({"sites": ["a", "b", "c"], "steps": list(steps)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns": ["age"]}, "column 'lab_k'"),
        ({"transforms": ["minmax"]}, "transform 'zscore'"),
        ({"methods": ["masks"]}, r"method 'shares' that step 0 \(zscore\) uses; allowed: masks"),
        ({"analysts": ["trusted-*"]}, "analyst 'someone'"),
        ({"min_sites": 4}, "at least 4 sites"),
    ],
)
def test_it_says_what_it_does_not_allow(changes: dict[str, object], words: str) -> None:
    """Each rule by itself."""
    with pytest.raises(Refused, match=words):
        policy.check_request(Policy.model_validate(changes), JOB, "someone")


@pytest.mark.parametrize(
    "step",
    [
        {"columns": ["x"], "method": "ckks"},
        {"transform": "minmax", "columns": ["x"], "method": "tree"},
        {"transform": "maxabs", "columns": ["x"], "method": "sequential"},
        {"transform": "robust", "columns": ["x"], "method": "private"},
        {"transform": "quantiles", "columns": ["x"], "method": "binary"},
    ],
)
def test_encryption_is_not_allowed_by_default(step: dict[str, Any]) -> None:
    """It trusts the coordinator; the refusal says how to allow it, and what to read first."""
    with pytest.raises(Refused, match=r"method 'ckks' that step 0 .*add it to policy\.methods; see SECURITY\.md first"):
        policy.check_request(Policy(), job(step), "someone")
    policy.check_request(Policy(methods=["masks", "ckks"]), job(step), "someone")


def test_parameters_that_are_not_secure_are_refused_where_they_are_used() -> None:
    """And the step that uses them is named."""
    allowed = Policy(methods=["masks", "ckks"])
    quick = {"ckks": {"profile": "test"}}
    with pytest.raises(Refused, match=r"profile 'test', which is not secure, in step 1 \(robust\)"):
        policy.check_request(
            allowed, job({"columns": ["x"]}, {"transform": "robust", "columns": ["y"], "method": "ckks", **quick}), "a"
        )
    policy.check_request(allowed, job({"transform": "robust", "columns": ["y"], **quick}), "a")


@pytest.mark.parametrize(
    ("step", "column", "asked"),
    [
        ({"columns": ["secret"]}, "secret", "counts, sums and sums of squares"),
        ({"transform": "minmax", "columns": ["secret"], "method": "search"}, "secret", Decimals.title),
        ({"transform": "power", "columns": ["secret"]}, "secret", "smallest and largest values"),
        ({"transform": "robust", "columns": ["secret"]}, "secret", "numbers of values up to given cuts"),
        ({"transform": "onehot", "columns": ["secret"]}, "secret", "different values and how often each occurs"),
        (
            {"transform": "target", "columns": ["y"], "target": "secret"},
            "secret",
            "rows and sums of a target per value",
        ),
        (
            {"transform": "target", "columns": ["y"], "target": "secret", "means": "local"},
            "secret",
            "rows and sums of a target per value",
        ),
    ],
)
def test_a_refusal_names_query_column_and_step(step: dict[str, Any], column: str, asked: str) -> None:
    """Not of the first step but of the one that asks; a column beside those that are encoded counts too."""
    with pytest.raises(Refused) as caught:
        policy.check_request(Policy(columns=["x", "y"]), job({"columns": ["x"]}, step), "someone")
    name = step.get("transform", "zscore")
    assert str(caught.value) == (
        f"Its policy does not allow the column {column!r}, of which step 1 ({name}) asks for {asked}."
    )


def test_a_column_that_is_asked_nothing_of_needs_to_be_allowed_too() -> None:
    """A rolling hash sends nothing, and its output still holds the column."""
    step = {"transform": "rolling-hash", "columns": ["secret"]}
    with pytest.raises(Refused, match=r"column 'secret', which step 0 \(rolling-hash\) uses"):
        policy.check_request(Policy(columns=["x"]), job(step), "someone")


def train(**changes: Any) -> dict[str, Any]:
    return {"transform": "train", "model": "risk", "columns": ["age"], "target": "outcome", **changes}


def test_the_target_of_a_training_needs_to_be_allowed_too() -> None:
    """It is handed over with the columns."""
    with pytest.raises(Refused, match=r"column 'outcome', which step 0 \(train\) uses"):
        policy.check_request(Policy(columns=["age"]), job(train(classes=["no", "yes"])), "someone")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 1001}, "1000 rounds; the job asks for 1001"),
        ({"sample": 3}, r"changing sites \(sample, patience_s\)"),
        ({"patience_s": 3}, r"changing sites \(sample, patience_s\)"),
        ({"local": {"batch_rows": 1, "steps": 1}}, "batches of at least 8 rows"),
        ({"model_for": "everyone"}, "does not allow to show the model"),
        ({"batchnorm": "fbn", "robust": "median"}, "method 'clear' that step 0 .*; see SECURITY"),
    ],
)
def test_training_is_limited(changes: dict[str, Any], words: str) -> None:
    """By default."""
    with pytest.raises(Refused, match=words):
        policy.check_request(Policy(), job(train(**changes)), "someone")


@pytest.mark.parametrize(
    "step",
    [
        {"transform": "minmax", "method": "search"},
        {"transform": "describe"},
        {"transform": "kbins"},
        {"transform": "kbins", "strategy": "uniform"},
        {"transform": "spline", "knots": "quantile"},
        {"transform": "quantiles", "quantiles": [1.0]},
    ],
)
def test_a_site_that_hides_extremes_hides_them_from_every_step(step: dict[str, Any]) -> None:
    """Also where they are the lowest and the highest rank. Quartiles alone are something else."""
    hidden = Policy(never_reveal=["*minimum and maximum*"])
    with pytest.raises(Refused, match="pooled minimum and maximum"):
        policy.check_request(hidden, job({"columns": ["x"], **step}), "someone")
    policy.check_request(hidden, job({"columns": ["x"], "transform": "describe", "extremes": False}), "someone")


def test_without_a_list_the_transforms_speak_for_themselves() -> None:
    """All but those that show parts of values, or nearly all of them; a list that is written is the whole list."""
    assert Policy().transforms is None
    assert set(TRANSFORMS) - set(policy.allowed_transforms(Policy())) == {"bytes-norm", "quantile"}
    assert policy.allowed_transforms(Policy(transforms=["bytes-norm"])) == ["bytes-norm"]
    assert policy.allowed_transforms(Policy(transforms=[])) == []
    asked = job({"columns": ["x"]}, {"transform": "bytes-norm", "columns": ["word"]})
    with pytest.raises(Refused, match="does not allow the transform 'bytes-norm' of step 1"):
        policy.check_request(Policy(), asked, "someone")
    policy.check_request(Policy(transforms=["zscore", "bytes-norm"]), asked, "someone")


def test_a_transform_is_refused_before_any_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans take time, and whoever is refused must not spend it."""
    monkeypatch.setattr(policy, "plan_of", pytest.fail)
    steps = job({"columns": ["x"]}, {"transform": "quantiles", "columns": ["x"], "method": "binary"})
    with pytest.raises(Refused, match="does not allow the transform 'quantiles' of step 1"):
        policy.check_request(Policy(transforms=["zscore"]), steps, "someone")


@pytest.mark.parametrize("method", ["search", "tree"])
def test_what_a_policy_never_reveals_is_named_with_its_step(method: str) -> None:
    """By the words of the plan, whatever the transform and the method."""
    allowed = Policy(methods=["masks", "ckks"], never_reveal=["*minimum and maximum*"])
    asked = job({"columns": ["x"]}, {"transform": "minmax", "columns": ["y"], "method": method})
    words = r"does not allow to reveal what step 1 \(minmax\) may open: pooled minimum and maximum of each column\."
    with pytest.raises(Refused, match=words):
        policy.check_request(allowed, asked, "someone")
    policy.check_request(allowed, job({"columns": ["x"]}), "someone")


def test_what_may_be_opened_is_refused_too() -> None:
    """Also where it hangs on what is opened before."""
    with pytest.raises(Refused, match="may open: pooled variance of each column"):
        policy.check_request(Policy(never_reveal=["pooled variance*"]), job({"columns": ["x"], "rounds": "one"}), "a")


@pytest.mark.parametrize(
    ("step", "method"),
    [({"method": "ckks"}, "ckks"), ({"transform": "onehot", "method": "apsi"}, "apsi")],
)
def test_a_machine_without_openfhe_refuses_before_the_job_begins(
    monkeypatch: pytest.MonkeyPatch, step: dict[str, Any], method: str
) -> None:
    """And not in the middle of it; what needs no encryption is not concerned."""
    monkeypatch.setitem(sys.modules, "openfhe", None)
    with pytest.raises(Refused, match=f"cannot run method '{method}': .*openfhe"):
        policy.check_machine(job({"columns": ["x"], **step}))
    policy.check_machine(job({"columns": ["x"]}, {"transform": "onehot", "columns": ["y"]}))


def test_patterns_allow() -> None:
    """As of a shell."""
    policy.check_request(Policy(columns=["age", "lab_*"], analysts=["some*"]), JOB, "someone")


def test_too_few_rows_are_not_counted_out_loud() -> None:
    """The reason holds the minimum, not the number of rows."""
    with pytest.raises(Refused) as caught:
        policy.check_rows(Policy(min_rows=1000), 789)
    assert "1000" in str(caught.value)
    assert "789" not in str(caught.value)


def test_rounds_that_may_lose_sites_are_refused_where_more_than_three_must_stay() -> None:
    """A round goes on with three, whatever a policy says; so the policy speaks before the job."""
    train = {"model": "m", "columns": ["x"], "target": "y"}

    def of(**options: Any) -> Pipeline:
        return Pipeline.model_validate({"sites": ["a", "b", "c", "d"], "train": {**train, **options}})

    four = Policy.model_validate({"train": {"min_sites": 4, "changing_sites": True}})
    policy.check_request(four, of(), "someone")
    policy.check_request(Policy.model_validate({"train": {"changing_sites": True}}), of(patience_s=60), "someone")
    with pytest.raises(Refused, match=r"at least 4 sites in every round of training; with patience_s .* with 3"):
        policy.check_request(four, of(patience_s=60), "someone")
