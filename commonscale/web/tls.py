"""TLS for pages: the daemon's certificate, and the visitor's if it shows one."""

import asyncio
import ssl
from typing import Any

from cryptography import x509
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from commonscale.config import Tls
from commonscale.errors import ConfigError

_KEY = "commonscale.certificate"
# From a connection to the end of its first request's headers.
FIRST_REQUEST_S = 10.0


def server_context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.3 with our certificate; a client's is asked for and need not come."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        context.load_verify_locations(tls.ca)
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The dashboard cannot use {tls.certificate}: {error.strerror or error}.") from None
    return context


def refresh(context: ssl.SSLContext, tls: Tls) -> None:
    """Take a renewed certificate into use, for connections from now on; ConfigError while its key is not there yet."""
    server_context(tls)
    context.load_cert_chain(tls.certificate, tls.key)


class CertificateProtocol(H11Protocol):
    """HTTP that tells the application which certificate the connection showed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Once a connection, after its handshake."""
        super().connection_made(transport)
        self.loop.call_later(FIRST_REQUEST_S, self._give_up)
        tls: Any = transport.get_extra_info("ssl_object")
        # Every request of this connection begins with a copy.
        self.app_state = {_KEY: tls.getpeercert(binary_form=True) if tls else None}

    def _give_up(self) -> None:
        """Whoever has asked nothing by now is not kept."""
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def certificate_of(request: Request) -> x509.Certificate | None:
    """What the visitor's connection showed; its chain was checked in the handshake."""
    der = request.scope.get("state", {}).get(_KEY)
    return x509.load_der_x509_certificate(der) if der else None
