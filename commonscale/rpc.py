"""gRPC between daemons: TLS 1.3 both ways, typed errors both ways, versions on every call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn

import grpc
import structlog
from cryptography import x509

from commonscale import errors
from commonscale.config import Tls
from commonscale.identity import Authority, Identity, Role
from commonscale.version import PROTOCOL_VERSION, __version__

log = structlog.get_logger()

CHUNK_BYTES = 1 << 20
ERROR_KEY = "commonscale-error"
PROTOCOL_KEY = "commonscale-protocol"
VERSION_KEY = "commonscale-version"
CALL_METADATA = ((PROTOCOL_KEY, str(PROTOCOL_VERSION)), (VERSION_KEY, __version__))

_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.max_receive_message_length", CHUNK_BYTES + (64 << 10)),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Two coordinators on one port would each see half of the calls.
    ("grpc.so_reuseport", 0),
)
_CLIENT_OPTIONS = (
    *_OPTIONS,
    # An analyst's result of thousands of columns is one message.
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

# One row per error class that can cross the wire; a test compares it with the class tree.
WIRE_STATUS: dict[type[errors.CommonscaleError], grpc.StatusCode] = {
    errors.SlotEmpty: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unreachable: grpc.StatusCode.UNAVAILABLE,
    errors.StoreUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.Equivocation: grpc.StatusCode.ABORTED,
    errors.Disagreement: grpc.StatusCode.ABORTED,
    errors.BadMessage: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PayloadTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RunOver: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownJob: grpc.StatusCode.NOT_FOUND,
    errors.NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    errors.IncompatiblePeer: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TooFewSites: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeadlineMissed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SiteFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StateLost: grpc.StatusCode.DATA_LOSS,
    errors.Overflow: grpc.StatusCode.OUT_OF_RANGE,
    errors.SiteLost: grpc.StatusCode.FAILED_PRECONDITION,
    errors.JobFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Refused: grpc.StatusCode.PERMISSION_DENIED,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MissingColumn: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WrongType: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InfiniteValues: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfRange: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TooManyCategories: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownCategory: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnreadableData: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DataChanged: grpc.StatusCode.FAILED_PRECONDITION,
}
_BY_NAME = {kind.__name__: kind for kind in WIRE_STATUS}


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Read the files again at every handshake, so that a renewed certificate needs no restart."""

    def current() -> grpc.ServerCertificateConfiguration:
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], tls.ca.read_bytes())

    def refreshed() -> grpc.ServerCertificateConfiguration:
        try:
            return current()
        except OSError:
            log.warning("certificate files cannot be read; the ones in use stay", certificate=str(tls.certificate))
            return first

    try:
        first = current()
    except OSError as error:
        raise errors.ConfigError(f"Cannot read {error.filename}: {error.strerror}.") from None
    return grpc.dynamic_ssl_server_credentials(first, refreshed, require_client_authentication=True)


def connect(target: str, tls: Tls) -> grpc.aio.Channel:
    """A channel to the coordinator with this holder's certificate."""
    try:
        files = [path.read_bytes() for path in (tls.ca, tls.key, tls.certificate)]
    except OSError as error:
        raise errors.ConfigError(f"Cannot read {error.filename}: {error.strerror}.") from None
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(*files), options=_CLIENT_OPTIONS)


def new_server() -> grpc.aio.Server:
    """A server with our limits."""
    return grpc.aio.server(options=_SERVER_OPTIONS)


@dataclass(frozen=True)
class Caller:
    """Who is calling, from its certificate."""

    identity: Identity
    certificate: x509.Certificate
    version: str

    @property
    def name(self) -> str:
        """The holder's name."""
        return self.identity.name


# Told of every call that was refused: of whom, and why.
NoteRefusal = Callable[[str, errors.CommonscaleError], None]


class Gate:
    """Lets a call in: TLS 1.3, a current certificate, a role that may make the call, a release we can talk to."""

    def __init__(self, authority: Authority, note: NoteRefusal = lambda _who, _error: None) -> None:
        self.authority = authority
        self.note = note
        self._known: dict[bytes, tuple[x509.Certificate, Identity]] = {}

    def admit(self, context: grpc.aio.ServicerContext[Any, Any], roles: Sequence[Role]) -> Caller:
        """The caller, or NotAllowed / IncompatiblePeer."""
        auth = context.auth_context()
        pem = next(iter(auth.get("x509_pem_cert", [])), b"")
        if next(iter(auth.get("ssl_tls_version", [])), b"") != b"TLSv1.3":
            raise errors.NotAllowed("Only TLS 1.3 is spoken here.")
        if pem not in self._known:
            if len(self._known) > 10_000:
                self._known.clear()
            certificate = x509.load_pem_x509_certificate(pem)
            self._known[pem] = certificate, self.authority.verify(certificate)
        certificate, identity = self._known[pem]
        # A connection may outlive its certificate: ask at every call.
        self.authority.verify_current(certificate, identity)
        if identity.role not in roles:
            raise errors.NotAllowed(f"A certificate for {identity} does not allow this call.")
        metadata = _metadata(context.invocation_metadata())
        version = metadata.get(VERSION_KEY, "unknown")
        check_protocol(str(identity), version, metadata.get(PROTOCOL_KEY, "none"))
        return Caller(identity, certificate, version)

    def who(self, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        """Whom to name where a call is refused: what the certificate says, whether it counts or not."""
        pem = next(iter(context.auth_context().get("x509_pem_cert", [])), b"")
        try:
            return str(Identity.of(x509.load_pem_x509_certificate(pem)))
        except (ValueError, errors.NotAllowed):
            return "an unknown caller"


def check_protocol(peer: str, version: str, protocol: str) -> None:
    """Raise IncompatiblePeer naming the peer unless it speaks our protocol."""
    if protocol != str(PROTOCOL_VERSION):
        raise errors.IncompatiblePeer(
            f"{peer} runs commonscale {version} with protocol {protocol}; "
            f"this side runs {__version__} with protocol {PROTOCOL_VERSION}.",
            "Upgrade the older one.",
        )


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.CommonscaleError) -> NoReturn:
    """End a call with a typed error."""
    status = WIRE_STATUS.get(type(error), grpc.StatusCode.FAILED_PRECONDITION)
    await context.abort(status, str(error), trailing_metadata=((ERROR_KEY, type(error).__name__),))
    raise AssertionError("abort returned")


class GatedService:
    """A service whose methods are behind a Gate."""

    gate: Gate


def unary(*roles: Role) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """For a method that answers once: it gets (request, caller) and may raise our errors."""

    def decorate(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def handler(self: GatedService, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                return await method(self, request, self.gate.admit(context, roles))
            except errors.CommonscaleError as error:
                await _refuse(self.gate, method.__name__, context, error)
            except Exception:  # noqa: BLE001 - a daemon's top: the peer gets no inner detail
                await _crash(method.__name__, context)

        return handler

    return decorate


def streaming(
    *roles: Role,
) -> Callable[[Callable[..., AsyncIterator[Any]]], Callable[..., AsyncIterator[Any]]]:
    """For a method that answers with a stream: it gets (request, caller) and may raise our errors."""

    def decorate(method: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        @wraps(method)
        async def handler(
            self: GatedService, request: Any, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[Any]:
            try:
                async for response in method(self, request, self.gate.admit(context, roles)):
                    yield response
            except errors.CommonscaleError as error:
                await _refuse(self.gate, method.__name__, context, error)
            except Exception:  # noqa: BLE001 - a daemon's top: the peer gets no inner detail
                await _crash(method.__name__, context)

        return handler

    return decorate


async def _refuse(
    gate: Gate, method: str, context: grpc.aio.ServicerContext[Any, Any], error: errors.CommonscaleError
) -> NoReturn:
    if not isinstance(error, errors.TransientError):
        gate.note(gate.who(context), error)
        log.warning("call refused", method=method, peer=context.peer(), error=type(error).__name__, why=str(error))
    await abort(context, error)


async def _crash(method: str, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    log.exception("call failed", method=method, peer=context.peer())
    await context.abort(grpc.StatusCode.INTERNAL, "The daemon failed on this call; its log says more.")
    raise AssertionError("abort returned")


def from_wire(error: grpc.aio.AioRpcError, peer: str) -> errors.CommonscaleError:
    """A failed call as the error that the peer raised, or as a TransientError if it was not reached."""
    kind = _BY_NAME.get(_metadata(error.trailing_metadata()).get(ERROR_KEY, ""))
    details = error.details() or error.code().name
    if kind is not None:
        return kind(details)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return errors.Unreachable(f"{peer} cannot be reached: {_shorten(details)}.", _hint(details))
    if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return errors.Unreachable(f"{peer} did not answer in time.")
    return errors.ProtocolError(f"{peer} ended the call: {error.code().name}: {_shorten(details)}")


def _metadata(pairs: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in pairs or ()}


def _shorten(details: str) -> str:
    """GRPC's connection errors are a paragraph; the cause is at their end."""
    return details.rsplit("OPENSSL_internal:", 1)[-1][-200:]


def _hint(details: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "Its certificate is not accepted here: run `commonscale doctor`."
    if "CERTIFICATE" not in details and "SSL" not in details:
        return "Check the address, the firewall, and that it is running."
    if any(word in details for word in ("UNKNOWN_CA", "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "EXPIRED")):
        return "Our certificate is not accepted there: run `commonscale doctor`."
    return ""
