"""`commonscale pki`: the operator's side of identity."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from commonscale.cli.console import Format, FormatOption, out, print_json
from commonscale.errors import ConfigError
from commonscale.identity import Authority, Identity, fingerprint
from commonscale.pki import CertificateAuthority

app = typer.Typer(no_args_is_help=True)

PkiOption = Annotated[Path, typer.Option("--pki", help="The CA's directory.")]
PassphraseOption = Annotated[
    Path | None,
    typer.Option("--passphrase-file", help="Protects the CA's key; or set COMMONSCALE_CA_PASSPHRASE."),
]


def passphrase(path: Path | None) -> bytes | None:
    """From a file or the environment."""
    if path is None:
        value = os.environ.get("COMMONSCALE_CA_PASSPHRASE", "")
        return value.encode() or None
    try:
        return path.read_bytes().strip() or None
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None


@app.command()
def init(
    pki: PkiOption = Path("pki"),
    consortium: Annotated[str, typer.Option(help="The consortium's name.")] = "commonscale",
    passphrase_file: PassphraseOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make the consortium's CA."""
    authority = CertificateAuthority.create(pki, consortium, passphrase(passphrase_file))
    mark = fingerprint(authority.certificate)
    if output is Format.JSON:
        print_json({"ca": str(pki / "ca.crt"), "fingerprint": mark})
        return
    out.print(f"CA made in {pki}. Keep {pki / 'ca.key'} offline; give every member {pki / 'ca.crt'}")
    out.print(f"and tell them its fingerprint by another way (telephone, paper):\n  {mark}", soft_wrap=True)


@app.command()
def show(
    pki: PkiOption = Path("pki"), passphrase_file: PassphraseOption = None, output: FormatOption = Format.TEXT
) -> None:
    """List the certificates that were issued."""
    ca = CertificateAuthority.load(pki, passphrase(passphrase_file))
    authority = Authority(ca.certificate)
    authority.revocations.update(ca.crl_path.read_bytes())
    rows = [
        {
            "name": Identity.of(certificate).name,
            "role": Identity.of(certificate).role.value,
            "expires": certificate.not_valid_after_utc.date().isoformat(),
            "serial": f"{certificate.serial_number:x}",
            "revoked": certificate in authority.revocations,
        }
        for certificate in ca.issued()
    ]
    if output is Format.JSON:
        print_json({"fingerprint": fingerprint(ca.certificate), "issued": rows})
        return
    out.print(f"fingerprint {fingerprint(ca.certificate)}", soft_wrap=True)
    table = Table("name", "role", "expires", "serial", "")
    for row in rows:
        mark = "revoked" if row["revoked"] else ""
        table.add_row(*(str(row[key]) for key in ("name", "role", "expires")), str(row["serial"])[:12], mark)
    out.print(table)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The member whose certificates end now.")],
    pki: PkiOption = Path("pki"),
    passphrase_file: PassphraseOption = None,
) -> None:
    """Revoke all certificates of a member; give the new revoked.crl to the coordinator."""
    ca = CertificateAuthority.load(pki, passphrase(passphrase_file))
    revoked = ca.revoke(name)
    out.print(f"{len(revoked)} certificate(s) of {name} revoked in {ca.crl_path}.")
    out.print("Put that file where the coordinator's tls.revocations points; it is read within a second,")
    out.print("and the sites get it from the coordinator.")
