"""Writes docs/disclosures.md, the table of what every transform reveals, from the Reveals themselves.

`python docs/generate.py` writes it; a test compares.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from commonscale.plan import plan_of
from commonscale.reveal import Reveal
from commonscale.transforms import TRANSFORMS, Transform

PAGE = Path(__file__).parent / "disclosures.md"
SITES = 5
# Options without which a transform cannot be asked for.
REQUIRED: dict[str, dict[str, Any]] = {
    "target": {"target": "outcome"},
    "fasttext": {"model": "words"},
    "train": {"model": "risk", "target": "outcome"},
}
# Options that change what is revealed, beside the method.
_IDENTIFIERS: list[dict[str, Any]] = [
    {"method": "apsi", "both_directions": True},
    {"method": "otmppsi", "threshold": 3},
]
_ENCODED = [*_IDENTIFIERS, {"min_frequency": 5}, {"extends": "an-earlier-job"}]
FURTHER: dict[str, list[dict[str, Any]]] = {
    "zscore": [{"rounds": "one"}],
    "onehot": _ENCODED,
    "ordinal": _ENCODED,
    "target": [*_IDENTIFIERS, {"means": "local"}],
    "power": [{"family": "box-cox"}],
    "describe": [{"extremes": False}],
    "kbins": [{"strategy": "uniform"}],
    "spline": [{"knots": "quantile"}],
    "impute": [{"strategy": "median"}, {"strategy": "constant"}, {"add_indicator": True}],
    "train": [
        {"init": "site:north"},
        {"observers": True},
        {"batchnorm": "fbn", "robust": {"rule": "median", "method": "counts"}},
        {"batchnorm": "fbn", "robust": {"rule": "median"}},
        {"robust": {"rule": "median", "of": "updates"}, "model_for": "everyone"},
    ],
}
# Of transforms that compute under encryption: a method that does, and options that reveal something more, or else.
ENCRYPTED = {"zscore": "ckks", "minmax": "tree", "maxabs": "tree", "robust": "private", "quantiles": "private"}
UNDER_ENCRYPTION: dict[str, dict[str, Any]] = {
    '`keys = "reuse"`': {"keys": "reuse"},
    "`recovery = true`": {"recovery": True},
    "`max_abs` declared": {"max_abs": [1000.0]},
}

_TRAINED: dict[str, dict[str, Any]] = {"masks": {}, "shares": {"method": "shares", "model_for": "everyone"}}

HEAD = """# What every transform reveals

Made from the code by `python docs/generate.py`; a test compares. A line of this table, of the approval page and of a
job's disclosure report is one object of the code (`Reveal`), under which the message travels that opens it: nothing can
be opened that no line speaks of. *May* marks what is opened only where what was opened before asks for it; words in
parentheses say with which methods or options, where not with all. Every job also reveals, to everyone, each site's
verdict on the job and the names and types of the requested columns.

*Everyone* is the coordinator, the analyst and all sites of the job; *observers* are those who may look at the
coordinator's dashboard.

| transform | what is opened, and to whom |
|---|---|
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(f"{_row(name)}\n" for name in TRANSFORMS)


def _row(name: str) -> str:
    """One line per transform."""
    kind = TRANSFORMS[name]
    summary = (kind.__doc__ or "").splitlines()[0]
    refused = "" if kind.allowed_by_default else " **Sites refuse it unless their policy names it.**"
    choices = list(_choices(name, kind))
    with_it: dict[tuple[Reveal, bool], list[str]] = {}
    for label, options in choices:
        for line in _lines(name, kind, options):
            with_it.setdefault(line, []).append(label)
    before = set(with_it)
    for label, ckks in UNDER_ENCRYPTION.items() if name in ENCRYPTED else ():
        for line in _lines(name, kind, {"method": ENCRYPTED[name], "ckks": ckks}):
            if line not in before:
                with_it.setdefault(line, []).append(label)
    lines = [
        f"{reveal.to}: {'*may:* ' if may else ''}{reveal.what}"
        + (f" ({', '.join(labels)})" if len(labels) < len(choices) else "")
        for (reveal, may), labels in with_it.items()
    ]
    return f"| **{name}**: {summary}{refused} | {'<br>'.join(lines) or 'nothing'} |"


def _lines(name: str, kind: type[Transform], options: dict[str, Any]) -> list[tuple[Reveal, bool]]:
    """What is opened with these options, and whether it only may be."""
    plan = plan_of(kind.model_validate({"columns": ["a", "b"], **REQUIRED.get(name, {}), **options}), SITES)
    return [*((reveal, False) for reveal in plan.reveals), *((reveal, True) for reveal in plan.may_reveal)]


def _choices(name: str, kind: type[Transform]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method, and options that make a difference, with a label each."""
    field = kind.model_fields.get("method")
    methods = get_args(field.annotation) if field is not None else ()
    for method in methods:
        if name == "train":
            yield f"`{method}`" if method == "masks" else '`model_for = "everyone"`', _TRAINED[method]
        elif method not in ("auto", "ring") or (method == "ring" and name != "target"):
            yield f"`{method}`", {"method": method}
    if not methods:
        yield "by default", {}
    for options in FURTHER.get(name, ()):
        yield "`" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items()) + "`", options


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
