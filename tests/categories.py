"""Jobs on categorical columns, and the pooled dictionary that they are compared with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from commonscale.categories import TextRules
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import first_error
from commonscale.errors import CommonscaleError
from commonscale.hidden import HIDDEN
from commonscale.pipeline import Pipeline
from commonscale.results import canonical_json
from commonscale.statistics.target import TargetMeans
from tests.federation import CategorySource, Federation, Result

SITES = ("east", "north", "south", "west")
# Every method to common identifiers, with the options that change its course.
METHODS: dict[str, dict[str, Any]] = {
    "oprf": {"method": "oprf"},
    "apsi": {"method": "apsi"},
    "apsi-both": {"method": "apsi", "both_directions": True},
    "otmppsi-2": {"method": "otmppsi"},
    "otmppsi-2-general": {"method": "otmppsi", "general": True},
    "otmppsi-3": {"method": "otmppsi", "threshold": 3},
    "otmppsi-n": {"method": "otmppsi", "threshold": "n"},
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


def tables_of(cells: Cells) -> dict[str, CategorySource]:
    return {site: CategorySource(columns) for site, columns in cells.items()}


def run(directory: Path, tables: Mapping[str, CategorySource], columns: Sequence[str], **step: Any) -> dict[str, Any]:
    """All roles to their end."""
    return anyio.run(Federation(directory, list(tables)).run, job(list(tables), columns, **step), tables)


def failure(federation: Federation, pipeline: Pipeline, tables: Mapping[str, CategorySource]) -> CommonscaleError:
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
        if site != COORDINATOR:
            dictionary = fitted.dictionaries[index]
            found[site] = dict(zip(dictionary.values, dictionary.identifiers, strict=True))
    return found


def means_of(result: Result) -> TargetMeans:
    """What a target encoding ends with at a site."""
    _, means = result.fitted
    assert isinstance(means, TargetMeans)
    return means


def assert_equals_pooled(
    results: Mapping[str, Result],
    tables: Mapping[str, CategorySource],
    columns: Sequence[str],
    rules: TextRules = TextRules(),  # noqa: B008 - it is frozen
    threshold: int = 2,
) -> None:
    """The pooled dictionary up to renaming, 0 … size - 1; below the threshold a value is another one at every site."""
    assert len({canonical_json(fitted.parameters()) for fitted in results.values()}) == 1
    assert results[COORDINATOR].dictionaries is HIDDEN
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
        assert sorted(number_of.values()) == list(range(results[COORDINATOR].sizes[index])), "without gaps, none twice"


def assert_one_layout(results: Mapping[str, Result]) -> None:
    """What holds when a lie cannot be noticed: all roles end with the same sizes and the same hash, inside them."""
    assert len({(fitted.sizes, fitted.digest) for fitted in results.values()}) == 1
    for texts in held(results, 0).values():
        assert len(set(texts.values())) == len(texts)
        assert all(0 <= number < results[COORDINATOR].sizes[0] for number in texts.values())
