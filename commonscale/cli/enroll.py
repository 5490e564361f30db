"""`commonscale enroll`: from a key made at the member to a certificate it can check."""

from pathlib import Path
from typing import Annotated

import typer

from commonscale.cli.console import out
from commonscale.cli.pki import PassphraseOption, PkiOption, passphrase
from commonscale.errors import ConfigError
from commonscale.files import replace_file
from commonscale.names import LEAF_DAYS, NAME_PATTERN, Role

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
    from commonscale.identity import Identity
    from commonscale.pki import create_request

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
    from commonscale.identity import Identity, hosts_of
    from commonscale.pki import CertificateAuthority, load_request, pem

    asked = load_request(csr)
    identity = Identity.of(asked)
    hosts = ", ".join(hosts_of(asked)) or "nothing (dials out)"
    out.print(f"{csr} asks for: {identity}, reached under: {hosts}", soft_wrap=True)
    if not yes:
        typer.confirm("Sign it?", abort=True)
    ca = CertificateAuthority.load(pki, passphrase(passphrase_file))
    path = output or csr.with_suffix(".crt")
    replace_file(path, pem(ca.approve(asked, days)))
    out.print(f"Signed: {path}. Send it back with {pki / 'ca.crt'}.", soft_wrap=True)


@app.command("install")
def install_command(
    certificate: Annotated[Path, typer.Argument(help="The certificate that came back.")],
    ca: Annotated[Path, typer.Option("--ca", help="The CA certificate that came with it.")],
    ca_fingerprint: Annotated[str, typer.Option(help="What the operator told you by another way.")],
    directory: DirectoryOption = Path("tls"),
) -> None:
    """At the member: check the CA against its fingerprint and put the certificate beside the key."""
    from commonscale.pki import install

    identity = install(directory, certificate, ca, ca_fingerprint)
    out.print(f"Installed in {directory}: {identity}.")


@app.command()
def renew(
    name: Annotated[str, typer.Argument(help="The member's name.")],
    directory: DirectoryOption = Path("tls"),
) -> None:
    """At the member: ask for a new certificate with the same key and names, before the old one ends."""
    from commonscale.identity import Identity, hosts_of, load_certificate, load_key
    from commonscale.pki import create_request

    old, key = load_certificate(directory / f"{name}.crt"), load_key(directory / f"{name}.key")
    path = create_request(directory, Identity.of(old), hosts_of(old), key)
    then = "install what comes back with `commonscale enroll install`."
    out.print(f"Send {path} to the operator; {then}", soft_wrap=True)
    out.print("The daemon takes the new certificate into use by itself; nothing has to be restarted.")


@app.command()
def show(certificate: Annotated[Path, typer.Argument(help="A certificate file.")]) -> None:
    """Show whom a certificate speaks for, until when, and its fingerprint."""
    from commonscale.identity import fingerprint, load_certificate

    loaded = load_certificate(certificate)
    out.print(f"subject      {loaded.subject.rfc4514_string()}")
    out.print(f"valid until  {loaded.not_valid_after_utc.isoformat(timespec='minutes')}")
    out.print(f"fingerprint  {fingerprint(loaded)}", soft_wrap=True)
