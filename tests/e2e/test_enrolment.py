"""From nothing to a running member with the commands alone, and what doctor says when something is wrong."""

import json
import shutil
from pathlib import Path

import pytest

from commonscale.identity import fingerprint, load_certificate
from commonscale.localnet import LocalFederation
from tests.e2e.test_jobs import command


def test_a_member_enrols_with_the_commands_alone(tmp_path: Path) -> None:
    """CA, request, approval, installation with the pinned fingerprint, renewal, revocation."""
    pki, tls = str(tmp_path / "pki"), str(tmp_path / "tls")
    made = json.loads(command("pki", "init", "--pki", pki, "--format", "json"))
    assert made["fingerprint"] == fingerprint(load_certificate(tmp_path / "pki" / "ca.crt"))
    assert "not overwritten" in command("pki", "init", "--pki", pki, expect=2)
    command("enroll", "request", "north", "--dir", tls)
    signed = str(tmp_path / "north.crt")
    asked = command("enroll", "approve", f"{tls}/north.csr", "--pki", pki, "--out", signed, stdin="n\n", expect=1)
    assert "site north" in asked
    command("enroll", "approve", f"{tls}/north.csr", "--pki", pki, "--out", signed, stdin="y\n")
    install = ["enroll", "install", signed, "--ca", f"{pki}/ca.crt", "--dir", tls, "--ca-fingerprint"]
    assert "Do not use it" in command(*install, "sha256:" + "0" * 64, expect=1)
    command(*install, made["fingerprint"])
    command("enroll", "renew", "north", "--dir", tls)
    command("enroll", "approve", f"{tls}/north.csr", "--pki", pki, "--out", signed, "--yes")
    command(*install, made["fingerprint"])
    command("pki", "revoke", "north", "--pki", pki)
    issued = json.loads(command("pki", "show", "--pki", pki, "--format", "json"))["issued"]
    assert [row["revoked"] for row in issued] == [True, True]
    assert "needs at least one --host" in command(
        "enroll", "request", "hub", "--role", "coordinator", "--dir", tls, expect=2
    )
    assert "is not a name" in command("enroll", "request", "Nörd", "--dir", tls, expect=2)


@pytest.mark.long
def test_doctor_finds_what_is_wrong_and_says_what_to_do(federation: LocalFederation, tmp_path: Path) -> None:
    """A readable key, a coordinator that is not there, a table that is not there."""
    text = (federation.directory / "a" / "participant.toml").read_text()
    shutil.copytree(federation.directory / "a" / "tls", tmp_path / "tls")
    (tmp_path / "tls" / "a.key").chmod(0o644)
    text = text.replace(str(federation.directory / "a" / "tls"), str(tmp_path / "tls"))
    text = text.replace(f"127.0.0.1:{federation.port}", "127.0.0.1:1").replace("a.csv", "gone.csv")
    config = tmp_path / "participant.toml"
    config.write_text(text)
    findings = json.loads(command("doctor", "--config", str(config), "--format", "json", expect=1))
    failing = {finding["check"]: finding for finding in findings if finding["status"] == "failing"}
    assert failing.keys() == {"private key", "coordinator", "data main"}
    assert "chmod 600" in failing["private key"]["remedy"]
    assert "cannot be reached" in failing["coordinator"]["what"]
    assert "configuration" in failing["data main"]["remedy"]
