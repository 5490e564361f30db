"""Workers that say to a participant what no worker says: damaged frames, lies about arrays, floods, other ids.

Every one is a real peer on the participant's socket. What they send is drawn from a seed.
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from commonscale_worker import wire
from commonscale_worker.v1 import worker_pb2 as pb

from participant.attachment import RECEIVED_HIGH_WATER
from tests.patience import PATIENCE_S

Frames = list[bytes]
HUGE = (2**64 - 1, 2**63, 2**63 - 1, 2**62, 2**61, 2**32, 2**31)


def header(body: str, arrays: list[pb.Array] | None = None, version: int = wire.VERSION, **fields: Any) -> bytes:
    """A header that no check stood before."""
    made = pb.Header(version=version, arrays=arrays or [])
    getattr(made, body).SetInParent()
    for name, value in fields.items():
        setattr(getattr(made, body), name, value)
    return made.SerializeToString()


def hello(models: Mapping[str, str], versions: tuple[int, ...] = (wire.VERSION,), software: str = "hostile") -> Frames:
    """As an honest worker begins."""
    offers = [pb.ModelOffer(name=name, digest=digest) for name, digest in models.items()]
    return [bytes(part) for part in wire.frames(pb.Hello(versions=versions, models=offers, software=software))]


def _honest(r: random.Random, task: str) -> Frames:
    """A message as a worker may send it, to be damaged."""
    vector = np.frombuffer(r.randbytes(8 * r.randrange(1, 40)), "<f8")
    bodies = [pb.Result(id=task), pb.Prepared(id=task, rows=3), pb.Failed(id=task, text="x" * 50), pb.Progress()]
    return [bytes(part) for part in wire.frames(r.choice(bodies), {"weights": vector})]


def _random_bytes(r: random.Random, _: str) -> Frames:
    return [r.randbytes(r.choice([0, 1, 7, 100, 5000])) for _ in range(r.randrange(1, 4))]


def _truncated_header(r: random.Random, task: str) -> Frames:
    first, *rest = _honest(r, task)
    return [first[: r.randrange(len(first))], *rest]


def _flipped_bit(r: random.Random, task: str) -> Frames:
    first, *rest = _honest(r, task)
    at = r.randrange(len(first))
    return [first[:at] + bytes([first[at] ^ 1 << r.randrange(8)]) + first[at + 1 :], *rest]


def _wrong_count(r: random.Random, task: str) -> Frames:
    frames = _honest(r, task)
    return frames[:1] if r.random() < 0.5 else [*frames, *frames[1:] * r.randrange(1, 20)]


def _wrong_dtype(r: random.Random, task: str) -> Frames:
    dtype = r.choice(["|O8", "O", "<f2", ">f8", "<U4", "<M8[s]", "V8", "", "weights", "<f8,<f8", "\u2603"])
    return [header("result", [pb.Array(name="weights", dtype=dtype, shape=[1])], id=task), bytes(8)]


def _wrong_shape(r: random.Random, task: str) -> Frames:
    """Sizes that overflow 64 bits to a small or negative number, or to none."""
    shape = [r.choice([*HUGE, 0, 1, 2]) for _ in range(r.randrange(1, 12))]
    raw = bytes(8 * r.choice([size for size in (0, 1, 2) if size != math.prod(shape)]))
    return [header("result", [pb.Array(name="weights", dtype="<f8", shape=shape)], id=task), raw]


def _empty_of_impossible_shape(r: random.Random, task: str) -> Frames:
    """No bytes are right for this shape, and yet no array has it."""
    shape = [0, *r.sample(HUGE, 2)]
    return [header("result", [pb.Array(name="weights", dtype="<f8", shape=shape)], id=task), b""]


def _many_frames(r: random.Random, _: str) -> Frames:
    return [header("hello"), *[b"x"] * r.choice([17, 500, 5000])]


def _empty(r: random.Random, _: str) -> Frames:
    return [b""] * r.choice([1, 1, 2, 17])


def _long_header(r: random.Random, _: str) -> Frames:
    return [header("hello", software="x" * r.choice([1 << 18, (1 << 20) + 1]))]


def _wrong_kind(r: random.Random, task: str) -> Frames:
    return [header(r.choice(["welcome", "reject", "prepare", "task", "cancel", "stop"]))]


def _two_arrays_of_one_name(r: random.Random, task: str) -> Frames:
    twice = [pb.Array(name="weights", dtype="|u1", shape=[1])] * 2
    return [header("result", twice, id=task), b"1", b"2"]


def _other_version(r: random.Random, task: str) -> Frames:
    if r.random() < 0.5:
        return hello({"risk-sgd": "0" * 64}, versions=(2, 99, 2**32 - 1))
    return [header("result", version=r.choice([0, 2, 2**32 - 1]), id=task)]


def _bad_offer(r: random.Random, _: str) -> Frames:
    return r.choice([
        hello({}), hello({"risk-sgd": "no digest"}), hello({"": "0" * 64}), hello({"../../etc": "0" * 64}),
        hello({f"m{number}": "0" * 64 for number in range(101)}), hello({"x" * 10_000: "0" * 64}),
    ])  # fmt: skip


def _other_id(r: random.Random, _: str) -> Frames:
    """Results of tasks that nobody asked for; not damaged, and of no effect."""
    kind = r.choice(["result", "prepared", "failed", "cancelled", "accepted", "progress"])
    return [header(kind, id=r.choice(["", "other/1/train", "x" * 1000, "../../etc/passwd"]))]


def _odd_progress(r: random.Random, task: str) -> Frames:
    return [header("progress", id=task, share=r.choice([float("nan"), float("inf"), -1e300, 7.0]))]


# What is refused from whoever sends it.
DAMAGES: dict[str, Callable[[random.Random, str], Frames]] = {
    "random bytes": _random_bytes, "truncated header": _truncated_header, "flipped bit": _flipped_bit,
    "wrong count": _wrong_count, "wrong dtype": _wrong_dtype, "wrong shape": _wrong_shape,
    "empty of impossible shape": _empty_of_impossible_shape, "many frames": _many_frames, "empty": _empty,
    "long header": _long_header, "wrong kind": _wrong_kind, "two arrays of one name": _two_arrays_of_one_name,
    "other version": _other_version, "bad offer": _bad_offer,
}  # fmt: skip
# What an attached worker may say at any time, without effect.
ODDITIES = {"other id": _other_id, "odd progress": _odd_progress}


class Peer:
    """A real connection to a participant's socket; as a worker it says Hello first."""

    def __init__(self, address: str, seed: int = 0, **options: Any) -> None:
        self.random = random.Random(seed)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = self.socket.rcvtimeo = PATIENCE_S * 1000
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(address)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.context.destroy(linger=0)

    def say(self, body: Any, arrays: wire.Arrays | None = None) -> None:
        """Well formed."""
        self.socket.send_multipart(wire.frames(body, arrays))

    def hear(self, *kinds: str) -> wire.Message:
        """The next message of one of these kinds; others are left out."""
        while True:
            message = wire.parse(self.socket.recv_multipart())
            if not kinds or message.kind in kinds:
                return message

    def heard(self) -> list[str]:
        """Kinds of all that waits to be read."""
        found = []
        while self.socket.poll(0):
            found.append(wire.parse(self.socket.recv_multipart()).kind)
        return found

    def attach(self, models: Mapping[str, str]) -> wire.Message:
        """Welcome, or Reject."""
        self.socket.send_multipart(hello(models))
        return self.hear("welcome", "reject")


class StrangerThatSendsDamage(Peer):
    """Never says a Hello that could be welcomed."""

    def send_damage(self, count: int, task: str = "job/1/train") -> None:
        """One after the other, each with its Reject."""
        for _ in range(count):
            self.socket.send_multipart(DAMAGES[self.random.choice(list(DAMAGES))](self.random, task))
            self.hear("reject")

    def send_other_ids(self, count: int) -> None:
        """Well formed, without having been welcomed."""
        for _ in range(count):
            self.socket.send_multipart(_other_id(self.random, ""))
            self.hear("reject")


class SecondWorker(Peer):
    """Says Hello while another one is attached."""

    def insist(self, models: Mapping[str, str], count: int) -> set[str]:
        """Kinds of what it hears."""
        return {self.attach(models).kind for _ in range(count)}


class FloodThatNeverReads(Peer):
    """Sends as fast as it can and takes no answer."""

    def __init__(self, address: str, seed: int = 0) -> None:
        super().__init__(address, seed, rcvhwm=1, sndtimeo=10_000)

    def flood(self, count: int) -> None:
        """So many messages; fewer if nobody takes them any more."""
        with contextlib.suppress(zmq.Again):
            for _ in range(count):
                self.socket.send_multipart(_random_bytes(self.random, ""))


class WorkerThatNeverReads(Peer):
    """Attached, alive by its heartbeats, and deaf."""

    def __init__(self, address: str, seed: int = 0) -> None:
        super().__init__(address, seed, rcvhwm=1)


class WorkerThatSendsDamage(StrangerThatSendsDamage):
    """Attached with the right models; damage of every kind follows."""

    def settle(self, models: Mapping[str, str]) -> None:
        """After a flood, which may have ended the process of the socket with all its connections: attach to the next.

        libzmq aborts at a heartbeat, so that it is another process in a moment, or stays.
        """
        time.sleep(2.0)
        self.heard()
        assert self.attach(models).kind == "welcome"

    def send_damage_attached(self, count: int) -> None:
        """One after the other; each has its Reject but a flipped bit, which may have no effect."""
        for _ in range(count):
            name = self.random.choice(list(DAMAGES))
            self.heard()
            self.socket.send_multipart(DAMAGES[name](self.random, "job/1/train"))
            if name != "flipped bit":
                self.hear("reject")

    def send_oddities(self, count: int, task: str = "") -> None:
        """What has no effect on the task under way."""
        for _ in range(count):
            self.socket.send_multipart(self.random.choice(list(ODDITIES.values()))(self.random, task))

    def answer_with(self, damage: str, task: str) -> None:
        """One damaged message as the answer to a task."""
        self.socket.send_multipart(DAMAGES[damage](self.random, task))


class NoZeroMq:
    """Bytes on the socket file that are not even the transport's protocol."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.path, self.random = path, random.Random(seed)

    def send(self, count: int) -> None:
        """A connection each; some stay silent, some are cut off in the middle of a greeting."""
        for _ in range(count):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(PATIENCE_S)
                try:
                    raw.connect(str(self.path))
                    raw.sendall(self.random.choice([b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" + bytes(8), b"\xff" * 64]))
                    raw.sendall(self.random.randbytes(self.random.randrange(2000)))
                except OSError:
                    # It hung up, which was wanted, or too many wait already.
                    time.sleep(0.01)


class ZeroMqByHand:
    """Speaks ZMTP 3.1 itself, to say what libzmq never would."""

    GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    READY = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    PING = b"\x04PING" + bytes(2)
    LAST, MORE, COMMAND = 0, 1, 4

    def __init__(self, path: Path) -> None:
        self.raw = socket.socket(socket.AF_UNIX)
        self.raw.settimeout(PATIENCE_S)
        self.raw.connect(str(path))
        self.raw.sendall(self.GREETING + self.frame(self.COMMAND, self.READY))
        # Its greeting and its READY: it takes messages now.
        self.raw.recv(len(self.GREETING), socket.MSG_WAITALL)
        self.raw.recv(2, socket.MSG_WAITALL)

    @staticmethod
    def frame(kind: int, body: bytes) -> bytes:
        return bytes([kind, len(body)]) + body

    def hang_up_after_a_flood(self) -> None:
        """More than the queue takes, a PING behind it: libzmq answers that on a connection that is gone, and aborts."""
        # What does not fit waits in the 8 KiB that libzmq has read, the PING with it.
        flood = self.frame(self.LAST, b"x") * (RECEIVED_HIGH_WATER + 300)
        self.raw.sendall(flood + self.frame(self.COMMAND, self.PING))
        self.raw.close()

    def send_frames_without_end(self, most_bytes: int) -> int:
        """One message that is never whole; returns how many bytes of it were taken."""
        body = bytes(1 << 20)
        frame = bytes([self.MORE | 2]) + len(body).to_bytes(8, "big") + body
        taken = 0
        with contextlib.suppress(OSError):
            while taken < most_bytes:
                self.raw.sendall(frame)
                taken += len(body)
        self.raw.close()
        return taken
