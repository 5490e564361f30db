"""A daemon whose `quantiles` step measures the operations of threshold CKKS.

python -m bench.ckks_daemon participant|coordinator --config …
"""

from typing import ClassVar

import numpy as np

from bench.ckks_operations import OPERATIONS, measured
from commonscale.cli import main
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.running import RunningPool
from commonscale.statistics.quantiles import Quantiles as FoundQuantiles
from commonscale.transforms.describe import Quantiles
from commonscale.v1.protocols_pb2 import Opened


class MeasuredOperations(Quantiles):
    """Takes the place of `quantiles` in a process that imports it, by registering under that name.

    So an analyst's software, which knows nothing of it, can submit it. The seconds come out as the quantiles.
    """

    NUMBERS: ClassVar[Reveal] = Reveal("numbers", "sums of random numbers, the same at every site")
    SECONDS: ClassVar[Reveal] = Reveal("seconds", "the seconds of every operation at the coordinator")

    async def fit(self, pool: Pool) -> FoundQuantiles:
        """One row of seconds."""
        if isinstance(pool, RunningPool):
            seconds = await self._announced(pool, await measured(pool, self.ckks, self.NUMBERS))
        else:
            # A plan, for the sites' policies: what is opened stands in the class.
            async with pool.circuit(self.ckks, "comparison"):
                seconds = np.zeros(len(OPERATIONS))
        return FoundQuantiles((0,), seconds.reshape(1, -1))

    async def _announced(self, pool: RunningPool, seconds: list[float]) -> Floats:
        """The coordinator's, for all."""
        ch = pool.ch.under(self.SECONDS)
        if ch.is_coordinator:
            await ch.broadcast(Opened(numbers=np.array(seconds).tobytes()))
            return np.array(seconds)
        return np.frombuffer((await ch.recv_broadcast(Opened)).numbers, "<f8")


if __name__ == "__main__":
    main()
