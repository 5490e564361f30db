"""`commonscale pki`: the operator's side of identity."""

import os
from pathlib import Path
from typing import Annotated

import typer

from commonscale.cli.console import Format, FormatOption, answer, out, table
from commonscale.files import read_file

app = typer.Typer(no_args_is_help=True)

PkiOption = Annotated[Path, typer.Option("--pki", help="The CA's directory.")]
PassphraseOption = Annotated[
    Path | None,
    typer.Option("--passphrase-file", help="Protects the CA's key; or set COMMONSCALE_CA_PASSPHRASE."),
]


def passphrase(path: Path | None) -> bytes | None:
    """From a file or the environment."""
    found = os.environ.get("COMMONSCALE_CA_PASSPHRASE", "").encode() if path is None else read_file(path).strip()
    return found or None


@app.command()
def init(
    pki: PkiOption = Path("pki"),
    consortium: Annotated[str, typer.Option(help="The consortium's name.")] = "commonscale",
    passphrase_file: PassphraseOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make the consortium's CA."""
    from commonscale.identity import fingerprint
    from commonscale.pki import CertificateAuthority

    authority = CertificateAuthority.create(pki, consortium, passphrase(passphrase_file))
    mark = fingerprint(authority.certificate)
    keep = f"CA made in {pki}. Keep {pki / 'ca.key'} offline; give every member {pki / 'ca.crt'}"
    tell = f"and tell them its fingerprint by another way (telephone, paper):\n  {mark}"
    answer(output, {"ca": str(pki / "ca.crt"), "fingerprint": mark}, keep, tell)


@app.command()
def show(
    pki: PkiOption = Path("pki"), passphrase_file: PassphraseOption = None, output: FormatOption = Format.TEXT
) -> None:
    """List the certificates that were issued."""
    from commonscale.identity import Authority, Identity, fingerprint
    from commonscale.pki import CertificateAuthority

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
    mark, shown = fingerprint(ca.certificate), []
    for row in rows:
        *names, serial, revoked = row.values()
        shown.append([*map(str, names), str(serial)[:12], "revoked" if revoked else ""])
    listed = table("name", "role", "expires", "serial", "", rows=shown)
    answer(output, {"fingerprint": mark, "issued": rows}, f"fingerprint {mark}", listed)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The member whose certificates end now.")],
    pki: PkiOption = Path("pki"),
    passphrase_file: PassphraseOption = None,
) -> None:
    """Revoke all certificates of a member; give the new revoked.crl to the coordinator."""
    from commonscale.pki import CertificateAuthority

    ca = CertificateAuthority.load(pki, passphrase(passphrase_file))
    revoked = ca.revoke(name)
    out.print(f"{len(revoked)} certificate(s) of {name} revoked in {ca.crl_path}.")
    out.print("Put that file where the coordinator's tls.revocations points; it is read within a second,")
    out.print("and the sites get it from the coordinator.")
