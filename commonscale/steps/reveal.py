"""What a message reveals, and to whom, for the disclosure report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Audience = Literal["everyone", "sites", "coordinator", "first site", "last site"]


@dataclass(frozen=True)
class Reveal:
    """One line of the report."""

    what: str
    to: Audience = "everyone"

    def names(self, sites: list[str]) -> list[str]:
        """Who learns it."""
        found = {
            "everyone": ["coordinator", "analyst", *sites],
            "sites": sites,
            "coordinator": ["coordinator"],
            "first site": sites[:1],
            "last site": sites[-1:],
        }
        return list(found[self.to])
