"""What `commonscale doctor` looks at, one check after the other."""

import datetime as dt
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from commonscale import config
from commonscale.cli.console import run
from commonscale.config import AnalystConfig, CoordinatorConfig, ParticipantConfig, Policy, Tls
from commonscale.errors import CommonscaleError, ConfigError
from commonscale.files import read_file
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


def examine(path: Path) -> Iterator[Finding]:
    """All findings for a configuration file, whichever kind it is."""
    settings = load_any(path)
    kind = type(settings).__name__.removesuffix("Config").lower()
    yield Finding("configuration", "ok", f"{path} is a {kind}'s")
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "certificate": partial(_certificate, settings.tls),
        "private key": partial(_key, settings.tls),
    }
    if isinstance(settings, CoordinatorConfig):
        checks["database"] = partial(_database, settings, path.parent)
    else:
        checks["coordinator"] = partial(_coordinator, settings)
    if isinstance(settings, ParticipantConfig):
        checks["policy"] = partial(_encryption, settings.policy)
        checks |= {f"data {name}": partial(_data, settings, name) for name in settings.data}
    for check, look in checks.items():
        try:
            yield from look()
        except CommonscaleError as error:
            yield Finding(check, "failing", error.message, error.remedy)


def load_any(path: Path) -> CoordinatorConfig | ParticipantConfig | AnalystConfig:
    """A configuration of whichever kind its keys say."""
    keys = config.read_toml(path).keys()
    if "coordinator" not in keys:
        return config.load(CoordinatorConfig, path)
    return config.load(ParticipantConfig, path) if "data" in keys else config.load(AnalystConfig, path)


def _certificate(tls: Tls) -> Iterator[Finding]:
    certificate = load_certificate(tls.certificate)
    authority = Authority(load_certificate(tls.ca))
    if tls.revocations is not None:
        authority.revocations.update(read_file(tls.revocations))
    identity = authority.verify(certificate)
    left = certificate.not_valid_after_utc - dt.datetime.now(dt.timezone.utc)
    what = f"{identity}, ends in {left.days} days"
    if left < RENEW_BEFORE:
        yield Finding("certificate", "warning", what, "Run `commonscale enroll renew`.")
    else:
        yield Finding("certificate", "ok", what)


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
            return await link.hello(), start, time.time()
        finally:
            await link.close()

    response, sent, received = run(greet)
    yield Finding("coordinator", "ok", f"{settings.coordinator} answers in {(received - sent) * 1000:.0f} ms")
    yield Finding("version", "ok", f"coordinator runs {response.version}, protocol {response.protocol}")
    difference_s = response.now_ms / 1000 - (sent + received) / 2
    if abs(difference_s) > MAX_CLOCK_DIFFERENCE_S:
        what = f"differs by {difference_s:.0f} s from the coordinator's"
        yield Finding("clock", "warning", what, "Set up NTP on both.")
    else:
        yield Finding("clock", "ok", f"differs by {abs(difference_s) * 1000:.0f} ms from the coordinator's")


def _encryption(policy: Policy) -> Iterator[Finding]:
    if "ckks" in policy.methods:
        what = "allows computations under encryption, which trust the coordinator to follow the protocol"
        yield Finding("policy", "warning", what, 'If it is not trusted so far, take "ckks" out of policy.methods.')
    else:
        remedy = 'To allow them, add "ckks" to policy.methods; see SECURITY.md first.'
        yield Finding("policy", "ok", "refuses computations under encryption, as by default", remedy)


def _data(settings: ParticipantConfig, name: str) -> Iterator[Finding]:
    from commonscale.sources.duckdb import DuckDbSource
    from commonscale.sources.queries import RowCount

    source = DuckDbSource("this site", name, settings.data[name].path, settings.data[name].missing)
    schema, rows = source.schema(), source.answer(RowCount())
    yield Finding(f"data {name}", "ok", f"{rows:,} rows, {len(schema)} columns")
    if rows < settings.policy.min_rows:
        what = f"fewer rows than the policy's minimum of {settings.policy.min_rows}"
        yield Finding(f"data {name}", "warning", what, "Every job will be refused; lower policy.min_rows or add rows.")


def _database(settings: CoordinatorConfig, base: Path) -> Iterator[Finding]:
    from commonscale.database import Database
    from coordinator.daemon import MIGRATIONS
    from coordinator.jobstore import JobStore

    database = Database(settings.database, MIGRATIONS, base)
    open_jobs = len(JobStore(database).open_jobs())
    yield Finding("database", "ok", f"{database.engine.dialect.name}, {open_jobs} jobs open")
    database.close()
