"""Coordinators that do not keep to the sums of texts and targets, or to what is said of a model."""

from typing import Any

import pytest

from commonscale.channel.slot import COORDINATOR
from commonscale.errors import BadMessage, Disagreement
from tests.categories import SITES, job
from tests.federation import CategorySource, Federation
from tests.misbehaving.roles import (
    COLUMNS,
    TABLES,
    CoordinatorThatChanges,
    CoordinatorThatShowsAnother,
    error_of,
    failed_run,
    field_of,
    flipped,
)


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ({"transform": "bytes-norm"}, "moments.HiddenTotal"),
        ({"transform": "target", "target": "y"}, "target.HiddenTotal"),
        ({"transform": "mod-norm"}, "sizes.Total"),
    ],
    ids=["bytes-norm", "target", "mod-norm"],
)
def test_different_sums_are_a_disagreement(federation: Federation, step: dict[str, Any], kind: str) -> None:
    """At the end of the run, before anything is encoded with them."""
    liar = CoordinatorThatShowsAnother("north", kind, field_of("elements", flipped))
    error, ended = failed_run(federation, liar, job(SITES, COLUMNS, **step), TABLES)
    assert isinstance(error, Disagreement)
    assert "was shown another value" in str(error)
    assert set(ended) <= {COORDINATOR}, "nothing is released"


def test_a_forged_length_gets_no_sums(federation: Federation) -> None:
    """A coordinator that says texts are shorter than they are would have sums run over."""
    tables = {**TABLES, "north": CategorySource({"a": ["n" * 200]})}
    nobody = field_of("bits", lambda bits: bytes(len(bits)))
    error = error_of(federation, CoordinatorThatChanges("length.1.Answers", nobody), tables, transform="bytes-norm")
    assert isinstance(error, BadMessage)
    assert "below what north holds" in str(error)
