"""Certificates: who they speak for, and when they stop."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from commonscale.errors import ConfigError, NotAllowed
from commonscale.identity import Authority, Identity, Role, fingerprint, load_key
from commonscale.pki import CertificateAuthority, create_request, install, load_request, request
from crypto import signing

NORTH = Identity(Role.SITE, "north")


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "pki", "test")


def certificate(ca: CertificateAuthority, identity: Identity = NORTH, days: float = 30):  # type: ignore[no-untyped-def]
    return ca.approve(request(identity, [], signing.generate()), days)


def test_a_member_is_known_by_its_certificate(ca: CertificateAuthority) -> None:
    """Role and name come from the certificate."""
    assert Authority(ca.certificate).verify(certificate(ca)) == NORTH


def test_only_a_coordinator_may_serve(ca: CertificateAuthority) -> None:
    """A site's certificate lacks the server usage, so that a site cannot pose as the coordinator."""
    from cryptography import x509

    def may_serve(identity: Identity) -> bool:
        usage = certificate(ca, identity).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        return x509.ExtendedKeyUsageOID.SERVER_AUTH in usage

    assert may_serve(Identity(Role.COORDINATOR, "hub"))
    assert not may_serve(NORTH)


def test_an_expired_certificate_is_refused(ca: CertificateAuthority) -> None:
    """And the remedy is named."""
    with pytest.raises(NotAllowed, match=r"expired.*renew"):
        Authority(ca.certificate).verify(certificate(ca, days=-1))


def test_a_foreign_certificate_is_refused(ca: CertificateAuthority, tmp_path: Path) -> None:
    """Another consortium's CA with the same name does not help."""
    foreign = CertificateAuthority.create(tmp_path / "other", "test")
    with pytest.raises(NotAllowed, match="not from this consortium"):
        Authority(ca.certificate).verify(certificate(foreign))


def test_a_revoked_certificate_is_refused(ca: CertificateAuthority) -> None:
    """From the moment the list is taken; others stay."""
    north, south = certificate(ca), certificate(ca, Identity(Role.SITE, "south"))
    authority = Authority(ca.certificate)
    authority.verify(north)
    ca.revoke("north")
    assert authority.revocations.update(ca.crl_path.read_bytes())
    with pytest.raises(NotAllowed, match="revoked"):
        authority.verify(north)
    authority.verify(south)


def test_an_old_revocation_list_does_not_undo_a_newer_one(ca: CertificateAuthority) -> None:
    """Replaying the list from before a revocation changes nothing."""
    north = certificate(ca)
    old = ca.crl_path.read_bytes()
    ca.revoke("north")
    authority = Authority(ca.certificate)
    authority.revocations.update(ca.crl_path.read_bytes())
    assert not authority.revocations.update(old)
    with pytest.raises(NotAllowed, match="revoked"):
        authority.verify(north)


def test_a_forged_revocation_list_is_refused(ca: CertificateAuthority, tmp_path: Path) -> None:
    """Only the consortium's CA revokes."""
    foreign = CertificateAuthority.create(tmp_path / "other", "test")
    with pytest.raises(ConfigError, match="not signed"):
        Authority(ca.certificate).revocations.update(foreign.crl_path.read_bytes())


def test_enrolment_pins_the_ca(ca: CertificateAuthority, tmp_path: Path) -> None:
    """A CA file with another fingerprint than the one told out of band is not installed."""
    csr = create_request(tmp_path / "tls", NORTH, [])
    signed = tmp_path / "north.crt"
    signed.write_bytes(ca.approve(load_request(csr)).public_bytes(serialization.Encoding.PEM))
    ca_file = ca.directory / "ca.crt"
    with pytest.raises(NotAllowed, match="fingerprint"):
        install(tmp_path / "tls", signed, ca_file, "sha256:" + "0" * 64)
    assert install(tmp_path / "tls", signed, ca_file, fingerprint(ca.certificate)) == NORTH
    assert stat.S_IMODE((tmp_path / "tls" / "north.key").stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """Asking twice would lose the key that the first certificate was made for."""
    create_request(tmp_path, NORTH, [])
    with pytest.raises(ConfigError, match="not overwritten"):
        create_request(tmp_path, NORTH, [])


def test_a_protected_ca_needs_its_passphrase(tmp_path: Path) -> None:
    """The CA's key may be encrypted at rest."""
    CertificateAuthority.create(tmp_path, "test", b"secret")
    with pytest.raises(ConfigError, match="passphrase"):
        CertificateAuthority.load(tmp_path)
    CertificateAuthority.load(tmp_path, b"secret")


def test_a_broken_key_file_shows_nothing_of_itself(tmp_path: Path) -> None:
    """The error names the file only."""
    path = tmp_path / "x.key"
    path.write_text("-----BEGIN PRIVATE KEY-----\nSECRETSECRET\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ConfigError) as caught:
        load_key(path)
    assert "SECRET" not in str(caught.value)


def test_a_name_has_one_role(ca: CertificateAuthority) -> None:
    """An aggregator called like a site could write into that site's slots."""
    certificate(ca)
    with pytest.raises(NotAllowed, match="'north' was given to a site"):
        certificate(ca, Identity(Role.AGGREGATOR, "north"))
    certificate(ca)


def test_no_damaged_certificate_counts(tmp_path: Path) -> None:
    """Every byte changed once: it is unreadable, or it is not allowed; nothing else comes of it."""
    ca = CertificateAuthority.create(tmp_path, "test")
    certificate = ca.approve(request(Identity(Role.SITE, "north"), [], signing.generate()))
    authority = Authority(ca.certificate)
    assert authority.verify(certificate) == Identity(Role.SITE, "north")
    der = certificate.public_bytes(serialization.Encoding.DER)
    for at in range(len(der)):
        damaged = der[:at] + bytes([der[at] ^ 0x55]) + der[at + 1 :]
        try:
            readable = x509.load_der_x509_certificate(damaged)
        except (ValueError, x509.InvalidVersion):
            continue
        with pytest.raises(NotAllowed):
            authority.verify(readable)
