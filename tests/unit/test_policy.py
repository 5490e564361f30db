"""A site's policy refuses with a reason, and with nothing of the data."""

from __future__ import annotations

import pytest

from commonscale.config import Policy
from commonscale.errors import Refused
from commonscale.pipeline import Pipeline
from participant import policy

JOB = Pipeline.model_validate({"sites": ["a", "b", "c"], "steps": [{"columns": ["age", "lab_k"], "sums": "shares"}]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns": ["age"]}, "column 'lab_k'"),
        ({"transforms": ["minmax"]}, "transform 'zscore'"),
        ({"sums": ["masks"]}, "sums by 'shares'; allowed: masks"),
        ({"analysts": ["trusted-*"]}, "analyst 'someone'"),
        ({"min_sites": 4}, "at least 4 sites"),
    ],
)
def test_it_says_what_it_does_not_allow(changes: dict[str, object], words: str) -> None:
    """Each rule by itself."""
    with pytest.raises(Refused, match=words):
        policy.check_request(Policy.model_validate(changes), JOB, "someone")


def test_patterns_allow() -> None:
    """As of a shell."""
    policy.check_request(Policy(columns=["age", "lab_*"], analysts=["some*"]), JOB, "someone")


def test_too_few_rows_are_not_counted_out_loud() -> None:
    """The reason holds the minimum, not the number of rows."""
    with pytest.raises(Refused) as caught:
        policy.check_rows(Policy(min_rows=1000), 789)
    assert "1000" in str(caught.value)
    assert "789" not in str(caught.value)
