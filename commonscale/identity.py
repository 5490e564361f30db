"""Who a certificate speaks for, and whether it may still speak.

A certificate names its holder in a URI: commonscale://site/north. The role says what the holder may call;
only a coordinator's certificate may serve (extended key usage), so a site cannot pose as one.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from commonscale.errors import ConfigError, NotAllowed
from commonscale.files import read_file
from commonscale.names import NAME_PATTERN
from commonscale.names import Role as Role  # noqa: PLC0414 - also taken from here
from crypto import signing

URI_SCHEME = "commonscale://"


@dataclass(frozen=True)
class Identity:
    """The holder of a certificate."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role.value} {self.name}"

    @property
    def uri(self) -> str:
        """As it stands in the certificate."""
        return f"{URI_SCHEME}{self.role.value}/{self.name}"

    @classmethod
    def of(cls, holder: x509.Certificate | x509.CertificateSigningRequest) -> Identity:
        """The identity in a certificate or a request."""
        try:
            names = holder.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
            # The library reads extensions when they are asked for: a damaged one shows only here.
            raise NotAllowed("The certificate names no role.", "Make it with `commonscale enroll`.") from None
        ours = [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if URI_SCHEME in uri]
        role, _, name = ours[0].removeprefix(URI_SCHEME).partition("/") if len(ours) == 1 else ("", "", "")
        if role not in {r.value for r in Role} or not NAME_PATTERN.fullmatch(name):
            raise NotAllowed("The certificate names no role.", "Make it with `commonscale enroll`.")
        return cls(Role(role), name)


def hosts_of(holder: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """Names and addresses that the holder is reached under; the URI is its identity."""
    names = holder.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names if not isinstance(name, x509.UniformResourceIdentifier)]


class Revocations:
    """The consortium's revocation list: signed by its CA, newer ones replace older ones."""

    def __init__(self, ca: x509.Certificate) -> None:
        self._ca = ca
        self._number = -1
        self._serials: frozenset[int] = frozenset()
        self.pem = b""

    def update(self, pem: bytes) -> bool:
        """Take a list if it is the CA's and newer than the one in use; say whether it was taken."""
        try:
            crl = x509.load_pem_x509_crl(pem)
            number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        except (ValueError, x509.ExtensionNotFound):
            raise ConfigError(
                "The revocation list is not readable.", "Make it with `commonscale pki revoke`."
            ) from None
        key = self._ca.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not crl.is_signature_valid(key):
            raise ConfigError("The revocation list is not signed by the consortium's CA.")
        if number <= self._number:
            return False
        self._number, self._serials, self.pem = number, frozenset(entry.serial_number for entry in crl), pem
        return True

    def __contains__(self, certificate: x509.Certificate) -> bool:
        return certificate.serial_number in self._serials


class Authority:
    """Decides whether a certificate speaks for its holder now."""

    def __init__(self, ca: x509.Certificate) -> None:
        self.ca = ca
        self.revocations = Revocations(ca)

    def verify(self, certificate: x509.Certificate) -> Identity:
        """The holder, or NotAllowed saying why this certificate does not count."""
        identity = Identity.of(certificate)
        try:
            certificate.verify_directly_issued_by(self.ca)
        except Exception:  # noqa: BLE001 - whatever the library objects to, the certificate is not ours
            raise NotAllowed(f"The certificate of {identity} is not from this consortium's CA.") from None
        self.verify_current(certificate, identity)
        return identity

    def verify_current(self, certificate: x509.Certificate, identity: Identity) -> None:
        """Raise if the certificate is outside its validity or revoked."""
        now = dt.datetime.now(dt.timezone.utc)
        if now > certificate.not_valid_after_utc:
            raise NotAllowed(f"The certificate of {identity} has expired.", "Renew it with `commonscale enroll renew`.")
        if now < certificate.not_valid_before_utc:
            raise NotAllowed(f"The certificate of {identity} is not valid yet.", "Compare the clocks.")
        if certificate in self.revocations:
            raise NotAllowed(f"The certificate of {identity} is revoked.", "Ask the operator for a new one.")


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 over the certificate, as a person reads it over the telephone."""
    return f"sha256:{certificate.fingerprint(SHA256()).hex()}"


def load_certificate(path: Path) -> x509.Certificate:
    """A PEM certificate, or ConfigError naming the file."""
    try:
        return x509.load_pem_x509_certificate(read_file(path, "the certificate "))
    except ValueError:
        raise ConfigError(f"{path} holds no PEM certificate.") from None


def load_key(path: Path) -> signing.SigningKey:
    """A PEM private key, or ConfigError naming the file and nothing of its contents."""
    try:
        key = serialization.load_pem_private_key(read_file(path, "the private key "), password=None)
    except (ValueError, TypeError):
        raise ConfigError(f"{path} holds no unencrypted PEM private key.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} holds no elliptic-curve key.", "Make it with `commonscale enroll request`.")
    return key
