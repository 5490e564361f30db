"""Common identifiers of categorical columns: public bounds, a method that finds equal values, and the layout.

1. A public bound of how many values a site may have in each column: declared, or the smallest power of two that no
   site's number exceeds. Every site's set is filled up to it.
2. A method: **oprf** (protocols.psi.matching), **apsi** and **apsi-native** (labeled), **otmppsi** (threshold); or
   **ring** alone, which gives the same value another identifier at every site.
3. The layout that all sites end with (statistics.layout).

Reveals: the bounds, to everyone; and what the method and the layout say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from commonscale.concurrency import offload
from commonscale.config import Section
from commonscale.errors import BadMessage, TooManyCategories
from commonscale.hidden import HIDDEN, Hidden, known
from commonscale.names import JOB_ID_PATTERN
from commonscale.protocols.psi import labeled, matching, ring, threshold
from commonscale.protocols.psi.items import Identifiers, Values
from commonscale.reveal import Reveal
from commonscale.sources.queries import MOST_VALUES, Frequencies
from commonscale.statistics.layout import COUNTS, IN_USE, KNOWN, NUMBERS, SIZES, Layout, Remembered, lay_out
from commonscale.statistics.search import power_above

if TYPE_CHECKING:
    from commonscale.running import RunningPool

# The smallest bound that is found.
LEAST = 16

BOUNDS = Reveal("bounds", "a power of two that no site's number of values in each column exceeds")


class IdentifierOptions(Section):
    """What a step says of its identifiers; see docs/protocols/categories.md."""

    # "oprf" is the quickest; "apsi" shows the coordinator nothing; "otmppsi" only merges what `threshold` sites hold;
    # "ring" gives the same value another identifier at every site.
    method: Literal["oprf", "apsi", "apsi-native", "otmppsi", "ring"] = "oprf"
    # The most values of a site in a column. 0: the sites find a power of two privately.
    max_categories: int = Field(default=0, ge=0, le=MOST_VALUES)
    # Identifiers that a site takes beyond its values in the ring, at most.
    padding: int = Field(default=16, ge=0, le=1 << 16)
    threshold: int = Field(default=2, ge=2, le=1000)
    general: bool = False
    both_directions: bool = False
    extends: str = Field(default="", pattern=rf"^$|^{JOB_ID_PATTERN.pattern}$")
    min_frequency: int = Field(default=0, ge=0, le=1 << 40)

    @model_validator(mode="after")
    def _options_fit(self) -> IdentifierOptions:
        of_method = {
            "otmppsi": {"threshold": self.threshold != 2, "general": self.general},
            "apsi": {"both_directions": self.both_directions},
        }
        for method, options in of_method.items():
            for option, given in options.items():
                if given and self.method.removesuffix("-native") != method:
                    raise ValueError(f"{option} is an option of method {method!r} only")
        if self.method == "ring" and (self.min_frequency or self.extends):
            raise ValueError("a ring alone knows no common values: min_frequency and extends need another method")
        if self.min_frequency and self.extends:
            raise ValueError("a job that extends another keeps its identifiers: leave out min_frequency")
        if self.threshold > 2 and self.extends:
            raise ValueError("with a threshold above 2 one value has several identifiers: nothing can be extended")
        return self

    def reveals(self) -> list[Reveal]:
        """What a run shows, and to whom."""
        if self.method == "ring":
            return [ring.REVEALS, SIZES]
        found = [SIZES, COUNTS if self.min_frequency else IN_USE]
        if self.extends:
            found += [KNOWN, NUMBERS]
        if not self.max_categories:
            found = [BOUNDS, *found]
        if self.method == "oprf":
            return [matching.REVEALS, *found]
        if self.method == "otmppsi":
            return [ring.REVEALS, *threshold.reveals(self.threshold), *found]
        return [ring.REVEALS, labeled.REVEALS_BOTH if self.both_directions else labeled.REVEALS, *found]

    @property
    def methods(self) -> set[str]:
        """What a site's policy must allow: bounds and layouts are found by masks."""
        return {self.method} if self.method == "ring" else {self.method, "masks"}


async def identify(pool: RunningPool, query: Frequencies, options: IdentifierOptions) -> Layout:
    """All roles: common identifiers of what the query asks for."""
    values, remembered = await _own_values(pool, query, options)
    sites, padding = len(pool.sites), options.padding
    positions: Identifiers | Hidden
    domains: Sequence[int]
    if options.method == "ring":
        most = [sites * (MOST_VALUES + padding)] * len(query.columns)
        positions, domains = await ring.allocate(pool.ch, values, padding, most)
    else:
        bounds = await _bounds(pool, query, options, values)  # 1.
        # How many positions a column has: public, and more than are used.
        domains = [sites * (bound if options.method == "oprf" else bound + padding) for bound in bounds]
        if options.method == "oprf":  # 2.
            positions = await matching.match(pool.ch, values, bounds)
        else:
            positions = await _merged(pool, options, values, sum(bounds), domains)
    return await lay_out(pool, values, positions, domains, options, remembered)  # 3.


async def _own_values(
    pool: RunningPool, query: Frequencies, options: IdentifierOptions
) -> tuple[Values | Hidden, Remembered | None]:
    """A site's values, if they are not too many, and what it remembers of the job that is extended."""
    answer, remembered = pool.ask(query), None
    if pool.ch.is_coordinator:
        return HIDDEN, None
    found = await offload(answer)
    if options.extends:
        remembered = await offload(pool.keepsakes.remembered, options.extends, query.columns, query.rules)
    if remembered is not None:
        # What is gone from the table keeps its identifier, and is still compared.
        both = zip(remembered.dictionaries, found, strict=True)
        found = [dict.fromkeys(dictionary.values, 0) | dict(column) for dictionary, column in both]
    most = MOST_VALUES if options.method == "ring" else options.max_categories or MOST_VALUES
    for name, column in zip(query.columns, found, strict=True):
        if len(column) > most:
            raise TooManyCategories(
                f"{pool.me}: column {name!r} has more than {most:,} different values.",
                "Declare a larger max_categories." if most < MOST_VALUES else "It is hardly categorical; leave it out.",
            )
    return Values.of(query.columns, found), remembered


async def _bounds(
    pool: RunningPool, query: Frequencies, options: IdentifierOptions, values: Values | Hidden
) -> list[int]:
    """Step 1."""
    if options.max_categories:
        return [options.max_categories] * len(query.columns)
    bounds = await power_above(
        pool, BOUNDS, len(query.columns), lambda: [max(size, LEAST) for size in known(values).sizes]
    )
    if any(not LEAST <= bound <= MOST_VALUES for bound in bounds):
        raise BadMessage(
            "What the sites sent gives no bound that any of them may ask for.", "A site sent a damaged message."
        )
    if not isinstance(values, Hidden):
        for column, size, bound in zip(values.columns, values.sizes, bounds, strict=True):
            if size > bound:
                raise BadMessage(
                    f"The bound of column {column!r} in {pool.ch.run} is below what {pool.me} asked for.",
                    "The coordinator is faulty or dishonest; nothing was sent.",
                )
    return bounds


async def _merged(
    pool: RunningPool, options: IdentifierOptions, values: Values | Hidden, bound: int, domains: Sequence[int]
) -> Identifiers | Hidden:
    """Step 2: identifiers from the ring, and for values that others before me hold, theirs."""
    own, _ = await ring.allocate(pool.ch, values, options.padding, domains)
    if options.method == "otmppsi":
        merged = await threshold.merge(pool.ch, values, own, bound, options.threshold, general=options.general)
    else:
        native, both = options.method == "apsi-native", options.both_directions
        merged = await labeled.merge(pool.ch, values, own, bound, both_directions=both, native=native)
    if not isinstance(merged, Hidden):
        for column, domain in zip(known(values).split(merged), domains, strict=True):
            if (column >= domain).any() or len(np.unique(column)) != len(column):
                raise BadMessage(
                    f"A site gave out an identifier in {pool.ch.run} that cannot be: too large, or for two values."
                )
    return merged
