"""gRPC between daemons: TLS 1.3 both ways, typed errors both ways, versions on every call."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias, cast

import structlog
from cryptography import x509

from commonscale import errors
from commonscale.config import Tls
from commonscale.files import read_file
from commonscale.grpc_loading import grpc
from commonscale.identity import Authority, Identity, Role
from commonscale.version import PROTOCOL_VERSION, __version__

log = structlog.get_logger()

ServerContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

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

# Every error class that can cross the wire, by its status; a test compares it with the class tree.
_STATUS = grpc.StatusCode
WIRE_STATUS: dict[type[errors.CommonscaleError], grpc.StatusCode] = {
    kind: status
    for status, kinds in {
        _STATUS.DEADLINE_EXCEEDED: (errors.SlotEmpty,),
        _STATUS.UNAVAILABLE: (errors.Unreachable, errors.StoreUnavailable),
        _STATUS.ABORTED: (errors.Equivocation, errors.Disagreement),
        _STATUS.INVALID_ARGUMENT: (errors.BadMessage, errors.ConfigError),
        _STATUS.RESOURCE_EXHAUSTED: (errors.PayloadTooLarge,),
        _STATUS.NOT_FOUND: (errors.UnknownJob,),
        _STATUS.PERMISSION_DENIED: (errors.NotAllowed, errors.Refused),
        _STATUS.DATA_LOSS: (errors.StateLost,),
        _STATUS.OUT_OF_RANGE: (errors.Overflow,),
        _STATUS.FAILED_PRECONDITION: (
            errors.RunOver, errors.IncompatiblePeer, errors.TooFewSites, errors.DeadlineMissed, errors.SiteFailed,
            errors.SiteLost, errors.Unplanned, errors.WorkerFailed, errors.JobFailed, errors.GrpcLoadedBefore,
            errors.MissingColumn, errors.WrongType, errors.InfiniteValues, errors.OutOfRange, errors.TooManyCategories,
            errors.UnknownCategory, errors.UnreadableData, errors.ModelMismatch, errors.DataChanged,
        ),
    }.items()
    for kind in kinds
}  # fmt: skip
_BY_NAME = {kind.__name__: kind for kind in WIRE_STATUS}


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Look at the files again at every handshake, so that a renewed certificate needs no restart."""
    in_use, lock = _read(tls), threading.Lock()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal in_use
        # gRPC frees what it replaces under the other handshakes of that moment: once, where there is something new.
        with lock:
            try:
                found = _read(tls)
            except errors.ConfigError:
                log.warning("certificate files cannot be read; the ones in use stay", certificate=str(tls.certificate))
                return None
            if found == in_use:
                return None
            in_use = found
            return _certificates(found)

    # The stubs do not know that it may answer None, for "as before".
    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], renewed)
    return grpc.dynamic_ssl_server_credentials(_certificates(in_use), fetch, require_client_authentication=True)


def _certificates(files: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    ca, key, certificate = files
    return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)


def connect(target: str, tls: Tls) -> grpc.aio.Channel:
    """A channel to the coordinator with this holder's certificate."""
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(*_read(tls)), options=_CLIENT_OPTIONS)


def _read(tls: Tls) -> tuple[bytes, bytes, bytes]:
    """The CA, our key and our certificate."""
    return read_file(tls.ca), read_file(tls.key), read_file(tls.certificate)


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

    def admit(self, context: ServerContext, roles: Sequence[Role]) -> Caller:
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

    def who(self, context: ServerContext) -> str:
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


class GatedService:
    """A service whose methods are behind a Gate."""

    gate: Gate

    @asynccontextmanager
    async def admitting(self, method: str, context: ServerContext, roles: Sequence[Role]) -> AsyncIterator[Caller]:
        """Let the caller in; an error in the block ends the call with a typed one, or one without inner detail."""
        try:
            yield self.gate.admit(context, roles)
        except errors.CommonscaleError as error:
            if not isinstance(error, errors.TransientError):
                self.gate.note(self.gate.who(context), error)
                kind = type(error).__name__
                log.warning("call refused", method=method, peer=context.peer(), error=kind, why=str(error))
            status = WIRE_STATUS.get(type(error), grpc.StatusCode.FAILED_PRECONDITION)
            await context.abort(status, str(error), trailing_metadata=((ERROR_KEY, type(error).__name__),))
        except Exception:
            log.exception("call failed", method=method, peer=context.peer())
            await context.abort(grpc.StatusCode.INTERNAL, "The daemon failed on this call; its log says more.")


def unary(*roles: Role) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """For a method that answers once: it gets (request, caller) and may raise our errors."""

    def decorate(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def handler(self: GatedService, request: Any, context: ServerContext) -> Any:
            async with self.admitting(method.__name__, context, roles) as caller:
                return await method(self, request, caller)

        return handler

    return decorate


def streaming(*roles: Role) -> Callable[[Callable[..., AsyncIterator[Any]]], Callable[..., AsyncIterator[Any]]]:
    """For a method that answers with a stream: it gets (request, caller) and may raise our errors."""

    def decorate(method: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        @wraps(method)
        async def handler(self: GatedService, request: Any, context: ServerContext) -> AsyncIterator[Any]:
            async with self.admitting(method.__name__, context, roles) as caller:
                async for response in method(self, request, caller):
                    yield response

        return handler

    return decorate


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
