"""What a job ends with, in a form that every party writes alike."""

from __future__ import annotations

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """The same value gives the same text everywhere, so that its hash can be compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
