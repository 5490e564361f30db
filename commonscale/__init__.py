"""commonscale puts the data of many sites on a common scale without moving it."""

import os

from commonscale.version import __version__

# gRPC reads these when it is first loaded, so they stand before everything else.
# It has no setting for a minimum TLS version: leaving only an RSA suite for TLS 1.2, while all our keys are elliptic,
# makes every TLS 1.2 handshake fail; TLS 1.3 suites are not affected.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
# Refused handshakes are reported by us, with the peer's name; gRPC's own lines would repeat them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = ["__version__"]
