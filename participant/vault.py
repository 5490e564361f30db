"""Secrets at rest: AES-256-GCM under a key from a file or a passphrase.

Key shares and job keys stand in the site's journal only in this form. The key file may live anywhere (a mounted
secret, a token); whoever has a copy of the state directory without it has no share.
"""

import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from commonscale.config import VaultConfig
from commonscale.errors import ConfigError, StateLost
from commonscale.files import read_file, write_private

KEY_BYTES = 32
_NONCE_BYTES = 12
_SCRYPT = {"n": 1 << 15, "r": 8, "p": 1}
PASSPHRASE_VARIABLE = "COMMONSCALE_PASSPHRASE"  # noqa: S105 - the name of a variable


class Vault:
    """Encrypts what must not be read from the disk."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def __repr__(self) -> str:
        return "Vault()"

    def lock(self, secret: bytes, context: bytes) -> bytes:
        """Encrypt for one place: what was locked for another does not open."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, context)

    def unlock(self, locked: bytes, context: bytes) -> bytes:
        """Decrypt, or StateLost."""
        try:
            return self._cipher.decrypt(locked[:_NONCE_BYTES], locked[_NONCE_BYTES:], context)
        except (InvalidTag, ValueError):
            raise StateLost(
                "A stored secret does not open: it was damaged, or the vault has another key than before.",
                "Put the old key file or passphrase back, or submit the job again.",
            ) from None


def open_vault(config: VaultConfig, state: Path) -> Vault:
    """From a passphrase (environment or file), else from the key file, which is made at the first start."""
    passphrase = os.environ.get(PASSPHRASE_VARIABLE, "")
    if config.passphrase_file is not None:
        passphrase = read_file(config.passphrase_file).decode().strip()
        if not passphrase:
            raise ConfigError(f"{config.passphrase_file} holds no passphrase.")
    if passphrase:
        salt = _file(state / "vault.salt", 16)
        return Vault(Scrypt(salt=salt, length=KEY_BYTES, **_SCRYPT).derive(passphrase.encode()))
    return Vault(_file(config.key_file or state / "vault.key", KEY_BYTES))


def _file(path: Path, size: int) -> bytes:
    """Random bytes in a file that only its owner reads; made if it is not there."""
    try:
        if not path.exists():
            write_private(path, secrets.token_bytes(size))
        found = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot use {path}: {error.strerror}.") from None
    if len(found) != size:
        raise ConfigError(f"{path} has {len(found)} bytes instead of {size}: it is not a vault file of ours.")
    return found
