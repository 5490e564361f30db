"""A gRPC server that counts the bytes of a stream and keeps nothing: what the relay is compared with."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from commonscale import rpc
from commonscale.config import Tls
from commonscale.daemon import write_ready
from commonscale.grpc_loading import grpc

METHOD = "/bench.Bare/Carry"


class _Carry(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def carry(requests: AsyncIterator[bytes], _: Any) -> bytes:
            total = 0
            async for chunk in requests:
                total += len(chunk)
            return str(total).encode()

        return grpc.stream_unary_rpc_method_handler(carry) if details.method == METHOD else None


async def _serve(directory: Path) -> None:
    tls = Tls(certificate=directory / "coordinator.crt", key=directory / "coordinator.key", ca=directory / "ca.crt")
    server = rpc.new_server()
    server.add_generic_rpc_handlers((_Carry(),))
    port = server.add_secure_port("127.0.0.1:0", rpc.server_credentials(tls))
    await server.start()
    write_ready(Path(sys.argv[2]), port=port)
    await server.wait_for_termination(timeout=3600)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
