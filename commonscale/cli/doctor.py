"""`commonscale doctor`: is everything in place, and if not, how to mend it."""

from __future__ import annotations

import datetime as dt
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from commonscale import config
from commonscale.cli.console import Format, FormatOption, out, print_json, run
from commonscale.config import AnalystConfig, CoordinatorConfig, ParticipantConfig, Tls
from commonscale.errors import CommonscaleError, ConfigError
from commonscale.identity import Authority, load_certificate, load_key

RENEW_BEFORE = dt.timedelta(days=30)
MAX_CLOCK_DIFFERENCE_S = 60.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. status: ok, warning or failing."""

    check: str
    status: str
    what: str
    remedy: str = ""


def doctor(
    config_path: Annotated[
        Path,
        typer.Option(
            "--config",
            "-c",
            envvar="COMMONSCALE_CONFIG",
            help="A coordinator's, participant's or analyst's file.",
        ),
    ],
    output: FormatOption = Format.TEXT,
) -> None:
    """Check certificates, clock, reachability, versions and data; exits with 1 if something is failing."""
    findings = list(examine(config_path))
    if output is Format.JSON:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table("check", "", "finding", "what to do")
        colours = {"ok": "green", "warning": "yellow", "failing": "red"}
        for finding in findings:
            mark = Text(finding.status, style=colours[finding.status])
            table.add_row(finding.check, mark, finding.what, finding.remedy)
        out.print(table)
    if any(finding.status == "failing" for finding in findings):
        raise typer.Exit(1)


def examine(path: Path) -> Iterator[Finding]:
    """All findings for a configuration file, whichever kind it is."""
    settings = load_any(path)
    kind = type(settings).__name__.removesuffix("Config").lower()
    yield Finding("configuration", "ok", f"{path} is a {kind}'s")
    yield from _guarded("certificate", lambda: _certificate(settings.tls))
    yield from _guarded("private key", lambda: _key(settings.tls))
    if isinstance(settings, CoordinatorConfig):
        yield from _guarded("database", lambda: _database(settings, path.parent))
        return
    yield from _guarded("coordinator", lambda: _coordinator(settings))
    if isinstance(settings, ParticipantConfig):
        for name in settings.data:
            yield from _guarded(f"data {name}", lambda name=name: _data(settings, name))  # type: ignore[misc]


def load_any(path: Path) -> CoordinatorConfig | ParticipantConfig | AnalystConfig:
    """A configuration of whichever kind its keys say."""
    keys = config.read_toml(path).keys()
    if "coordinator" not in keys:
        return config.load(CoordinatorConfig, path)
    return config.load(ParticipantConfig, path) if "data" in keys else config.load(AnalystConfig, path)


def _guarded(check: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except CommonscaleError as error:
        yield Finding(check, "failing", error.message, error.remedy)


def _certificate(tls: Tls) -> Iterator[Finding]:
    certificate = load_certificate(tls.certificate)
    authority = Authority(load_certificate(tls.ca))
    if tls.revocations is not None:
        try:
            authority.revocations.update(tls.revocations.read_bytes())
        except OSError as error:
            raise ConfigError(f"Cannot read {tls.revocations}: {error.strerror}.") from None
    identity = authority.verify(certificate)
    left = certificate.not_valid_after_utc - dt.datetime.now(dt.timezone.utc)
    if left < RENEW_BEFORE:
        yield Finding(
            "certificate",
            "warning",
            f"{identity}, ends in {left.days} days",
            "Run `commonscale enroll renew`.",
        )
    else:
        yield Finding("certificate", "ok", f"{identity}, ends in {left.days} days")


def _key(tls: Tls) -> Iterator[Finding]:
    if load_key(tls.key).public_key() != load_certificate(tls.certificate).public_key():
        raise ConfigError(f"{tls.key} is not the key of {tls.certificate}.", "Install the certificate made for it.")
    if tls.key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield Finding("private key", "failing", f"others may read {tls.key}", f"Run `chmod 600 {tls.key}`.")
    else:
        yield Finding("private key", "ok", "belongs to the certificate, readable by its owner only")


def _coordinator(settings: ParticipantConfig | AnalystConfig) -> Iterator[Finding]:
    from commonscale.link import Link

    async def greet() -> tuple[Any, float, float]:
        link = Link(settings.coordinator, settings.tls)
        try:
            start = time.time()
            response = await link.hello()
            return response, start, time.time()
        finally:
            await link.close()

    response, sent, received = run(greet)
    yield Finding("coordinator", "ok", f"{settings.coordinator} answers in {(received - sent) * 1000:.0f} ms")
    yield Finding("version", "ok", f"coordinator runs {response.version}, protocol {response.protocol}")
    difference_s = response.now_ms / 1000 - (sent + received) / 2
    if abs(difference_s) > MAX_CLOCK_DIFFERENCE_S:
        yield Finding(
            "clock",
            "warning",
            f"differs by {difference_s:.0f} s from the coordinator's",
            "Set up NTP on both.",
        )
    else:
        yield Finding("clock", "ok", f"differs by {abs(difference_s) * 1000:.0f} ms from the coordinator's")


def _data(settings: ParticipantConfig, name: str) -> Iterator[Finding]:
    from participant.data import DuckTable

    table = DuckTable("this site", name, settings.data[name])
    types, rows = table.types(), table.row_count()
    yield Finding(f"data {name}", "ok", f"{rows:,} rows, {len(types)} columns")
    if rows < settings.policy.min_rows:
        yield Finding(
            f"data {name}", "warning", f"fewer rows than the policy's minimum of {settings.policy.min_rows}",
            "Every job will be refused; lower policy.min_rows or add rows.",
        )  # fmt: skip


def _database(settings: CoordinatorConfig, base: Path) -> Iterator[Finding]:
    from commonscale.database import Database, resolve_url
    from coordinator.daemon import MIGRATIONS
    from coordinator.jobstore import JobStore

    database = Database(resolve_url(settings.database, base), MIGRATIONS)
    open_jobs = len(JobStore(database).open_jobs())
    yield Finding("database", "ok", f"{database.engine.dialect.name}, {open_jobs} jobs open")
    database.close()
