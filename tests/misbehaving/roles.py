"""Roles that keep to the protocol but for some of their messages, and jobs in which one takes part.

A named role is a class in the module of the protocol that it attacks: `CoordinatorThat…`, `SiteThat…`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from google.protobuf.message import Message

from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.seal import Envelope
from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.concurrency import first_error
from commonscale.errors import CommonscaleError
from commonscale.pipeline import Pipeline
from commonscale.v1 import protocols_pb2 as wire
from tests.categories import SITES, job
from tests.federation import CategorySource, Federation, Result, Table
from tests.patience import PATIENCE_S

COLUMNS = ["a"]
# Cells that no error may show.
CELLS = {"east": ["x!", "y!", "e!"], "north": ["x!", "y!", "n!"], "south": ["x!", "s!"], "west": ["x!", "y!", "w!"]}
TABLES = {site: CategorySource({"a": cells, "y": [1.0] * len(cells)}) for site, cells in CELLS.items()}

# Changes a message in place, or returns another one.
Change = Callable[[Any], Any]
Rewrite = Callable[[Slot, bytes], bytes]


def as_it_is(_: Slot, payload: bytes) -> bytes:
    return payload


class ChangingMailbox:
    """A role's mailbox that changes what the role sends, or what it is shown."""

    def __init__(self, honest: MemoryMailbox, sent: Rewrite = as_it_is, shown: Rewrite = as_it_is) -> None:
        self._honest, self._sent, self._shown = honest, sent, shown

    async def put(self, slot: Slot, payload: bytes) -> None:
        await self._honest.put(slot, self._sent(slot, payload))

    async def get(self, slot: Slot) -> bytes:
        return self._shown(slot, await self._honest.get(slot))


def changing(kind: str, change: Change, receiver: str | None = None) -> Rewrite:
    """Change messages of one kind."""
    message_type: type[Message] = getattr(wire, kind.rpartition(".")[2])

    def changed(slot: Slot, payload: bytes) -> bytes:
        if slot.kind != kind or (receiver and slot.receiver != receiver):
            return payload
        message = message_type.FromString(payload)
        made = change(message)
        return (made if isinstance(made, message_type) else message).SerializeToString(deterministic=True)

    return changed


def field_of(name: str, change: Callable[[bytes], bytes]) -> Change:
    """Change one field of bytes."""
    return lambda message: setattr(message, name, change(getattr(message, name)))


def flipped(raw: bytes) -> bytes:
    """One bit of the first byte is another."""
    return bytes([raw[0] ^ 1]) + raw[1:]


class Misbehaving:
    """What all of them are to a job: other mailboxes, and maybe patched code."""

    def mailboxes(self, federation: Federation) -> dict[str, Any]:
        """By the name of the role whose messages change on their way."""
        return {}

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """For what is sealed, a change of the code that seals."""


class SiteThatChanges(Misbehaving):
    """A site that sends other messages of one kind: to all, or to one receiver."""

    def __init__(self, site: str, kind: str, change: Change, *, to: str | None = None) -> None:
        self.site = site
        self._changed = changing(kind, change, to)

    def mailboxes(self, federation: Federation) -> dict[str, Any]:
        """To the coordinator it sends in the open."""
        return {self.site: ChangingMailbox(federation.mailbox, sent=self._in_the_open)}

    def _in_the_open(self, slot: Slot, payload: bytes) -> bytes:
        return self._changed(slot, payload) if slot.receiver == COORDINATOR else payload

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """To a site it seals, and signs what it has changed."""
        honest = Envelope.seal

        def seal(envelope: Envelope, slot: Slot, body: bytes) -> bytes:
            return honest(envelope, slot, self._changed(slot, body) if envelope.me == self.site else body)

        patch.setattr(Envelope, "seal", seal)


class CoordinatorThatChanges(Misbehaving):
    """A coordinator that sends all sites other messages of one kind."""

    def __init__(self, kind: str, change: Change) -> None:
        self._changed = changing(kind, change)

    def mailboxes(self, federation: Federation) -> dict[str, Any]:
        """What it sends."""
        return {COORDINATOR: ChangingMailbox(federation.mailbox, sent=self._changed)}


class CoordinatorThatShows(Misbehaving):
    """A coordinator that shows one site other bytes than it shows the others."""

    def __init__(self, site: str, rewrite: Rewrite) -> None:
        self.site = site
        self._rewrite = rewrite

    def mailboxes(self, federation: Federation) -> dict[str, Any]:
        """What the site is shown."""
        return {self.site: ChangingMailbox(federation.mailbox, shown=self._rewrite)}


class CoordinatorThatShowsAnother(CoordinatorThatShows):
    """A coordinator that shows one site another message of one kind than it shows the others."""

    def __init__(self, site: str, kind: str, change: Change) -> None:
        super().__init__(site, changing(kind, change))


class CoordinatorThatDamages(CoordinatorThatShows):
    """A coordinator that damages what it passes on to one site."""

    def __init__(self, site: str, kind: str, damage: Callable[[bytes], bytes]) -> None:
        def damaged(slot: Slot, payload: bytes) -> bytes:
            return damage(payload) if slot.kind == kind and slot.receiver in (site, ALL) else payload

        super().__init__(site, damaged)


class CoordinatorThatReplays(CoordinatorThatShows):
    """A coordinator that shows one site the messages of an earlier run in place of one kind."""

    def __init__(self, site: str, kind: str, before: Mapping[Slot, bytes]) -> None:
        super().__init__(site, lambda slot, payload: before[slot] if slot.kind == kind else payload)


class Nobody(Misbehaving):
    """All keep to the protocol."""


async def all_roles(
    federation: Federation, pipeline: Pipeline, mailboxes: Mapping[str, Any], tables: Mapping[str, Table],
    ended: dict[str, Result],
) -> dict[str, Result]:  # fmt: skip
    """All roles, over the mailboxes that they are given; `ended` says who came to an end before an error."""

    async def role(name: str) -> None:
        if name == COORDINATOR:
            ended[name] = await federation.coordinator(pipeline, mailboxes.get(name))
        else:
            ended[name] = await federation.site(name, pipeline, tables[name], mailboxes.get(name))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for name in (COORDINATOR, *federation.members):
                tasks.start_soon(role, name)
    return ended


def run_pipeline(
    federation: Federation, liar: Misbehaving, pipeline: Pipeline, tables: Mapping[str, Table]
) -> dict[str, Result]:
    """A job in which one role misbehaves, to its end."""
    with pytest.MonkeyPatch.context() as patch:
        liar.patch(patch)
        return anyio.run(all_roles, federation, pipeline, liar.mailboxes(federation), tables, {})


def failed_run(
    federation: Federation, liar: Misbehaving, pipeline: Pipeline, tables: Mapping[str, Table]
) -> tuple[CommonscaleError, dict[str, Result]]:
    """The error of whoever noticed first, and the results of those who had come to an end."""
    ended: dict[str, Result] = {}
    with pytest.MonkeyPatch.context() as patch:
        liar.patch(patch)
        with pytest.raises(BaseException) as caught:
            anyio.run(all_roles, federation, pipeline, liar.mailboxes(federation), tables, ended)
    error = first_error(caught.value)
    assert isinstance(error, CommonscaleError), repr(error)
    assert "!" not in str(error), "an error shows no cell"
    return error, ended


def run_with(
    federation: Federation, liar: Misbehaving, tables: Mapping[str, Table] = TABLES, **step: Any
) -> dict[str, Result]:
    """An encoding in which one role misbehaves, to its end."""
    return run_pipeline(federation, liar, job(SITES, COLUMNS, **step), tables)


def error_of(
    federation: Federation, liar: Misbehaving, tables: Mapping[str, Table] = TABLES, **step: Any
) -> CommonscaleError:
    """The error of an encoding in which one role misbehaves."""
    return failed_run(federation, liar, job(SITES, COLUMNS, **step), tables)[0]


def names_role(error: CommonscaleError, role: str) -> bool:
    """Whether an error says who it was."""
    return ("oordinator" if role == COORDINATOR else role) in str(error)


def elements_of(sites: Sequence[str], messages: Mapping[Slot, bytes], run: str, kind: str) -> list[bytes]:
    """What the sites sent to the coordinator in messages of one kind of vectors."""
    message_type: Any = getattr(wire, kind.rpartition(".")[2])
    return [message_type.FromString(messages[Slot(run, kind, site, COORDINATOR)]).elements for site in sites]
