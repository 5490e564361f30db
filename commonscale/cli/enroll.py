"""`commonscale enroll`: from a key made at the member to a certificate it can check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from commonscale.cli.console import out
from commonscale.cli.pki import PassphraseOption, PkiOption, passphrase
from commonscale.errors import ConfigError
from commonscale.files import replace_file
from commonscale.identity import Identity, Role, fingerprint, load_certificate, load_key
from commonscale.pki import LEAF_DAYS, CertificateAuthority, create_request, install, load_request
from commonscale.pki import request as build_request
from commonscale.slot import NAME_PATTERN

app = typer.Typer(no_args_is_help=True)

DirectoryOption = Annotated[Path, typer.Option("--dir", help="Where the key and the certificate are kept.")]


@app.command()
def request(
    name: Annotated[str, typer.Argument(help="The member's name: lower-case letters, digits, hyphens.")],
    role: Annotated[Role, typer.Option(help="What the member does.")] = Role.SITE,
    host: Annotated[list[str], typer.Option(help="A name or address it is reached under (coordinators).")] = [],  # noqa: B006 - typer copies it
    directory: DirectoryOption = Path("tls"),
) -> None:
    """At the member: make a key, which stays here, and a request for the operator."""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name.", "Use lower-case letters, digits and hyphens, at most 63.")
    if role is Role.COORDINATOR and not host:
        raise ConfigError("A coordinator needs at least one --host, the name or address that sites dial.")
    path = create_request(directory, Identity(role, name), host)
    out.print(f"Key made in {directory} (it never leaves). Send {path} to the operator.", soft_wrap=True)


@app.command()
def approve(
    csr: Annotated[Path, typer.Argument(help="The request that a member sent.")],
    output: Annotated[Path | None, typer.Option("--out", help="Where to write the certificate.")] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it is valid.")] = LEAF_DAYS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    pki: PkiOption = Path("pki"),
    passphrase_file: PassphraseOption = None,
) -> None:
    """At the operator: look at a request and sign it."""
    asked = load_request(csr)
    identity = Identity.of(asked)
    names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(n.value) for n in names if not isinstance(n, x509.UniformResourceIdentifier)]
    out.print(
        f"{csr} asks for: {identity}, reached under: {', '.join(hosts) or 'nothing (dials out)'}",
        soft_wrap=True,
    )
    if not yes:
        typer.confirm("Sign it?", abort=True)
    ca = CertificateAuthority.load(pki, passphrase(passphrase_file))
    path = output or csr.with_suffix(".crt")
    replace_file(path, ca.approve(asked, days).public_bytes(serialization.Encoding.PEM))
    out.print(f"Signed: {path}. Send it back with {pki / 'ca.crt'}.", soft_wrap=True)


@app.command("install")
def install_command(
    certificate: Annotated[Path, typer.Argument(help="The certificate that came back.")],
    ca: Annotated[Path, typer.Option("--ca", help="The CA certificate that came with it.")],
    ca_fingerprint: Annotated[str, typer.Option(help="What the operator told you by another way.")],
    directory: DirectoryOption = Path("tls"),
) -> None:
    """At the member: check the CA against its fingerprint and put the certificate beside the key."""
    identity = install(directory, certificate, ca, ca_fingerprint)
    out.print(f"Installed in {directory}: {identity}.")


@app.command()
def renew(
    name: Annotated[str, typer.Argument(help="The member's name.")],
    directory: DirectoryOption = Path("tls"),
) -> None:
    """At the member: ask for a new certificate with the same key and names, before the old one ends."""
    old = load_certificate(directory / f"{name}.crt")
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(n.value) for n in names if not isinstance(n, x509.UniformResourceIdentifier)]
    csr = build_request(Identity.of(old), hosts, load_key(directory / f"{name}.key"))
    path = directory / f"{name}.csr"
    replace_file(path, csr.public_bytes(serialization.Encoding.PEM))
    out.print(
        f"Send {path} to the operator; install what comes back with `commonscale enroll install`.",
        soft_wrap=True,
    )
    out.print("The daemon takes the new certificate into use by itself; nothing has to be restarted.")


@app.command()
def show(certificate: Annotated[Path, typer.Argument(help="A certificate file.")]) -> None:
    """Show whom a certificate speaks for, until when, and its fingerprint."""
    loaded = load_certificate(certificate)
    out.print(f"subject      {loaded.subject.rfc4514_string()}")
    out.print(f"valid until  {loaded.not_valid_after_utc.isoformat(timespec='minutes')}")
    out.print(f"fingerprint  {fingerprint(loaded)}", soft_wrap=True)
