"""How long a test waits for what must happen: it measures no time, and only ends what would never end by itself."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 180

T = TypeVar("T")


def eventually(look: Callable[[], T], holds: Callable[[T], bool] = bool, pause_s: float = 0.05) -> T:
    """The first answer that holds. What a page shows may be half a second old; other processes take their time."""
    stop = time.monotonic() + PATIENCE_S
    while not holds(answer := look()):
        assert time.monotonic() < stop, f"not within {PATIENCE_S} s, at last: {answer}"
        time.sleep(pause_s)
    return answer
