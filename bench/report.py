"""What every benchmark prints: a table for people, or one JSON object of a common shape as the last line."""

import datetime as dt
import os
import platform
from collections.abc import Sequence
from typing import Any

import psutil
from rich.table import Table

from commonscale.cli.console import Format, out, print_json
from commonscale.version import __version__


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commonscale": __version__,
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
    }


def publish(name: str, rows: Sequence[dict[str, Any]], output: Format) -> None:
    """Print the rows."""
    if output is Format.JSON:
        print_json({"bench": name, "machine": machine(), "rows": list(rows)})
        return
    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*keys, title=f"bench {name}: {_cpu_model()}, {os.cpu_count()} cores")
    for row in rows:
        table.add_row(*(_cell(row.get(key, "")) for key in keys))
    out.print(table)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"


def peak_rss_mb(pid: int) -> float:
    """The most memory that a process held since the last reset (Linux)."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def reset_peak_rss(pid: int) -> None:
    """Begin a new measurement of peak_rss_mb (Linux, own processes)."""
    with open(f"/proc/{pid}/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")
