"""A site's policy: what may be computed on its rows. A refusal says why, and nothing of the data."""

import importlib
from fnmatch import fnmatchcase

from commonscale.config import Policy, TrainPolicy
from commonscale.errors import Refused
from commonscale.pipeline import Pipeline
from commonscale.plan import Plan, plan_of
from commonscale.protocols.admission import MIN_SITES
from commonscale.transforms import TRANSFORMS, Transform
from commonscale.transforms.training import Train
from crypto import native_apsi


def check_request(policy: Policy, pipeline: Pipeline, analyst: str) -> None:
    """Raise Refused unless the policy allows this job."""
    if not _any_match(analyst, policy.analysts):
        raise Refused(f"Its policy does not allow jobs of analyst {analyst!r}.")
    if len(pipeline.sites) < policy.min_sites:
        raise Refused(f"Its policy asks for at least {policy.min_sites} sites; the job names {len(pipeline.sites)}.")
    allowed = allowed_transforms(policy)
    # Before any plan is made, which takes time.
    for number, step in enumerate(pipeline.steps):
        if step.transform not in allowed:
            raise Refused(f"Its policy does not allow the transform {step.transform!r} of step {number}.")
        if isinstance(step, Train):
            _check_training(policy, step, len(pipeline.sites))
    for number, step in enumerate(pipeline.steps):
        _check_step(policy, number, step, plan_of(step, len(pipeline.sites)))


def _check_step(policy: Policy, number: int, step: Transform, plan: Plan) -> None:
    """Of one step: how it pools numbers, what it opens, and what it asks of which columns."""
    where = f"step {number} ({step.transform})"
    for method in sorted(plan.methods - set(policy.methods)):
        raise Refused(
            f"Its policy does not allow the method {method!r} that {where} uses; allowed: {', '.join(policy.methods)}.",
            "Its operator may add it to policy.methods; see SECURITY.md first." if method in ("ckks", "clear") else "",
        )
    if "test" in plan.profiles and not policy.test_profile:
        raise Refused(f"Its policy does not allow the profile 'test', which is not secure, in {where}.")
    for reveal in plan.all_reveals:
        if _any_match(reveal.what, policy.never_reveal):
            raise Refused(f"Its policy does not allow to reveal what {where} may open: {reveal.what}.")
    for query in plan.queries:
        for column in dict.fromkeys([*query.columns, *query.numeric_columns, *query.text_columns]):
            if not _any_match(column, policy.columns):
                raise Refused(
                    f"Its policy does not allow the column {column!r}, of which {where} asks for {query.title}."
                )
    for column in dict.fromkeys([*step.columns, *step.numeric_columns, *step.text_columns]):
        if not _any_match(column, policy.columns):
            raise Refused(f"Its policy does not allow the column {column!r}, which {where} uses.")


def _check_training(policy: Policy, step: Train, sites: int) -> None:
    train, min_sites = policy.train, max(policy.min_sites, policy.train.min_sites)
    if step.rounds > train.max_rounds:
        raise Refused(f"Its policy allows to train {train.max_rounds} rounds; the job asks for {step.rounds}.")
    if step.changes_sites and not train.changing_sites:
        raise Refused(
            "Its policy does not allow rounds over changing sites (sample, patience_s), in which sites learn more of "
            "each other.",
            "Its operator may set policy.train.changing_sites; see docs/protocols/training.md first.",
        )
    if min(step.sample or sites, sites) < min_sites:
        raise Refused(f"Its policy asks for at least {min_sites} sites in every round of training.")
    if step.patience_s and min_sites > MIN_SITES:
        raise Refused(
            f"Its policy asks for at least {min_sites} sites in every round of training; with patience_s a round may "
            f"go on with {MIN_SITES}."
        )
    if 0 < step.local.batch_rows < train.min_batch_rows:
        raise Refused(f"Its policy asks for batches of at least {train.min_batch_rows} rows.")
    if step.model_for == "everyone" and not train.release_model:
        raise Refused("Its policy does not allow to show the model to the coordinator and the analyst.")


def allowed_transforms(policy: Policy) -> list[str]:
    """As the site says, or those that belong to the default by their own word."""
    if policy.transforms is not None:
        return policy.transforms
    return [name for name, kind in TRANSFORMS.items() if kind.allowed_by_default]


def check_machine(pipeline: Pipeline) -> None:
    """Raise Refused where a step asks for what this machine cannot run: now, and not in the middle of the job."""
    methods = {method for step in pipeline.steps for method in plan_of(step, len(pipeline.sites)).methods}
    try:
        if "apsi-native" in methods:
            native_apsi.available()
        if methods & {"ckks", "apsi"}:
            importlib.import_module("openfhe")
    except (native_apsi.UnavailableError, ImportError) as error:
        named = " or ".join(repr(method) for method in sorted(methods & {"apsi-native", "apsi", "ckks"}))
        raise Refused(f"Its machine cannot run method {named}: {error}") from None


def check_rows(policy: Policy, rows: int) -> None:
    """Raise Refused, without saying how many rows there are, where they are too few."""
    if rows < policy.min_rows:
        raise Refused(f"Its table has fewer rows than its policy's minimum of {policy.min_rows}.")


def check_training_rows(policy: TrainPolicy, rows: int) -> None:
    """The same for training."""
    if rows < policy.min_rows:
        raise Refused(f"Its table has fewer rows than its policy's minimum of {policy.min_rows} for training.")


def _any_match(value: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(value, pattern) for pattern in patterns)
