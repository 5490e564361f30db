"""What steps end with: as JSON, as a table for a person, as a fitted estimator on disk."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import sparse

from commonscale.cli.jobs import _step_table
from commonscale.estimators import storage
from commonscale.results import canonical_json
from commonscale.statistics.extremes import Extremes
from commonscale.statistics.moments import Moments
from commonscale.statistics.power import Powers
from commonscale.statistics.quantiles import Quantiles as FittedQuantiles
from commonscale.transforms import Transform
from commonscale.transforms.describe import Describe, Description, Quantiles
from commonscale.transforms.discretize import KBins
from commonscale.transforms.power import Power
from commonscale.transforms.scaling import MaxAbs, MinMax, Robust, ZScore

COLUMNS = ["age", "weight"]
EXTREMES = Extremes(np.array([1.5, np.nan]), np.array([2.5, np.nan]))
AFTER = Moments(tuple(COLUMNS), (3, 3), (1.0, 2.0), (1.0, 1.0))
YEO_JOHNSON = Powers(np.array([0.5, 1.0]), (False, True), AFTER)
RESULTS: dict[str, tuple[Transform, Any]] = {
    "zscore": (ZScore(columns=COLUMNS), Moments(tuple(COLUMNS), (3, 4), (1.5, 2.5), (1.0, 0.0))),
    "zscore-ckks": (ZScore(columns=COLUMNS, method="ckks"), Moments(tuple(COLUMNS), None, (1.5, 2.5), (1.0, 0.0))),
    "minmax": (MinMax(columns=COLUMNS), (EXTREMES, "search", "asked for")),
    "maxabs": (MaxAbs(columns=COLUMNS), (EXTREMES, "tree", "asked for")),
    "robust": (
        Robust(columns=COLUMNS),
        FittedQuantiles((3, 0), np.array([[1.0, 1.5, 2.0], [np.nan] * 3])),
    ),
    "quantiles": (
        Quantiles(columns=COLUMNS, quantiles=(0.5, 0.9)),
        FittedQuantiles((3, 0), np.array([[1.5, 2.0], [np.nan] * 2])),
    ),
    "describe": (
        Describe(columns=COLUMNS, bins=2),
        Description(
            4,
            Moments(tuple(COLUMNS), (3, 0), (2.0, np.nan), (0.5, np.nan)),
            np.array([[1.0, 1.5, 2.0, 2.5, 3.0], [np.nan] * 5]),
            [np.array([1.0, 2.0, 3.0]), np.empty(0)],
            [np.array([1, 2], dtype=np.uint64), np.empty(0, dtype=np.uint64)],
        ),
    ),
    "describe-no-extremes": (
        Describe(columns=COLUMNS, extremes=False),
        Description(4, Moments(tuple(COLUMNS), (3, 1), (2.0, 1.0), (0.5, 0.0)), np.ones((2, 3)), (), ()),
    ),
    "kbins": (KBins(columns=COLUMNS), [np.array([1.0, 2.0, 3.0]), np.array([-np.inf, np.inf])]),
    "power": (Power(columns=COLUMNS, standardize=False), YEO_JOHNSON),
    "power-standardized": (Power(columns=COLUMNS), YEO_JOHNSON),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_can_be_shown_and_sent(name: str) -> None:
    """As canonical JSON, and as a table with every column in it."""
    step, fitted = RESULTS[name]
    parameters = json.loads(canonical_json(step.parameters(fitted)))
    text = io.StringIO()
    Console(file=text, width=200).print(_step_table(0, parameters))
    assert all(column in text.getvalue() for column in COLUMNS)
    assert parameters["transform"] in text.getvalue()


@pytest.mark.parametrize("name", RESULTS)
def test_every_estimator_survives_its_file(name: str, tmp_path: Path) -> None:
    """Saved and loaded without running code from it, it transforms as before; missing values stay missing."""
    step, fitted = RESULTS[name]
    estimator = step.estimator(fitted)
    if estimator is None:
        assert not step.produces
        return
    storage.save(estimator, tmp_path / "x.skops")
    again = storage.load(tmp_path / "x.skops")
    rows = np.array([[1.5, 2.0], [2.0, np.nan if step.takes_missing else 3.0]])
    with np.testing.suppress_warnings() as quiet:
        quiet.filter(UserWarning)
        found, expected = again.transform(rows), estimator.transform(rows)
        if sparse.issparse(found):
            found, expected = found.toarray(), expected.toarray()
        np.testing.assert_array_equal(found, expected)
    assert list(again.feature_names_in_) == COLUMNS
