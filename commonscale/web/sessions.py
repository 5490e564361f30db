"""Who a visitor is: a client certificate, or a token that was exchanged for a cookie.

A token is 32 random bytes, shown once; only its hash is kept. The cookie holds a name, an end and a code over both
under that hash, so that any replica can read it and removing the token ends its sessions.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

SESSION_S = 12 * 3600

# The hash of a member's token, if it has one now.
FindDigest = Callable[[str], Awaitable[bytes | None]]


def new_token() -> str:
    """A fresh token."""
    return f"cs_{secrets.token_urlsafe(32)}"


def digest(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True)
class Sessions:
    """Makes and reads cookies."""

    find: FindDigest
    # Not kept where the hashes are: whoever reads those alone can make no cookie.
    secret: bytes = field(default=b"", repr=False)

    async def issue(self, name: str) -> str:
        """A cookie for a member who has just shown a token."""
        kept = await self.find(name)
        if kept is None:
            raise LookupError(name)
        ends = str(int(time.time()) + SESSION_S)
        return f"{name}~{ends}~{self._code(kept, name, ends)}"

    async def read(self, cookie: str) -> str | None:
        """The member's name, while the session lasts."""
        name, _, rest = cookie.partition("~")
        ends, _, code = rest.partition("~")
        kept = await self.find(name) if name and ends.isascii() and ends.isdigit() and len(ends) < 12 else None
        if kept is None or not hmac.compare_digest(self._code(kept, name, ends).encode(), code.encode()):
            return None
        return name if int(ends) > time.time() else None

    def _code(self, kept: bytes, name: str, ends: str) -> str:
        key = hmac.new(kept, self.secret, hashlib.sha256).digest()
        return hmac.new(key, f"commonscale session\0{name}\0{ends}".encode(), hashlib.sha256).hexdigest()
