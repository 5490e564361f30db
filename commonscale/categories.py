"""Categorical values as texts that are the same at every site, and a site's dictionary of them.

Two sites mean the same category if their canonical texts are equal:
- Unicode in NFC, so that "é" is one value however it was typed;
- without white space around it; inner white space stays;
- upper and lower case are different, unless the step says `casefold`;
- "true" and "false" are the same in any case;
- a plain decimal number loses its trailing zeros: 1, 1.0 and "1.00" are "1"; "007" and "1e5" are texts and stay;
- an empty text is a missing value, and missing is a category of its own (None).
"""

import datetime as dt
import math
import re
import unicodedata
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")


@dataclass(frozen=True)
class TextRules:
    """What does not make two values different."""

    strip: bool = True
    casefold: bool = False


DEFAULT_RULES = TextRules()


def canonical(value: Any, rules: TextRules = DEFAULT_RULES) -> str | None:
    """The text under which sites compare a value; None if it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    text = unicodedata.normalize("NFC", _text(value))
    if rules.strip:
        text = text.strip()
    if rules.casefold:
        # Folding may undo the normal form.
        text = unicodedata.normalize("NFC", text.casefold())
    if not text:
        return None
    if text.lower() in ("true", "false"):
        return text.lower()
    return _plain_number(text) if _DECIMAL.fullmatch(text) else text


def text_integer(text: str) -> int:
    """int(bytes(x)): a canonical text in UTF-8, read as one big-endian integer."""
    return int.from_bytes(text.encode(), "big")


def _text(value: Any) -> str:
    """A cell as text; numbers without an exponent."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value):
        return f"{Decimal(repr(value)):f}"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.datetime):
        # As files mostly have it: 2020-01-02 03:04:05; with a time zone, as UTC.
        return str(value.astimezone(dt.timezone.utc).replace(tzinfo=None) if value.tzinfo else value)
    # A lone surrogate has no UTF-8 form.
    return str(value).encode("utf-8", "replace").decode()


def _plain_number(text: str) -> str:
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    number = f"{whole}.{fraction}" if fraction else whole
    return "0" if number == "-0" else number


@dataclass(frozen=True)
class Dictionary:
    """One column at one site: the values that it holds, with identifiers that mean the same at all sites."""

    # Canonical texts; None is the missing value.
    values: tuple[str | None, ...] = field(repr=False)
    identifiers: tuple[int, ...] = field(repr=False)
    # Identifiers are 0 … size - 1, over all sites.
    size: int
    # Identifiers whose values are rare at all sites together: they share one.
    infrequent: tuple[int, ...] = ()
