"""Exact mean and variance of texts read as integers (Bytes-Norm), and model files that all sites have alike (fastText).

Section 7.2 of "Privacy-Preserving Tabular Data Transformation in FL": x_t = int(bytes(x)), then a z-score.
1. A search finds the smallest power of two that the longest text does not exceed, in bytes.
2. Each site sums 1, x and x² over its rows, exactly; a hidden sum of wide integers adds them up for the sites alone.
3. Mean and variance are fractions; they are rounded once, when a value is encoded.

Differs from the paper: one round, because nothing is rounded; the coordinator does not learn the sums.

Reveals: to all sites, counts, sums and sums of squares of each column as integers. **That is not harmless**: the sum is
about the count of the longest texts times their value, and its first digits are the first letters of these texts. A
site thereby reads the beginning of a text that it does not hold. The paper does not see this; sites refuse bytes-norm
unless their policy allows it. To the coordinator, a power of two that the length of the longest text does not exceed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from commonscale.categories import text_integer
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Disagreement, TooManyCategories
from commonscale.hidden import HIDDEN, Hidden
from commonscale.pool import Pool
from commonscale.protocols import agreement
from commonscale.reveal import Reveal
from commonscale.sources.queries import Frequencies, Frequency
from commonscale.statistics.search import power_above
from commonscale.v1.protocols_pb2 import ModelHash
from crypto.rings import Vector, Wide

if TYPE_CHECKING:
    from commonscale.running import RunningPool

_LONGEST_BYTES = 1 << 20
# Room for the squares of 2^63 rows.
_COUNT_BYTES = 8


@dataclass(frozen=True)
class TextMoments:
    """Of one column; they begin with the letters of its longest text."""

    mean: Fraction = field(repr=False)
    variance: Fraction = field(repr=False)


@dataclass(frozen=True)
class ModelFile:
    """A model by its hash; where it is and how long its vectors are, at a site."""

    sha256: str
    path: Path | Hidden = HIDDEN
    dimension: int | Hidden = HIDDEN


async def text_moments(pool: Pool, length: Reveal, moments: Reveal, query: Frequencies) -> list[TextMoments] | Hidden:
    """All roles: the moments of every column, at a site."""
    answer = pool.ask(query)
    (longest,) = await power_above(pool, length, 1, lambda: [_longest(pool, query.columns, answer())])  # 1.
    if longest > _LONGEST_BYTES:
        raise BadMessage("What the sites sent gives no length that a text may have.", "A site sent a damaged message.")
    ring = Wide(2 * longest + _COUNT_BYTES)

    def mine() -> Vector:  # 2.
        sums = [number for column in answer() for number in _sums(column)]
        if max(sums).bit_length() > 8 * ring.element_bytes:
            raise BadMessage(f"The longest text is below what {pool.me} holds.", "The coordinator is faulty.")
        return ring.from_integers(sums)

    total = await pool.add_hidden(moments, ring, 3 * len(query.columns), mine)
    if isinstance(total, Hidden):
        return HIDDEN
    numbers = ring.to_integers(total)
    return [_moments(*numbers[at : at + 3]) for at in range(0, len(numbers), 3)]  # 3.


def _longest(pool: Pool, columns: Sequence[str], found: Sequence[Frequency]) -> int:
    """Of this site's texts, in bytes."""
    lengths = [max((len(text.encode()) for text in column if text), default=1) for column in found]
    for name, length in zip(columns, lengths, strict=True):
        if length > _LONGEST_BYTES:
            raise TooManyCategories(
                f"{pool.me}: column {name!r} holds a text of over {_LONGEST_BYTES:,} bytes.", "Leave it out."
            )
    return max(lengths)


def _sums(column: Frequency) -> list[int]:
    """Sums of 1, x and x² over the rows."""
    numbers = [(text_integer(text), count) for text, count in column.items() if text is not None]
    return [sum(count * x**power for x, count in numbers) for power in (0, 1, 2)]


def _moments(count: int, total: int, squares: int) -> TextMoments:
    if not count:
        return TextMoments(Fraction(0), Fraction(0))
    mean = Fraction(total, count)
    return TextMoments(mean, max(Fraction(squares, count) - mean * mean, Fraction(0)))


async def same_model(pool: RunningPool, reveal: Reveal, name: str) -> ModelFile:
    """All roles: a model file; raises Disagreement where two sites have different ones."""
    ch = pool.ch.under(reveal)
    if ch.is_site:
        model = await offload(pool.keepsakes.model, name)
        digest = bytes.fromhex(model.sha256)
        await ch.deliver(COORDINATOR, ModelHash(sha256=digest))
        await agreement.agree(ch, digest)
        return model
    hashes = {site: message.sha256 for site, message in (await ch.gather(ModelHash)).items()}
    (first, reference), *others = hashes.items()
    for site, digest in others:
        if digest != reference:
            raise Disagreement(
                f"{site} has another file for model {name!r} than {first}.", "Give all sites the same file."
            )
    await agreement.agree(ch, reference)
    return ModelFile(reference.hex())
