"""A session: many rounds over one roster, of which only the last few are kept.

Training takes hundreds of rounds, each with a message as long as a model: nobody can keep them all, and a restart must
not repeat them all.

1. Each round is a run of its own, `job/0/17`. Its sums are bound to everything announced in the rounds before.
2. At a checkpoint the sites agree, by signed hashes, on everything announced so far and on the state that each would go
   on from. The hashes have a key that only the sites hold: a state that the coordinator must not know could otherwise
   be guessed, and the guess tried.
3. Each site stores its checkpoint and, in the same transaction, forgets what it made in the rounds up to it. A restart
   goes on from there.
4. The coordinator has heard every site at this checkpoint, so each of them has stored the checkpoint *before* it and
   will never ask for anything behind that one. It stores its own, then drops the payloads behind the one before. Their
   hashes stay: a slot still takes no other bytes than it held.

Between two checkpoints a crash is as in any run: the journal has what was made, the slots have what was announced.

What was announced in the step before its session is read again after a restart, when the sites have long agreed on it.
So a checkpoint also holds its hash: a coordinator that waits for a restart to show a site something else is caught.

Not in the papers.

Reveals: nothing.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from commonscale.channel.channel import Channel, parse
from commonscale.channel.slot import Slot
from commonscale.concurrency import offload
from commonscale.errors import Disagreement
from commonscale.protocols import agreement
from commonscale.reveal import Reveal
from commonscale.v1.protocols_pb2 import Checkpoint, OpenedLine


@dataclass
class Progress:
    """How far a role has come: what its last checkpoint says."""

    number: int
    # Of everything announced before the session, and until now.
    began: bytes
    transcript: bytes
    state: bytes = b""
    # The first round of which something may still be kept.
    kept_from: int = 0


async def resume(ch: Channel, announced: bytes) -> Progress:
    """All roles: the last checkpoint of this step's session, or its beginning; `announced` is what came before it."""
    assert ch.checkpoints is not None
    payload = await ch.checkpoints.last(ch.run, ch.me)
    if payload is None:
        return Progress(0, announced, announced)
    kept = parse(Checkpoint, payload, _slot(ch, 0))
    if kept.began != announced:
        raise Disagreement(
            f"{ch.me} was shown something else before the session of {ch.run} than before its restart.",
            "The coordinator is faulty or dishonest; nothing was computed from it.",
        )
    for line in kept.opened:
        ch.ledger.note(ch.run, Reveal(line.scope, line.what, line.to))  # type: ignore[arg-type]
    kept_from = 0 if ch.is_coordinator else kept.number
    return Progress(kept.number, kept.began, kept.transcript, kept.state, kept_from)


async def checkpoint(
    ch: Channel, before: Progress, number: int, transcript: bytes, state: bytes, key: bytes
) -> Progress:
    """All roles: agree that `number` rounds are done, and keep where to go on from. `key` is the sites' own."""
    assert ch.checkpoints is not None
    if number == before.number and state == before.state:
        # A last one after all rounds, come to again after a restart.
        return before
    if number <= before.number:
        raise RuntimeError(f"{ch.run} has another checkpoint after {before.number} rounds already")
    here = ch.round(number)
    fingerprint = await offload(keyed_hash, key, here.run, transcript, state)
    await agreement.agree(here.scope("checkpoint"), fingerprint)  # 2.
    opened: Sequence[Reveal] = ch.ledger.of(ch.run) if ch.is_site else ()
    lines = [OpenedLine(scope=reveal.scope, what=reveal.what, to=reveal.to) for reveal in opened]
    kept = Checkpoint(number=number, began=before.began, transcript=transcript, state=state, opened=lines)
    # A site needs nothing of the rounds up to this one, the coordinator nothing up to the checkpoint before.
    done_with = before.number if ch.is_coordinator else number
    behind = [ch.round(gone).run for gone in range(before.kept_from, done_with + 1)]
    payload = await offload(partial(kept.SerializeToString, deterministic=True))
    await ch.checkpoints.keep(_slot(ch, number), payload, behind)  # 3., 4.
    ch.observer.event("kept", _slot(ch, number), len(payload))
    return Progress(number, before.began, transcript, state, done_with + ch.is_coordinator)


def keyed_hash(key: bytes, run: str, transcript: bytes, state: bytes) -> bytes:
    """Of all that the sites must have alike; of an unchanged state another one in every round."""
    content = run.encode() + b"\0" + transcript + hashlib.sha256(state).digest()
    return hmac.digest(key, b"commonscale/v1/checkpoint\0" + content, hashlib.sha256)


def _slot(ch: Channel, number: int) -> Slot:
    return ch.round(number).slot(Checkpoint, ch.me, ch.me)
