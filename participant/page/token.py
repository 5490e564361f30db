"""The token that opens the page. Whoever reads the state directory may decide by command anyway."""

import hmac
from pathlib import Path

from commonscale.errors import ConfigError
from commonscale.files import private_directory, write_private
from commonscale.web.login import Login
from commonscale.web.sessions import Sessions, digest, new_token

# The one visitor that there is.
VISITOR = "operator"


def token_path(state: Path) -> Path:
    """Where it is kept."""
    return state / "page.token"


def read_token(state: Path) -> str:
    """The token now in use; empty if there is none."""
    try:
        return token_path(state).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {token_path(state)}: {getattr(error, 'strerror', error)}.") from None


def ensure_token(state: Path) -> str:
    """The token in use, made if there is none."""
    private_directory(state)
    if not token_path(state).exists():
        write_private(token_path(state), f"{new_token()}\n".encode())
    token = read_token(state)
    if not token:
        raise ConfigError(f"{token_path(state)} is empty.", "Remove it: a new one is made at the next start.")
    return token


def renew_token(state: Path) -> str:
    """Another token: the old one and all its sessions end."""
    private_directory(state)
    token = new_token()
    fresh = token_path(state).with_suffix(".new")
    fresh.unlink(missing_ok=True)
    write_private(fresh, f"{token}\n".encode())
    fresh.replace(token_path(state))
    return token


def login(site: str, state: Path) -> Login:
    """The way into the page. The token is looked up each time, so that another one ends what was open."""

    async def find(name: str) -> bytes | None:
        token = read_token(state)
        return digest(token) if token and name == VISITOR else None

    async def find_name(token: str) -> str | None:
        expected = read_token(state)
        known = bool(expected) and hmac.compare_digest(token.encode(), expected.encode())
        return VISITOR if known else None

    hint = "On the daemon's machine, commonscale page token --config participant.toml prints the token."
    return Login(f"site {site}", f"commonscale_{site}", hint, Sessions(find), find_name)
