"""Jobs on categorical columns, and the pooled dictionary that they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from commonscale.concurrency import first_error
from commonscale.errors import CommonscaleError
from commonscale.pipeline import Pipeline
from commonscale.results import canonical_json
from commonscale.slot import HUB
from commonscale.transforms.categories import TextRules
from commonscale.transforms.encodings import FittedIdentifiers
from tests.federation import CategoryTable, Federation

SITES = ("east", "north", "south", "west")
# Every way to common identifiers.
VARIANTS: dict[str, dict[str, Any]] = {
    "oprf": {"variant": "oprf"},
    "apsi": {"variant": "apsi"},
    "apsi-both": {"variant": "apsi", "both_directions": True},
    "otmppsi-2": {"variant": "otmppsi"},
    "otmppsi-2-general": {"variant": "otmppsi", "general": True},
    "otmppsi-3": {"variant": "otmppsi", "threshold": 3},
    "otmppsi-n": {"variant": "otmppsi", "threshold": "n"},
}
Cells = Mapping[str, Mapping[str, Sequence[Any]]]


def names(count: int) -> tuple[str, ...]:
    return tuple(f"s{index}" for index in range(count))


def job(sites: Sequence[str], columns: Sequence[str], **step: Any) -> Pipeline:
    """One encoding step; threshold "n" is as many as there are sites."""
    step = {"transform": "onehot", "columns": list(columns), **step}
    if step.get("threshold") == "n":
        step["threshold"] = len(sites)
    return Pipeline.model_validate({"sites": list(sites), "steps": [step]})


def tables_of(cells: Cells) -> dict[str, CategoryTable]:
    return {site: CategoryTable(columns) for site, columns in cells.items()}


def run(directory: Path, tables: Mapping[str, CategoryTable], columns: Sequence[str], **step: Any) -> dict[str, Any]:
    """All roles to their end."""
    return anyio.run(Federation(directory, list(tables)).run, job(list(tables), columns, **step), tables)


def failure(federation: Federation, pipeline: Pipeline, tables: Mapping[str, CategoryTable]) -> CommonscaleError:
    """The error of the role that noticed first."""
    with pytest.raises(BaseException) as caught:
        anyio.run(federation.run, pipeline, tables)
    error = first_error(caught.value)
    assert isinstance(error, CommonscaleError), repr(error)
    return error


def held(results: Mapping[str, Any], index: int) -> dict[str, dict[str | None, int]]:
    """Of one column, at every site: the identifiers of its values."""
    found = {}
    for site, fitted in results.items():
        if site != HUB:
            dictionary = fitted.dictionaries[index]
            found[site] = dict(zip(dictionary.values, dictionary.identifiers, strict=True))
    return found


def assert_equals_pooled(
    results: Mapping[str, FittedIdentifiers],
    tables: Mapping[str, CategoryTable],
    columns: Sequence[str],
    rules: TextRules = TextRules(),  # noqa: B008 - it is frozen
    threshold: int = 2,
) -> None:
    """The pooled dictionary up to renaming, 0 … size - 1; below the threshold a value is another one at every site."""
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1
    assert results[HUB].dictionaries == ()
    pooled = {site: table.categories(columns, rules) for site, table in tables.items()}
    for index in range(len(columns)):
        found = held(results, index)
        number_of: dict[Any, int] = {}
        for site in tables:
            assert set(found[site]) == set(pooled[site][index]), "the values that the site holds"
            for text, identifier in found[site].items():
                holders = sum(text in other[index] for other in pooled.values())
                meant = text if holders >= threshold else (text, site)
                assert number_of.setdefault(meant, identifier) == identifier, "one identifier a value"
        assert sorted(number_of.values()) == list(range(results[HUB].sizes[index])), "without gaps, none twice"
