"""What a secure sum costs a site in arithmetic: encode, mask for all peers, decode; in each ring, on one core."""

import secrets
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from crypto import checks, fixed_point, masks, small_numbers
from crypto.fixed_point import Floats
from crypto.rings import FIELD61, Z256, Ring, Vector

# As for model vectors: six decimals, and sums up to 1e11.
SMALL_FRACTION_BITS = 20
CONTEXT = b"bench"


def measure(*, values: int, peers: int, repeats: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row per ring: medians in seconds; where CPU time is the lower one, the core had other work too."""
    numbers = np.random.default_rng(7).standard_normal(values) * 1000
    say("the small ring")
    small = _measure(
        FIELD61,
        lambda: small_numbers.encode_small(numbers, fraction_bits=SMALL_FRACTION_BITS, addends=peers + 1),
        lambda vector: small_numbers.decode_small(vector, fraction_bits=SMALL_FRACTION_BITS),
        peers,
        repeats,
    )
    key, vector = secrets.token_bytes(32), FIELD61.random(values)
    small["check_s"] = _median(lambda: checks.linear(vector, key, CONTEXT), repeats)
    say("256 bits")
    large = _measure(
        Z256,
        lambda: fixed_point.encode(numbers, addends=peers + 1, spread=secrets.token_bytes),
        fixed_point.to_floats,
        peers,
        repeats,
    )
    common = {"values": values, "peers": peers}
    return [{"ring": "field61", **common, **small}, {"ring": "z256", **common, **large}]


def _measure(
    ring: Ring, encode: Callable[[], Vector], decode: Callable[[Vector], Floats], peers: int, repeats: int
) -> dict[str, Any]:
    # Half of the peers come before me, as on average.
    pair_keys = {f"{number:03}": secrets.token_bytes(32) for number in range(peers)}
    me = f"{peers // 2:03}+"
    vector = encode()
    # Repeated in turn, so that other work on the machine hits all of them alike.
    steps: dict[str, Callable[[], object]] = {
        "encode_s": encode,
        "mask_s": lambda: masks.apply(ring, vector, me, pair_keys, CONTEXT),
        "decode_s": lambda: decode(vector),
    }
    seconds: dict[str, list[float]] = {name: [] for name in (*steps, "total_s", "cpu_s")}
    for _ in range(repeats):
        start = time.process_time()
        for name, step in steps.items():
            seconds[name].append(_seconds(step))
        seconds["cpu_s"].append(time.process_time() - start)
        seconds["total_s"].append(sum(seconds[name][-1] for name in steps))
    return {name: round(statistics.median(found), 4) for name, found in seconds.items()}


def _median(step: Callable[[], object], repeats: int) -> float:
    return round(statistics.median(_seconds(step) for _ in range(repeats)), 4)


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
