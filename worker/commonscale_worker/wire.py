"""Frames between a participant and its worker: a protobuf header, then one raw little-endian frame per array.

Both ends use this module. What a peer sends is checked before it is used: types from a list, as many bytes as the shape
says, no more arrays than a message has. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from commonscale_worker.v1 import worker_pb2 as pb

# Of the protocol.
VERSION = 1
MAX_HEADER_BYTES = 1 << 20
MAX_ARRAYS = 16
DTYPES = ("<f4", "<f8", "<i8", "|u1")
# Smaller frames are copied: that costs less than keeping their memory until they are sent.
ZERO_COPY_BYTES = 1 << 16

Arrays = dict[str, "np.ndarray[Any, Any]"]


class BadFramesError(ValueError):
    """What a peer sent is no message of this protocol."""


class Message(NamedTuple):
    """A parsed message: its kind, what it says, and its arrays (read-only views of the frames)."""

    kind: str
    body: Any
    arrays: Arrays
    version: int = VERSION


def described(arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[pb.Array]:
    """What a header says of arrays."""
    return [pb.Array(name=name, dtype=array.dtype.str, shape=array.shape) for name, array in arrays.items()]


def frames(body: Any, arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> list[Any]:
    """A message as frames to be sent; arrays are not copied, and must not change until they have left."""
    packed = {name: _little_endian(array) for name, array in (arrays or {}).items()}
    header = pb.Header(version=VERSION, arrays=described(packed))
    field = pb.Header.DESCRIPTOR.oneofs_by_name["body"]
    name = next(one.name for one in field.fields if one.message_type is body.DESCRIPTOR)
    getattr(header, name).CopyFrom(body)
    # An empty message is set only by being named.
    getattr(header, name).SetInParent()
    return [header.SerializeToString(), *(array.reshape(-1).data.cast("B") for array in packed.values())]


def parse(received: Sequence[Any]) -> Message:
    """Frames as a message, or BadFramesError with a sentence that says what is wrong."""
    if not received or len(received) > 1 + MAX_ARRAYS:
        raise BadFramesError(f"a message has a header and up to {MAX_ARRAYS} arrays, not {len(received)} frames")
    if len(received[0]) > MAX_HEADER_BYTES:
        raise BadFramesError("the header is too long")
    try:
        header = pb.Header.FromString(bytes(received[0]))
    except DecodeError:
        raise BadFramesError("the header is malformed") from None
    kind = header.WhichOneof("body")
    if kind is None:
        raise BadFramesError("the header says nothing that this version knows")
    if len(header.arrays) != len(received) - 1:
        raise BadFramesError(f"{len(header.arrays)} arrays are announced and {len(received) - 1} were sent")
    arrays = {array.name: _array(array, raw) for array, raw in zip(header.arrays, received[1:])}
    if len(arrays) != len(header.arrays):
        raise BadFramesError("two arrays have one name")
    return Message(kind, getattr(header, kind), arrays, header.version)


def _array(described_as: pb.Array, raw: Any) -> np.ndarray[Any, Any]:
    if described_as.dtype not in DTYPES:
        raise BadFramesError(f"an array has a type that is not among {', '.join(DTYPES)}")
    shape = tuple(described_as.shape)
    dtype = np.dtype(described_as.dtype)
    # In Python's integers, which do not overflow.
    if len(shape) > 8 or math.prod(shape) * dtype.itemsize != len(raw):
        raise BadFramesError("an array has other bytes than its shape says")
    found = np.frombuffer(raw, dtype).reshape(shape)
    found.flags.writeable = False
    return found


def _little_endian(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Contiguous, in a type that may be sent."""
    found = np.ascontiguousarray(array)
    found = found.astype(found.dtype.newbyteorder("<"), copy=False)
    if found.dtype.str not in DTYPES:
        raise BadFramesError(f"arrays of type {found.dtype} are not sent")
    return found
