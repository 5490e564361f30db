"""Coordinators and sites that attack bounds and layouts (commonscale.statistics.identifiers and .layout)."""

from collections.abc import Sequence

import numpy as np
import pytest

from commonscale.categories import TextRules
from commonscale.hidden import HIDDEN
from commonscale.running import RunningPool
from commonscale.statistics import layout
from commonscale.v1 import protocols_pb2 as wire
from crypto.rings import FIELD61
from tests.federation import CategorySource
from tests.misbehaving.roles import (
    CoordinatorThatChanges,
    CoordinatorThatShowsAnother,
    SiteThatChanges,
    field_of,
    flipped,
)


def rolled(raw: bytes) -> bytes:
    """Position for position, one that is in use is no more, or one is that was not."""
    return FIELD61.to_bytes(np.roll(FIELD61.from_bytes(raw, len(raw) // FIELD61.element_bytes), 1))


class CoordinatorThatShowsOtherSumsInUse(CoordinatorThatShowsAnother):
    """To one site."""

    def __init__(self, site: str) -> None:
        super().__init__(site, "in-use.HiddenTotal", field_of("elements", rolled))


class CoordinatorThatShowsOtherSumsAndComparesNothing(CoordinatorThatShowsOtherSumsInUse):
    """And does not mind different layouts afterwards."""

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Its comparison."""

        async def careless(pool: RunningPool) -> layout.Layout:
            ch = pool.ch.under(layout.SIZES)
            gathered = await ch.gather(wire.Layout)
            await ch.broadcast(wire.Confirmations(confirmations=[m.confirmation for m in gathered.values()]))
            return layout.Layout((), (), b"", HIDDEN)

        patch.setattr(layout, "_compared", careless)


class CoordinatorThatShowsOtherBounds(CoordinatorThatShowsAnother):
    """To one site: answers of the search for them."""

    def __init__(self, site: str, bits: bytes) -> None:
        super().__init__(site, "bounds.1.Answers", field_of("bits", lambda _: bits))


class CoordinatorThatForgesBounds(CoordinatorThatChanges):
    """For all sites alike."""

    def __init__(self, bits: bytes) -> None:
        super().__init__("bounds.1.Answers", field_of("bits", lambda _: bits))


class SiteThatSharesTwoGroupKeys(SiteThatChanges):
    """A first site that gives one site another key than the others."""

    def __init__(self, site: str, *, to: str) -> None:
        super().__init__(site, "GroupKey", field_of("key", flipped), to=to)


class SiteThatSharesAShortGroupKey(SiteThatChanges):
    """A first site whose key has half of its bytes."""

    def __init__(self, site: str) -> None:
        super().__init__(site, "GroupKey", field_of("key", lambda key: key[:16]))


class SiteThatExaggerates(CategorySource):
    """A site's table that says it has every value a thousand times as often."""

    def categories(self, columns: Sequence[str], rules: TextRules) -> list[dict[str | None, int]]:
        return [{text: 1000 * n for text, n in column.items()} for column in super().categories(columns, rules)]
