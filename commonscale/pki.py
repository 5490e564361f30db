"""The consortium's certificate authority: requests, approvals, renewal, revocation. Files only."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from commonscale.errors import ConfigError, NotAllowed
from commonscale.files import read_file, replace_file, write_private
from commonscale.identity import Identity, Role, fingerprint, load_certificate
from commonscale.names import LEAF_DAYS
from crypto import signing

CA_DAYS = 3650
CRL_DAYS = 365
# Clocks of several hospitals differ; a fresh certificate must be valid at all of them.
BACKDATE = dt.timedelta(minutes=10)


def _pem_key(key: signing.SigningKey, passphrase: bytes | None = None) -> bytes:
    protection = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)


def pem(certificate: x509.Certificate) -> bytes:
    """As it is kept and sent."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def request(identity: Identity, hosts: list[str], key: signing.SigningKey) -> x509.CertificateSigningRequest:
    """A signing request for a holder that can be reached under these names and addresses."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri), *map(_host_name, hosts)]
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name)]))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, SHA256())
    )


def create_request(
    directory: Path, identity: Identity, hosts: list[str], key: signing.SigningKey | None = None
) -> Path:
    """A request to send to the operator, for this key or one that is made here, where it stays."""
    if key is None:
        key = signing.generate()
        write_private(directory / f"{identity.name}.key", _pem_key(key))
    path = directory / f"{identity.name}.csr"
    replace_file(path, request(identity, hosts, key).public_bytes(serialization.Encoding.PEM))
    return path


def load_request(path: Path) -> x509.CertificateSigningRequest:
    """A request whose signature holds."""
    try:
        csr = x509.load_pem_x509_csr(read_file(path, "the request "))
    except ValueError:
        raise ConfigError(f"{path} holds no certificate signing request.") from None
    if not csr.is_signature_valid or not isinstance(csr.public_key(), ec.EllipticCurvePublicKey):
        raise NotAllowed(f"The request {path} is not signed by the key it asks for.")
    return csr


@dataclass(frozen=True)
class CertificateAuthority:
    """A directory: ca.crt, ca.key, issued/, revoked.crl."""

    directory: Path
    certificate: x509.Certificate
    key: signing.SigningKey

    @classmethod
    def create(cls, directory: Path, consortium: str, passphrase: bytes | None = None) -> CertificateAuthority:
        """Make the consortium's CA and its first, empty revocation list."""
        key = signing.generate()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{consortium} CA")])
        now = dt.datetime.now(dt.timezone.utc)
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(now + dt.timedelta(days=CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, SHA256())
        )
        write_private(directory / "ca.key", _pem_key(key, passphrase))
        replace_file(directory / "ca.crt", pem(certificate))
        authority = cls(directory, certificate, key)
        authority._publish_revocations([], number=1)
        return authority

    @classmethod
    def load(cls, directory: Path, passphrase: bytes | None = None) -> CertificateAuthority:
        """Open an existing CA."""
        try:
            key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), passphrase)
        except OSError as error:
            raise ConfigError(
                f"No CA in {directory}: {error.strerror}.", "Make one with `commonscale pki init`."
            ) from None
        except (ValueError, TypeError):
            raise ConfigError(f"The CA key in {directory} does not open.", "Check the passphrase.") from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(directory, load_certificate(directory / "ca.crt"), key)

    def approve(self, csr: x509.CertificateSigningRequest, days: float = LEAF_DAYS) -> x509.Certificate:
        """Sign a request. Only a coordinator gets a certificate that may serve."""
        identity = Identity.of(csr)
        for other in map(Identity.of, self.issued()):
            if other.name == identity.name and other.role is not identity.role:
                raise NotAllowed(
                    f"The name {identity.name!r} was given to a {other.role.value}.", "Choose another name."
                )
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role is Role.COORDINATOR:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        now = dt.datetime.now(dt.timezone.utc)
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(csr.subject)
            .issuer_name(self.certificate.subject)
            .public_key(csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE + min(dt.timedelta(0), dt.timedelta(days=days)))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(names.value, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, SHA256())
        )
        file = f"{identity.role.value}-{identity.name}-{certificate.serial_number:x}.crt"
        replace_file(self.directory / "issued" / file, pem(certificate))
        return certificate

    def issued(self) -> list[x509.Certificate]:
        """Every certificate that this CA has signed, oldest first."""
        found = [load_certificate(path) for path in (self.directory / "issued").glob("*.crt")]
        return sorted(found, key=lambda certificate: certificate.not_valid_before_utc)

    def revoke(self, name: str) -> list[x509.Certificate]:
        """Revoke every certificate issued to a name; the coordinator and the sites learn it from the new list."""
        current = x509.load_pem_x509_crl(self.crl_path.read_bytes())
        revoked = {entry.serial_number for entry in current}
        named = [c for c in self.issued() if Identity.of(c).name == name]
        if not named:
            raise ConfigError(f"No certificate was issued to {name!r}.")
        number = current.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        self._publish_revocations(sorted(revoked | {c.serial_number for c in named}), number + 1)
        return named

    @property
    def crl_path(self) -> Path:
        """The revocation list to hand to the coordinator."""
        return self.directory / "revoked.crl"

    def _publish_revocations(self, serials: list[int], number: int) -> None:
        now = dt.datetime.now(dt.timezone.utc)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now)
            .next_update(now + dt.timedelta(days=CRL_DAYS))
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        crl = builder.sign(self.key, SHA256())
        replace_file(self.crl_path, crl.public_bytes(serialization.Encoding.PEM))


def install(directory: Path, certificate_path: Path, ca_path: Path, pinned_fingerprint: str) -> Identity:
    """Put an approved certificate beside its key, if the CA is the one whose fingerprint came out of band."""
    ca, certificate = load_certificate(ca_path), load_certificate(certificate_path)
    if fingerprint(ca) != pinned_fingerprint.strip().lower():
        raise NotAllowed(
            f"The CA in {ca_path} has the fingerprint {fingerprint(ca)}, not {pinned_fingerprint}.",
            "Do not use it; ask the operator, by another way than the one the file came by.",
        )
    try:
        certificate.verify_directly_issued_by(ca)
    except Exception:  # noqa: BLE001 - whatever the library objects to, the certificate is not this CA's
        raise NotAllowed(f"{certificate_path} was not signed by the CA in {ca_path}.") from None
    identity = Identity.of(certificate)
    replace_file(directory / f"{identity.name}.crt", pem(certificate))
    replace_file(directory / "ca.crt", pem(ca))
    return identity
