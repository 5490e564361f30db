"""What `describe` says of columns: pandas' and numpy's own numbers for the pooled table."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonscale.channel.slot import COORDINATOR
from commonscale.plan import plan_of
from commonscale.statistics.histograms import BINS
from commonscale.transforms.describe import Describe
from tests.protocol.test_normalizers import SITES, pooled, run
from tests.protocol.test_preprocessors import SIZES, tables_of


def described(directory: Path, tables: dict[str, np.ndarray], **options: Any) -> dict[str, Any]:
    return run(directory, tables, transform="describe", **options)[COORDINATOR].parameters()


@settings(max_examples=20)
@given(sizes=SIZES, seed=st.integers(0, 2**32), bins=st.integers(0, 20))
def test_numbers_are_those_of_pandas(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int], seed: int, bins: int
) -> None:
    """Ranks to the last bit, and every bin; of columns of every kind, with gaps."""
    # Sums beyond 1e38 are refused.
    tables = {site: np.delete(table, 5, axis=1) for site, table in tables_of(sizes, seed, gaps=0.2).items()}
    found, frame = described(tmp_path_factory.mktemp("d"), tables, bins=bins), pd.DataFrame(pooled(tables))
    expected = frame.describe()
    assert found["rows"] == len(frame)
    assert found["count"] == frame.count().tolist()
    np.testing.assert_allclose(found["missing"], frame.isna().mean())
    for name, row in (("min", "min"), ("max", "max")):
        np.testing.assert_array_equal(np.array(found[name], dtype=float), expected.loc[row])
    size = frame.abs().max().fillna(0) + 1e-30
    for name, row in (("lower", "25%"), ("median", "50%"), ("upper", "75%"), ("mean", "mean"), ("sd", "std")):
        ours = np.array(found[name], dtype=float)
        assert (np.isnan(ours) == expected.loc[row].isna()).all()
        assert (np.abs(ours - expected.loc[row]).fillna(0) <= 1e-9 * size).all()
    for at, column in enumerate(frame):
        present = frame[column].dropna()
        if bins and len(present):
            counts, edges = np.histogram(present, bins=bins)
            np.testing.assert_array_equal(found["edges"][at], edges)
            assert found["histogram"][at] == counts.tolist()
        elif bins:
            assert found["histogram"][at] == []


def test_without_extremes_nothing_shows_them(tmp_path: Path) -> None:
    """Quartiles alone, and no bins, whose edges would be the extremes."""
    tables = tables_of(dict.fromkeys(SITES, 20), 3)
    tables = {site: table[:, :3] for site, table in tables.items()}
    found = described(tmp_path, tables, extremes=False)
    assert not {"min", "max"} & found.keys()
    assert found["edges"] == found["histogram"] == []
    assert BINS not in plan_of(Describe(columns=["a"], extremes=False), 3).all_reveals
    assert BINS in plan_of(Describe(columns=["a"]), 3).reveals
