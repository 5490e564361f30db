"""What the one-shot containers of docker-compose.yml do: enrolment as by mail, and a job whose result can be checked.

operator        makes the consortium's CA and signs the requests that it expects
enrol NAME      makes a key that stays in this member's volume, sends the request, installs the certificate
analyst         submits the demo's job, shows its progress, compares the result with the pooled table, and the trained
                model with those that each hospital would have alone

Only requests and certificates cross the volume `mail`; the CA's fingerprint comes by another one, `telephone`.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from commonscale import config
from commonscale.cli.console import err, out, run
from commonscale.cli.demo import SITES, show
from commonscale.cli.demo_hospitals import Hospitals, compare
from commonscale.client import Client, Job, new_job_id
from commonscale.config import AnalystConfig
from commonscale.errors import CommonscaleError, ConfigError, NotAllowed
from commonscale.files import replace_file, write_private
from commonscale.identity import Identity, Role, fingerprint
from commonscale.pki import CertificateAuthority, create_request, install, load_request

# Who belongs to the consortium: the operator signs for nobody else.
MEMBERS = {
    "coordinator": Role.COORDINATOR,
    **dict.fromkeys(SITES, Role.SITE),
    "analyst": Role.ANALYST,
}
# Where docker-compose.yml puts the volumes. They are directories of the image that its user may write.
MAIL = Path("/exchange")
TLS = Path("/etc/commonscale/tls")
DATA = Path("/data")
RESULTS = Path("/results")
WAIT_S = 120.0


def telephone() -> Path:
    """The CA's fingerprint, as it was told."""
    return Path(os.environ["TELEPHONE"]) / "fingerprint"


def await_file(path: Path, what: str) -> Path:
    """Until it is there."""
    stop = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > stop:
            raise ConfigError(f"{what} did not come within {WAIT_S:.0f} s.", "Begin anew: `docker compose down -v`.")
        time.sleep(0.1)
    return path


def operator() -> None:
    """Make the CA at the first start; sign what is asked for, if it is what was expected."""
    pki, secret = Path("/var/lib/commonscale/pki"), TLS / "passphrase"
    if not secret.exists():
        write_private(secret, secrets.token_hex(32).encode())
    passphrase = secret.read_bytes()
    known = (pki / "ca.key").exists()
    make = CertificateAuthority.load if known else _new_authority
    authority = make(pki, passphrase)
    replace_file(telephone(), fingerprint(authority.certificate).encode())
    replace_file(MAIL / "ca.crt", (pki / "ca.crt").read_bytes())
    replace_file(MAIL / "revoked.crl", authority.crl_path.read_bytes())
    for name, role in MEMBERS.items():
        certificate = MAIL / "certificates" / f"{name}.crt"
        if not certificate.exists():
            request = await_file(MAIL / "requests" / f"{name}.csr", f"The request of {name}")
            _sign(authority, request, Identity(role, name), certificate)
    out.print(f"{len(MEMBERS)} members are enrolled.")


def _new_authority(pki: Path, passphrase: bytes) -> CertificateAuthority:
    authority = CertificateAuthority.create(pki, "demo", passphrase)
    out.print(f"CA made; its fingerprint, for the telephone: {fingerprint(authority.certificate)}", soft_wrap=True)
    return authority


def _sign(authority: CertificateAuthority, request: Path, expected: Identity, certificate: Path) -> None:
    asked = load_request(request)
    if Identity.of(asked) != expected:
        raise NotAllowed(f"{request.name} asks for {Identity.of(asked)}, not for {expected}.", "It is not signed.")
    signed = authority.approve(asked).public_bytes(serialization.Encoding.PEM)
    replace_file(certificate, signed)
    out.print(f"signed: {expected}")


def enrol(name: str) -> None:
    """Key and request at the first start, then the certificate; a hospital also gets its own part of the data."""
    if not (TLS / f"{name}.crt").exists():
        replace_file(MAIL / "requests" / f"{name}.csr", _request(name).read_bytes())
        certificate = await_file(MAIL / "certificates" / f"{name}.crt", f"The certificate of {name}")
        identity = install(TLS, certificate, MAIL / "ca.crt", telephone().read_text())
        out.print(f"enrolled: {identity}")
    if name == "coordinator":
        replace_file(TLS / "revoked.crl", (MAIL / "revoked.crl").read_bytes())
    if name in SITES and not (DATA / f"{name}.csv").exists():
        Hospitals.split_by_diagnosis().write(name, DATA / f"{name}.csv")


def _request(name: str) -> Path:
    """The member's request; a key without one is what an interrupted start left."""
    if (TLS / f"{name}.csr").exists():
        return TLS / f"{name}.csr"
    (TLS / f"{name}.key").unlink(missing_ok=True)
    hosts = [name] if MEMBERS[name] is Role.COORDINATOR else []
    return create_request(TLS, Identity(MEMBERS[name], name), hosts)


def analyst() -> None:
    """Submit, follow, compare. Exit code 1 unless the hospitals found what the pooled table gives."""
    hospitals = Hospitals.split_by_diagnosis()
    settings = config.load(AnalystConfig, Path(os.environ["COMMONSCALE_CONFIG"]))
    start = time.perf_counter()
    job = run(lambda: _follow(settings, hospitals))
    seconds = time.perf_counter() - start
    out.print(f"job {job.id}: {job.state} in {job.seconds:.2f} s\n")
    summary = compare(hospitals, job, {site: RESULTS / site for site in SITES}, seconds)
    show(summary)
    if not summary["as_pooled"]:
        raise CommonscaleError("The hospitals did not find what the pooled table gives.")


async def _follow(settings: AnalystConfig, hospitals: Hospitals) -> Job:
    pipeline = hospitals.pipeline()
    said = ""
    async with Client(settings) as client:
        job = await client.submit(pipeline, new_job_id(pipeline))
        out.print(f"job {job.id} submitted: {len(pipeline.steps)} steps, {len(pipeline.sites)} sites")
        async for current in client.watch(job.id):
            job, progress = current, current.wire.progress
            now = f"  {job.state}: {progress.messages} messages, round {progress.round}" if progress.round else ""
            if now and now != said:
                out.print(now)
            said = now
    return job


def main() -> None:
    """`demo.py operator`, `demo.py enrol NAME`, `demo.py analyst`."""
    commands: dict[str, Callable[..., None]] = {"operator": operator, "enrol": enrol, "analyst": analyst}
    try:
        commands[sys.argv[1]](*sys.argv[2:])
    except CommonscaleError as error:
        err.print(f"error: {error}", soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
