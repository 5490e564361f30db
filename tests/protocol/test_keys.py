"""Key sets: agreed upon before use, used again by later jobs of the same sites, lost ones noticed."""

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import first_error
from commonscale.errors import Disagreement
from commonscale.pipeline import Pipeline
from commonscale.v1.protocols_pb2 import JointKey, KeySet
from tests.federation import Federation, MemoryJournal, NumpySource

SITES = ("east", "north", "west")
TABLES = {
    site: NumpySource(["x"], np.random.default_rng(index).normal(3, 2, (12, 1))) for index, site in enumerate(SITES)
}


def job(keys: str = "reuse", method: str = "tree") -> Pipeline:
    step = {"transform": "minmax", "method": method, "columns": ["x"], "ckks": {"profile": "test", "keys": keys}}
    return Pipeline.model_validate({"sites": list(SITES), "steps": [step]})


def run(federation: Federation, pipeline: Pipeline) -> Any:
    """A job on a mailbox and journals of its own, as a later job has them."""
    federation.mailbox = MemoryMailbox()
    for member in federation.members.values():
        member.journal = MemoryJournal()
    try:
        return anyio.run(federation.run, pipeline, TABLES)
    except BaseException as error:  # noqa: BLE001 - the first error of a group, as itself
        raise first_error(error) from None


def made_keys(federation: Federation) -> bool:
    return any(slot.kind.endswith("KeyShare") for slot in federation.mailbox.slots)


def test_a_later_job_of_the_same_sites_uses_the_keys_again(tmp_path: Path) -> None:
    """The second job makes no key, and ends with the same numbers."""
    federation = Federation(tmp_path, SITES)
    pooled = np.vstack([table.rows for table in TABLES.values()])
    for expected in (True, False, False):
        result = run(federation, job())[COORDINATOR].parameters()
        assert made_keys(federation) is expected
        np.testing.assert_allclose(result["max"], pooled.max(axis=0), rtol=1e-5)


def test_without_leave_keys_live_for_one_step(tmp_path: Path) -> None:
    """Nothing is put on a shelf."""
    federation = Federation(tmp_path, SITES)
    for _ in range(2):
        run(federation, job("fresh"))
        assert made_keys(federation)
    assert not any(shelf.sets for shelf in federation.shelves.values())


@pytest.mark.parametrize("loser", [COORDINATOR, "north"])
def test_where_one_has_lost_the_set_all_make_a_new_one(tmp_path: Path, loser: str) -> None:
    """The coordinator without its half, or a site without its share: both lead to a fresh set."""
    federation = Federation(tmp_path, SITES)
    run(federation, job())
    federation.shelves[loser].sets.clear()
    run(federation, job())
    assert made_keys(federation)


@pytest.mark.parametrize("holder", [COORDINATOR, "north"])
def test_sets_of_an_earlier_version_are_not_used_again(tmp_path: Path, holder: str) -> None:
    """At the coordinator or at a site: it is deleted, and all make a new one."""
    federation = Federation(tmp_path, SITES)
    run(federation, job())
    shelf = federation.shelves[holder]
    (name,) = shelf.names()
    old = KeySet.FromString(shelf.sets[name])
    old.ClearField("format")
    shelf.put(name, old.SerializeToString())
    run(federation, job())
    assert made_keys(federation)
    assert old.SerializeToString() not in shelf.sets.values()


def test_other_needs_get_another_set(tmp_path: Path) -> None:
    """Rotation keys differ between methods, so their sets are not mixed up."""
    federation = Federation(tmp_path, SITES)
    run(federation, job())
    run(federation, job(method="all-pairs"))
    assert made_keys(federation)
    assert len(federation.shelves["north"].sets) == 2


def test_public_randomness_is_never_used_twice(tmp_path: Path) -> None:
    """Under keys that are used again, refreshes differ: their seed comes from each job's own roster."""
    federation = Federation(tmp_path, SITES)
    shares = []
    for _ in range(2):
        run(federation, job())
        shares.append({v for s, v in federation.mailbox.slots.items() if s.kind.endswith("RefreshShare")})
    assert shares[0]
    assert not shares[0] & shares[1]


def test_a_swapped_joint_key_is_caught_before_anyone_encrypts(tmp_path: Path) -> None:
    """One site is shown another collective key: the sites disagree, and no input leaves."""
    federation = Federation(tmp_path, SITES)

    class Liar(MemoryMailbox):
        """Tells north another key than it tells the others."""

        async def get(self, slot: Slot) -> bytes:
            payload = await federation.mailbox.get(slot)
            if slot.kind.endswith("JointKey"):
                message = JointKey.FromString(payload)
                message.polynomials[0] = message.polynomials[0][8:] + message.polynomials[0][:8]
                coefficients = np.frombuffer(message.polynomials[0], "<u8") % np.uint64(1 << 40)
                message.polynomials[0] = coefficients.tobytes()
                return message.SerializeToString()
            return payload

        async def put(self, slot: Slot, payload: bytes) -> None:
            await federation.mailbox.put(slot, payload)

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(federation.coordinator, job("fresh"))
            for name in SITES:
                mailbox = Liar() if name == "north" else None
                tasks.start_soon(federation.site, name, job("fresh"), TABLES[name], mailbox)

    with pytest.raises(BaseException) as caught:
        anyio.run(work)
    assert isinstance(first_error(caught.value), Disagreement)
    assert not any(slot.kind.endswith("EncryptedInput") for slot in federation.mailbox.slots)
