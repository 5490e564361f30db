"""What a job ends with, in a form that every role writes alike."""

import json
from typing import Any

MAX_TEXT = 1000


# Of a trained model's file in the result of its step, as base64, where the analyst may have it.
MODEL_KEY = "safetensors"


def plain_text(text: str) -> str:
    """A peer's words without control characters, and not endless: fit for a database, a log and a terminal."""
    return "".join(char if char.isprintable() else " " for char in text[:MAX_TEXT])


def canonical_json(value: Any) -> str:
    """The same value gives the same text everywhere, so that its hash can be compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
