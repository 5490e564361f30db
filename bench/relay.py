"""One payload through the relay (Deliver, store durably, Fetch) beside the same payload on a bare mTLS stream."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import psutil

from bench.bare_server import METHOD
from bench.report import peak_rss_mb, reset_peak_rss
from commonscale import rpc
from commonscale.channel.slot import Slot
from commonscale.cli.console import run
from commonscale.client import Client
from commonscale.config import Tls
from commonscale.identity import Role
from commonscale.link import Link, RelayMailbox
from commonscale.localnet import LocalFederation, Process
from commonscale.pipeline import Pipeline

SIZES = (1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20, 256 << 20)
SITES = ("sender", "receiver", "third")
# Small payloads are repeated, to be measurable at all.
WORK_BYTES = 64 << 20
MAX_REPEATS = 40


def measure(directory: Path, say: Callable[[str], None], sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """One row a size."""
    federation = LocalFederation(directory, {})
    say("starting a coordinator and a bare server")
    with federation, _BareServer(directory / "coordinator" / "tls") as bare:
        tls = {site: federation.enrol(site, Role.SITE, directory / site) for site in SITES}
        job_id = run(lambda: _open_job(federation))
        return [run(lambda size=size: _measure(federation, bare, tls, job_id, size, say)) for size in sizes]  # type: ignore[misc]


async def _open_job(federation: LocalFederation) -> str:
    """A job whose sites never answer: its slots are ours."""
    pipeline = Pipeline.model_validate(
        {"name": "relay", "sites": list(SITES), "deadline_s": 3600, "steps": [{"columns": ["x"]}]}
    )
    async with Client(federation.analyst()) as client:
        return (await client.submit(pipeline)).id


async def _measure(
    federation: LocalFederation,
    bare: _BareServer,
    tls: dict[str, Tls],
    job_id: str,
    size: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    say(f"{size:,} bytes")
    assert federation.coordinator.process is not None
    pid = federation.coordinator.process.pid
    payload = bytes(range(256)) * (size // 256)
    repeats = max(1, min(MAX_REPEATS, WORK_BYTES // size))
    links = {site: Link(f"127.0.0.1:{federation.port}", tls[site]) for site in SITES[:2]}
    sender, receiver = RelayMailbox(links["sender"]), RelayMailbox(links["receiver"])
    bare_link = rpc.connect(f"127.0.0.1:{bare.port}", tls["sender"])
    await links["sender"].hello()
    await links["receiver"].hello()
    await _carry(bare_link, payload[:1024])
    reset_peak_rss(pid)
    whole, delivered, fetched, bare_times = [], [], [], []
    cpu = {"bare": 0.0, "relay": 0.0}
    for number in range(repeats):
        # Alternating, so that other work on the machine hits both alike.
        before = _cpu_s(pid, bare.pid)
        start = time.perf_counter()
        await _carry(bare_link, payload)
        bare_times.append(time.perf_counter() - start)
        between = _cpu_s(pid, bare.pid)
        slot = Slot(job_id, f"size{size}.{number}", "sender", "receiver")
        start = time.perf_counter()
        await sender.put(slot, payload)
        middle = time.perf_counter()
        got = await receiver.get(slot)
        end = time.perf_counter()
        cpu["bare"] += between - before
        cpu["relay"] += _cpu_s(pid, bare.pid) - between
        if got != payload:
            raise AssertionError("the relay changed a payload")
        whole.append(end - start)
        delivered.append(middle - start)
        fetched.append(end - middle)
    for link in links.values():
        await link.close()
    await bare_link.close(None)
    return {
        "protocol": "relay",
        "payload_bytes": size,
        "mb_per_s": _rate(size, whole),
        "deliver_mb_per_s": _rate(size, delivered),
        "fetch_mb_per_s": _rate(size, fetched),
        "bare_mb_per_s": _rate(size, bare_times),
        "ratio": round(statistics.median(bare_times) / statistics.median(whole), 3),
        "deliver_ratio": round(statistics.median(bare_times) / statistics.median(delivered), 3),
        "fetch_ratio": round(statistics.median(bare_times) / statistics.median(fetched), 3),
        "cpu_s": round(cpu["relay"] / repeats, 4),
        "bare_cpu_s": round(cpu["bare"] / repeats, 4),
        "latency_ms": round(1000 * statistics.median(whole), 2),
        "bare_latency_ms": round(1000 * statistics.median(bare_times), 2),
        "peak_rss_mb": round(peak_rss_mb(pid), 1),
    }


async def _carry(channel: Any, payload: bytes) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        view = memoryview(payload)
        for start in range(0, len(payload), rpc.CHUNK_BYTES):
            yield bytes(view[start : start + rpc.CHUNK_BYTES])

    with anyio.fail_after(300):
        answer = await channel.stream_unary(METHOD)(chunks())
    if int(answer) != len(payload):
        raise AssertionError("the bare stream lost bytes")


def _cpu_s(*servers: int) -> float:
    """CPU seconds of this process and the servers."""
    processes = [psutil.Process(), *map(psutil.Process, servers)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def _rate(size: int, seconds: list[float]) -> float:
    return round(size / statistics.median(seconds) / 1e6, 2)


class _BareServer:
    """The server of bench.bare_server as a process."""

    def __init__(self, tls: Path) -> None:
        self._process = Process("bare server", tls, [])
        self._tls = tls
        self.port = 0

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.process is not None
        return self._process.process.pid

    def __enter__(self) -> _BareServer:
        command = [sys.executable, "-m", "bench.bare_server", str(self._tls), str(self._process.ready_path)]
        self._process.log_path.touch()
        self._process.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.port = self._process.wait_ready()["port"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
