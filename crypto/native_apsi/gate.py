"""Whether this machine can run the package: it is installed, and the CPU has what its wheel was compiled for.

The wheel of 0.1.2 was made for a CPU with AVX-512. Its first such instruction is in the client's constructor
(vpbroadcastq from a general register: F and VL); the compiler was free to use all five sets.
"""

from importlib import metadata
from pathlib import Path

VERSION = "0.1.2"
EXTRA = "commonscale[native]"
FLAGS = frozenset({"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"})
_CPUINFO = Path("/proc/cpuinfo")


class UnavailableError(ValueError):
    """This machine cannot run the package; one sentence says why."""


def available(cpuinfo: str | None = None) -> None:
    """Raise UnavailableError unless the package can run here. `cpuinfo` is read from the system unless given."""
    try:
        installed = metadata.version("apsi")
    except metadata.PackageNotFoundError:
        raise UnavailableError(f"The package apsi is not installed: pip install '{EXTRA}'.") from None
    if installed != VERSION:
        raise UnavailableError(f"The package apsi is installed as {installed}, but {VERSION} is needed.")
    if missing := missing_flags(_read_cpuinfo() if cpuinfo is None else cpuinfo):
        raise UnavailableError(f"The package apsi needs a CPU with AVX-512; this one lacks {', '.join(missing)}.")


def missing_flags(cpuinfo: str) -> list[str]:
    """What some processor of this machine lacks, in order."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    flags = [set(value.split()) for name, _, value in lines if name.strip() == "flags"]
    # No such line: not x86.
    return sorted(flag for flag in FLAGS if not flags or any(flag not in found for found in flags))


def _read_cpuinfo() -> str:
    try:
        return _CPUINFO.read_text()
    except OSError:
        return ""
