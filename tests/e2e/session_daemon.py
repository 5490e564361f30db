"""A daemon whose `quantiles` step is a session of sums: many rounds over one roster, and nothing of the data.

SESSION=rounds,length,every python -m tests.e2e.session_daemon participant|coordinator --config …
"""

import os
from typing import ClassVar

from commonscale.cli import main
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.statistics.quantiles import Quantiles as Found
from commonscale.transforms.describe import Quantiles
from tests import sessions


class SessionOfSums(Quantiles):
    """Takes the place of `quantiles` in a process that imports it; a hash of all totals comes out as the quantiles."""

    TOTAL: ClassVar[Reveal] = sessions.TOTAL
    MORE: ClassVar[Reveal] = sessions.MORE

    async def fit(self, pool: Pool) -> Found:
        """All roles."""
        rounds, length, every = map(int, os.environ["SESSION"].split(","))
        state = await sessions.sums_in_rounds(pool, rounds, length, every)
        return Found((0,), sessions.as_numbers(state))


if __name__ == "__main__":
    main()
