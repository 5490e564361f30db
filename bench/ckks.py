"""Table IV of the normalization paper: every micro-operation, collectively, over real processes and mTLS."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.ckks_operations import OPERATIONS
from bench.ppf import write_tables
from bench.usage import finished_job
from commonscale.cli.console import run
from commonscale.localnet import ENCRYPTION, LocalFederation

RINGS = {11: "test", 14: "standard", 15: "high-latency"}
# Tables IV, IX, X and XI (ring 2^15, 6 cores, no network), in seconds.
PAPER: dict[int, tuple[float | None, ...]] = {
    10: (0.00967, 0.13871, 5.50703, 1.90893, 0.05928, 0.00173, 0.17377, 0.82534, 0.53663, 12.79085, None, 30.13578),
    20: (0.00967, 0.23304, 10.05285, 3.40775, 0.05928, 0.00173, 0.17377, 1.42371, 0.94949, 15.48616, None, 43.26914),
    30: (0.00967, 0.34294, 13.70395, 5.24426, 0.05928, 0.00173, 0.17377, 2.05137, 1.35774, 18.91446, None, 56.87770),
    50: (0.00967, 0.56772, 22.48637, 8.13307, 0.05928, 0.00173, 0.17377, 3.26324, 2.22426, 22.47576, None, 86.61877),
}


def measure(directory: Path, *, parties: int, ring: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row per operation."""
    data, _ = write_tables(directory, parties, ["x"], 20)
    entry = [sys.executable, "-m", "bench.ckks_daemon"]
    entries = {"coordinator": [*entry, "coordinator"], **{site: [*entry, "participant"] for site in data}}
    say(f"starting {parties + 1} daemons")
    policies = dict.fromkeys(data, ENCRYPTION)
    with LocalFederation(directory, data, entry=entries, policies=policies) as federation:
        for what in ("warming up", "measuring"):
            say(f"{what}, {parties} sites, ring 2^{ring}")
            times = run(lambda: _times(federation, ring))
    paper = PAPER.get(parties, (None,) * len(OPERATIONS))
    return [
        {
            "operation": operation,
            "parties": parties,
            "ring": ring,
            "wall_s": round(wall, 5),
            "paper_s": reported,
            "times_faster_than_paper": round(reported / wall, 1) if reported else None,
        }
        for operation, wall, reported in zip(OPERATIONS, times, paper, strict=True)
    ]


async def _times(federation: LocalFederation, ring: int) -> list[float]:
    step = {"transform": "quantiles", "columns": ["x"], "method": "ckks", "ckks": {"profile": RINGS[ring]}}
    job = await finished_job(federation, step)
    times: list[float] = job.result[0]["values"][0]
    return times
