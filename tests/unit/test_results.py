"""What steps end with: as JSON, as a table for a person, as a fitted estimator on disk."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from commonscale.cli.jobs import _step_table
from commonscale.results import canonical_json
from commonscale.transforms import storage
from commonscale.transforms.moments import Moments
from commonscale.transforms.results import (
    Fitted,
    FittedMaxAbs,
    FittedMinMax,
    FittedQuantiles,
    FittedRobust,
    FittedStandard,
    FittedYeoJohnson,
)

COLUMNS = ("age", "weight")
LOW, HIGH = np.array([1.5, np.nan]), np.array([2.5, np.nan])
RESULTS: list[Fitted] = [
    FittedStandard(Moments(COLUMNS, (3, 4), (1.5, 2.5), (1.0, 0.0))),
    FittedStandard(Moments(COLUMNS, None, (1.5, 2.5), (1.0, 0.0))),
    FittedMinMax(COLUMNS, LOW, HIGH, (0.0, 1.0), False, "search", "asked for"),
    FittedMaxAbs(COLUMNS, HIGH, "tree", "asked for"),
    FittedRobust(COLUMNS, (3, 0), np.array([[1.0, 1.5, 2.0], [np.nan] * 3]), (25.0, 75.0), True, True, False),
    FittedQuantiles(COLUMNS, (3, 0), (0.5, 0.9), np.array([[1.5, 2.0], [np.nan] * 2])),
    FittedYeoJohnson(COLUMNS, np.array([0.5, 1.0]), None),
    FittedYeoJohnson(COLUMNS, np.array([0.5, 1.0]), Moments(COLUMNS, (3, 3), (1.0, 2.0), (1.0, 1.0))),
]


@pytest.mark.parametrize("fitted", RESULTS, ids=lambda fitted: type(fitted).__name__)
def test_every_result_can_be_shown_and_sent(fitted: Fitted) -> None:
    """As canonical JSON, and as a table with every column in it."""
    parameters = json.loads(canonical_json(fitted.parameters()))
    text = io.StringIO()
    Console(file=text, width=200).print(_step_table(0, parameters))
    assert all(column in text.getvalue() for column in COLUMNS)
    assert parameters["transform"] in text.getvalue()


@pytest.mark.parametrize("fitted", RESULTS, ids=lambda fitted: type(fitted).__name__)
def test_every_estimator_survives_its_file(fitted: Fitted, tmp_path: Path) -> None:
    """Saved and loaded without running code from it, it transforms as before; missing values stay missing."""
    estimator = fitted.estimator()
    if estimator is None:
        assert isinstance(fitted, FittedQuantiles)
        return
    storage.save(estimator, tmp_path / "x.skops")
    again = storage.load(tmp_path / "x.skops")
    rows = np.array([[1.5, 2.0], [2.0, np.nan]])
    with np.testing.suppress_warnings() as quiet:
        quiet.filter(UserWarning)
        np.testing.assert_array_equal(again.transform(rows), estimator.transform(rows))
    assert list(again.feature_names_in_) == list(COLUMNS)
