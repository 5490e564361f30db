"""Common identifiers of categorical columns: bounds, one of the protocols that find equal values, and the layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonscale.channel import Channel
from commonscale.errors import BadMessage
from commonscale.protocols.categories import labeled, layout, matching, ring, set_bounds, threshold
from commonscale.protocols.categories.items import Identifiers, Values
from commonscale.protocols.categories.layout import Layout, Public, Remembered, Wish


@dataclass(frozen=True)
class Options:
    """What a step says of its identifiers; the same at all roles."""

    variant: str
    max_categories: int
    padding: int
    threshold: int
    general: bool
    both_directions: bool
    wish: Wish
    # Of variant "apsi".
    backend: str = "openfhe"


async def party(ch: Channel, values: Values, options: Options, remembered: Remembered | None = None) -> Layout:
    """Role of a site."""
    if options.variant == "ring":
        allocation = await ring.party(ch.scope("ring"), values.columns, values.sizes, options.padding)
        return await layout.party(ch, values, allocation.mine, allocation.sizes, options.wish)
    bounds = await set_bounds.party(ch.scope("bounds"), values.columns, values.sizes, options.max_categories)
    _check_bounds(ch, values, bounds)
    if options.variant == "oprf":
        positions = await matching.party(ch.scope("match"), values, bounds)
    else:
        positions = await _merged(ch, values, bounds, options)
    return await layout.party(ch, values, positions, _domains(ch, bounds, options), options.wish, remembered)


async def coordinator(ch: Channel, columns: Sequence[str], options: Options) -> Public:
    """Role of the coordinator."""
    if options.variant == "ring":
        return await layout.coordinator(ch, [], options.wish)
    bounds = await set_bounds.coordinator(ch.scope("bounds"), columns, options.max_categories)
    if options.variant == "oprf":
        await matching.coordinator(ch.scope("match"), bounds)
    elif options.variant == "otmppsi":
        await threshold.coordinator(ch.scope("psi"), sum(bounds), options.threshold)
    return await layout.coordinator(ch, _domains(ch, bounds, options), options.wish)


async def _merged(ch: Channel, values: Values, bounds: Sequence[int], options: Options) -> list[Identifiers]:
    """Identifiers from the ring, and for values that others before me hold, theirs."""
    allocation = await ring.party(ch.scope("ring"), values.columns, values.sizes, options.padding)
    if any(size > domain for size, domain in zip(allocation.sizes, _domains(ch, bounds, options), strict=True)):
        raise BadMessage(f"The sites took more identifiers in {ch.run} than the public bounds allow.")
    own = np.concatenate(allocation.mine)
    if options.variant == "apsi":
        found = await labeled.party(
            ch.scope("psi"), values, own, sum(bounds),
            both_directions=options.both_directions, backend=options.backend,
        )  # fmt: skip
    else:
        found = await threshold.party(
            ch.scope("psi"), values, own, sum(bounds), options.threshold, general=options.general
        )
    for column, domain in zip(values.split(found), _domains(ch, bounds, options), strict=True):
        if (column >= domain).any() or len(np.unique(column)) != len(column):
            raise BadMessage(f"A site gave out an identifier in {ch.run} that cannot be: too large, or for two values.")
    return values.split(found)


def _domains(ch: Channel, bounds: Sequence[int], options: Options) -> list[int]:
    """How many positions a column has: public, and more than are used."""
    each = 0 if options.variant == "oprf" else options.padding
    return [len(ch.parties) * (bound + each) for bound in bounds]


def _check_bounds(ch: Channel, values: Values, bounds: Sequence[int]) -> None:
    """A coordinator that says a lower bound than there are values gets none of them."""
    for column, size, bound in zip(values.columns, values.sizes, bounds, strict=True):
        if size > bound:
            raise BadMessage(
                f"The bound of column {column!r} in {ch.run} is below what {ch.me} asked for.",
                "The coordinator is faulty or dishonest; nothing was sent.",
            )
