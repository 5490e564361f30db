"""Errors: typed once, mapped once, and silent about secrets."""

from pathlib import Path

import pytest

from commonscale import errors, rpc
from commonscale.channel.seal import Envelope, JobKeys
from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.v1 import relay_pb2
from crypto import signing


def test_every_error_has_one_wire_status() -> None:
    """The table lists the leaves of the class tree, and ConfigError, which most files' faults are raised as."""
    leaves = {kind for kind in errors.leaf_errors() if not kind.__subclasses__()}
    assert leaves | {errors.ConfigError} == set(rpc.WIRE_STATUS)


def test_every_error_has_an_exit_code() -> None:
    """And no two families share 2, which is for configuration."""
    codes = {kind: kind.exit_code for kind in errors.leaf_errors()}
    assert all(codes.values())
    assert all((code == 2) == issubclass(kind, errors.ConfigError) for kind, code in codes.items())


def test_keys_do_not_show_in_a_repr() -> None:
    """Logged by mistake, an envelope shows neither its identity key nor the job's keys."""
    keys = JobKeys.generate()
    text = repr(Envelope("a", signing.generate(), keys, {}, b"digest")) + repr(keys)
    assert keys.seal.private_bytes_raw().hex() not in text
    assert "PrivateKey" not in text


def test_damaged_job_keys_are_lost_state() -> None:
    """A cut-off journal entry is not used as a shorter key."""
    with pytest.raises(errors.StateLost):
        JobKeys.from_bytes(JobKeys.generate().to_bytes()[:-1])


@pytest.mark.parametrize(
    "wire",
    [
        relay_pb2.Slot(run="", kind="k", sender="a", receiver=COORDINATOR),
        relay_pb2.Slot(run="r/../x", kind="k", sender="a", receiver=COORDINATOR),
        relay_pb2.Slot(run="r", kind="k/../../etc", sender="a", receiver=COORDINATOR),
        relay_pb2.Slot(run="r", kind="k", sender=ALL, receiver=COORDINATOR),
        relay_pb2.Slot(run="r", kind="k", sender="A", receiver=COORDINATOR),
        relay_pb2.Slot(run="r", kind="k", sender="a", receiver="@hub"),
        relay_pb2.Slot(run="r" * 200, kind="k", sender="a", receiver=COORDINATOR),
    ],
)
def test_malformed_slots_are_refused(wire: relay_pb2.Slot) -> None:
    """A slot's name never reaches the store unchecked."""
    with pytest.raises(errors.BadMessage):
        Slot.from_wire(wire)


def test_slot_contexts_are_unambiguous() -> None:
    """No two slots share the bytes that keys and signatures are bound to."""
    assert Slot("r", "a", "b", "c").context() != Slot("r", "ab", "", "c").context()


def test_no_pickle_in_the_product() -> None:
    """Peer bytes are never unpickled: nothing imports pickle or its kin."""
    root = Path(__file__).parents[2]
    for package in ("commonscale", "coordinator", "participant", "crypto", "bench"):
        for path in (root / package).rglob("*.py"):
            assert not any(word in path.read_text() for word in ("import pickle", "import dill", "joblib")), path
