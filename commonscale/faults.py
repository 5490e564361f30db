"""What is wrong with a daemon, as long as it is; among it a disk that is nearly full, reported before it is."""

import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import structlog

from commonscale.errors import CommonscaleError, StoreUnavailable
from commonscale.metrics import DISK_FREE

log = structlog.get_logger()

# With less room, the next job may have to wait.
LEAST_BYTES = 32 << 20


class Faults(dict[str, str]):
    """Sentences for people, by what was looked at."""

    def sentences(self, *checks: str) -> list[str]:
        """All of them, or those of some checks."""
        return [fault for check, fault in self.items() if not checks or check in checks]

    async def check(self, name: str, look: Callable[[], Awaitable[object]]) -> None:
        """Note and log what fails, once; it ends nothing else, least of all the jobs under way."""
        try:
            await look()
            self.pop(name, None)
        except CommonscaleError as error:
            if self.get(name) != str(error):
                log.warning("not healthy", check=name, why=str(error))
            self[name] = str(error)
        except Exception:
            log.exception("not healthy", check=name)
            self[name] = f"{name}: the log says more"


def check_room(paths: Iterable[Path]) -> None:
    """Note how much is free on the disks that a daemon writes to; raise where it is too little."""
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
