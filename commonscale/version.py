"""The release, and the version of the wire protocol it speaks."""

__version__ = "0.1.0"

# Raised when daemons of two releases can no longer talk to each other.
PROTOCOL_VERSION = 2
