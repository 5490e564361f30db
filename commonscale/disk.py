"""Room on the disks that a daemon writes to: told before it is gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from commonscale.errors import StoreUnavailable
from commonscale.metrics import DISK_FREE

# With less, the next job may have to wait.
LEAST_BYTES = 32 << 20


def check_room(paths: Iterable[Path]) -> None:
    """Note how much is free; raise where it is too little."""
    free = {path: shutil.disk_usage(path).free for path in paths}
    if not free:
        return
    path = min(free, key=lambda path: free[path])
    # 0 is what the metric says of a daemon that writes to no disk.
    DISK_FREE.set(max(free[path], 1))
    if free[path] < LEAST_BYTES:
        raise StoreUnavailable(
            f"The disk under {path} has {free[path] >> 20} MiB left.", "Make room; jobs wait and go on by themselves."
        )
