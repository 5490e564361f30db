"""A slot names one message of one run; it is written once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from commonscale.errors import BadMessage
from commonscale.names import JOB_ID_PATTERN, NAME_PATTERN
from commonscale.v1 import relay_pb2

# "@" cannot occur in a site's name, so no site can pose as one of these.
COORDINATOR = "@coordinator"
ALL = "@all"

_RUN_PATTERN = re.compile(rf"{JOB_ID_PATTERN.pattern}(?:/[0-9]{{1,4}}(?:/[0-9]{{1,6}})?)?")
_KIND_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def step_run(run: str) -> str:
    """The step that a round of a session belongs to: `job/0` of `job/0/17`. Other runs are themselves."""
    return "/".join(run.split("/")[:2])


@dataclass(frozen=True)
class Slot:
    """(run, kind, sender, receiver).

    A run is a job's id, that id and the number of a step: `job/0`, or of a round in a step's session: `job/0/17`.
    """

    run: str
    kind: str
    sender: str
    receiver: str

    def __str__(self) -> str:
        return f"{self.run} {self.kind} {self.sender}→{self.receiver}"

    @property
    def job_id(self) -> str:
        """The job that the run belongs to."""
        return self.run.partition("/")[0]

    def context(self) -> bytes:
        """Unambiguous bytes, to bind keys and signatures to this slot."""
        return "\0".join(("slot", self.run, self.kind, self.sender, self.receiver)).encode()

    def to_wire(self) -> relay_pb2.Slot:
        """As a message."""
        return relay_pb2.Slot(run=self.run, kind=self.kind, sender=self.sender, receiver=self.receiver)

    @classmethod
    def from_wire(cls, wire: relay_pb2.Slot) -> Slot:
        """From a peer's message, checked."""
        ends_ok = all(
            name in (COORDINATOR, ALL) or NAME_PATTERN.fullmatch(name) for name in (wire.sender, wire.receiver)
        )
        if not (_RUN_PATTERN.fullmatch(wire.run) and _KIND_PATTERN.fullmatch(wire.kind) and ends_ok):
            raise BadMessage("A slot's name is not well formed.")
        if wire.sender == ALL:
            raise BadMessage("A message has one sender.")
        return cls(wire.run, wire.kind, wire.sender, wire.receiver)
