"""What an opened message shows, and to whom: one object for the wire, the approval page, the policy and the report.

A Reveal names a scope of slots and says what their opening shows. A channel sends and takes messages that open
something only under a Reveal, and notes it in the job's ledger when it does: so no line of a report can part from the
message it speaks of, and nothing can be opened that no line speaks of.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from commonscale.errors import Unplanned

Audience = Literal["everyone", "everyone and observers", "sites", "coordinator", "last site"]

# Messages that show somebody something of the data, or of who takes part. A test goes through all messages of the
# wire: each is here, or named there as one that shows nothing.
OPENING = frozenset({
    "Answers", "Attendance", "ClassIdentifiers", "HiddenTotal", "Hits", "KeyOffer", "Known", "Layout", "Lost",
    "ModelHash", "Opened", "Plain", "Plains", "PsiAnswer", "Published", "RingOffsets", "RingTotals", "Roster",
    "ShareTables", "Signed", "Tokens", "Total", "Unblinding",
})  # fmt: skip

# By these a site lets the coordinator open something, whether or not it then announces it.
CONTRIBUTING = frozenset({"DecryptShare", "MaskedVector", "PartialSum"})


@dataclass(frozen=True)
class Reveal:
    """One line of a disclosure report, and the scope of the messages that it is about."""

    scope: str
    what: str
    to: Audience = "everyone"

    def names(self, sites: Sequence[str]) -> list[str]:
        """Who learns it."""
        return {
            "everyone": ["coordinator", "analyst", *sites],
            "everyone and observers": ["coordinator", "analyst", "observers", *sites],
            "sites": list(sites),
            "coordinator": ["coordinator"],
            "last site": list(sites[-1:]),
        }[self.to]


class Ledger:
    """What was opened in a job so far: each Reveal once per run, in order."""

    def __init__(
        self, allowed: Callable[[str], Collection[Reveal]] | None = None, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.opened: dict[tuple[str, Reveal], None] = {}
        self._allowed = allowed
        self._changed = changed

    def check(self, run: str, reveal: Reveal) -> None:
        """Raise Unplanned where a run is about to open what its plan, which was approved, does not say."""
        if self._allowed is not None and reveal not in self._allowed(run):
            raise Unplanned(
                f"{run} would reveal what its plan does not name: {reveal.what}.", "This is a fault of the software."
            )

    def note(self, run: str, reveal: Reveal) -> None:
        """Something was opened."""
        if (run, reveal) not in self.opened:
            self.opened[run, reveal] = None
            self._changed()

    def of(self, run: str) -> list[Reveal]:
        """What one run has opened."""
        return [reveal for opened_in, reveal in self.opened if opened_in == run]
