"""Bytes-Norm: exact mean and variance of texts read as integers.

Section 7.2 of "Privacy-Preserving Tabular Data Transformation in FL": x_t = int(bytes(x)), then a z-score.
1. A search finds the smallest power of two that the longest text does not exceed, in bytes (see powers).
2. Each site sums 1, x and x² over its rows, exactly; a hidden sum of wide integers adds them up for the sites alone.
3. Mean and variance are fractions; they are rounded once, when a value is encoded.
4. All sites agree on a keyed hash of the sums.

Differs from the paper: one round, because nothing is rounded; the coordinator does not learn the sums.

Reveals: to all sites, counts, sums and sums of squares of each column as integers. **That is not harmless**: the sum is
about the count of the longest texts times their value, and its first digits are the first letters of these texts. A
site thereby reads the beginning of a text that it does not hold. The paper does not see this; sites refuse bytes-norm
unless their policy allows it. To the coordinator, a power of two that the length of the longest text does not exceed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from commonscale.channel import Channel
from commonscale.errors import BadMessage, TooManyCategories
from commonscale.protocols import agreement
from commonscale.protocols.categories import group_key, hidden_sum, powers
from commonscale.transforms.text_encoders import text_integer

_LONGEST_BYTES = 1 << 20
# Room for the squares of 2^63 rows.
_COUNT_BYTES = 8

REVEALS_LENGTH = "a power of two that the longest text does not exceed, in bytes"
REVEALS = "count, mean and variance of the texts of each column as integers; so the first letters of the longest texts"


@dataclass(frozen=True)
class TextMoments:
    """Of one column."""

    mean: Fraction
    variance: Fraction


async def party(ch: Channel, columns: Sequence[str], found: Sequence[Mapping[str | None, int]]) -> list[TextMoments]:
    """Role of a site with these values and how often each occurs."""
    lengths = [max((len(text.encode()) for text in column if text), default=1) for column in found]
    for name, length in zip(columns, lengths, strict=True):
        if length > _LONGEST_BYTES:
            raise TooManyCategories(f"{ch.me}: column {name!r} holds a text of over {_LONGEST_BYTES:,} bytes.")
    (longest,) = await powers.party(ch.scope("length"), [max(lengths)])  # 1.
    key = await group_key.party(ch)
    sums: list[int] = []
    for column in found:  # 2.
        numbers = [(text_integer(text), count) for text, count in column.items() if text is not None]
        sums += [sum(count * x**power for x, count in numbers) for power in (0, 1, 2)]
    if max(sums).bit_length() > 8 * _width(longest):
        raise BadMessage(f"The longest text in {ch.run} is below what {ch.me} holds.", "The coordinator is faulty.")
    totals = await hidden_sum.party_integers(ch.scope("moments"), key, _width(longest), len(sums), sums)
    value = b"".join(total.to_bytes(_width(longest), "big") for total in totals)
    await agreement.party(ch.scope("moments"), group_key.authenticate(key, value))  # 4.
    return [_moments(*totals[at : at + 3]) for at in range(0, len(totals), 3)]  # 3.


async def coordinator(ch: Channel, columns: Sequence[str]) -> None:
    """Role of the coordinator, who learns none of the sums."""
    (longest,) = await powers.coordinator(ch.scope("length"), 1)
    await hidden_sum.coordinator_integers(ch.scope("moments"), _width(longest), 3 * len(columns))
    await agreement.coordinator(ch.scope("moments"))


def _moments(count: int, total: int, squares: int) -> TextMoments:
    if not count:
        return TextMoments(Fraction(0), Fraction(0))
    mean = Fraction(total, count)
    return TextMoments(mean, max(Fraction(squares, count) - mean * mean, Fraction(0)))


def _width(longest: int) -> int:
    if longest > _LONGEST_BYTES:
        raise BadMessage("What the sites sent gives no length that a text may have.", "A site sent a damaged message.")
    return 2 * longest + _COUNT_BYTES
