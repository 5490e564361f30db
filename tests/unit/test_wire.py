"""The wire: every message has the bytes that it has always had."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from commonscale.v1 import relay_pb2
from tests.unit.wire_goldens import changed, enums, example, examples, goldens, messages, update, wire

PROTOS = sorted((Path(__file__).parents[2] / "proto" / "commonscale" / "v1").glob("*.proto"))
ADD = "run `python -m tests.unit.wire_goldens`, which adds their bytes"
CHANGED = (
    "other bytes than before is another wire: daemons of two releases no longer understand each other. If that is "
    "wanted, raise PROTOCOL_VERSION in commonscale/version.py (a field that is only new does not need it), and run "
    "`python -m tests.unit.wire_goldens --replace` with these names"
)


def test_every_message_has_golden_bytes() -> None:
    """One per message, per arm of a oneof and per value of an enum; a new one must get its own."""
    written = [re.findall(r"^\s*message (\w+)", path.read_text(), re.MULTILINE) for path in PROTOS]
    assert sorted(message.name for message in messages()) == sorted(itertools.chain(*written))
    missing = sorted(set(wire()) - set(goldens()))
    assert not missing, ADD


def test_no_message_has_other_bytes_than_before() -> None:
    """What one release sends, the next one reads, and the other way round."""
    different = changed(wire(), goldens())
    assert not different, CHANGED


def test_golden_bytes_are_read_back() -> None:
    """Into the same message, with nothing left over."""
    for name, sent in examples().items():
        read = type(sent).FromString(bytes.fromhex(goldens()[name]))
        assert read == sent, name
        assert read.SerializeToString(deterministic=True).hex() == goldens()[name], name


def test_examples_leave_no_field_out() -> None:
    """Every field of every message stands in one of its examples, at every depth."""

    def shown(descriptor: Descriptor) -> set[str]:
        arms = [field for oneof in descriptor.oneofs for field in oneof.fields]
        return {field.name for arm in (None, *arms) for field, _ in example(descriptor, arm).ListFields()}

    for descriptor in messages():
        assert shown(descriptor) == {field.name for field in descriptor.fields}, descriptor.full_name


def test_an_enum_begins_with_unspecified() -> None:
    """Zero is what a peer that does not know the field sends."""
    for enum in enums():
        assert enum.values_by_number[0].name.endswith("_UNSPECIFIED"), enum.full_name


def altered(change: Callable[[FieldDescriptorProto], None]) -> str:
    """The bytes of a Slot whose first field was changed in relay.proto."""
    file = FileDescriptorProto()
    relay_pb2.DESCRIPTOR.CopyToProto(file)
    (slot,) = (message for message in file.message_type if message.name == "Slot")
    change(slot.field[0])
    pool = DescriptorPool()
    pool.Add(file)
    found = example(pool.FindMessageTypeByName("commonscale.v1.Slot"))
    return found.SerializeToString(deterministic=True).hex()


def test_a_renamed_field_keeps_its_bytes() -> None:
    """Names are not on the wire."""
    assert altered(lambda field: setattr(field, "name", "other")) == goldens()["commonscale.v1.Slot"]


@pytest.mark.parametrize(
    ("what", "value"),
    [("number", 100), ("type", FieldDescriptorProto.TYPE_BYTES), ("label", FieldDescriptorProto.LABEL_REPEATED)],
)
def test_another_number_type_or_label_changes_the_bytes(what: str, value: int) -> None:
    """The tests above would see it."""
    assert altered(lambda field: setattr(field, what, value)) != goldens()["commonscale.v1.Slot"]


def test_an_update_adds_and_replaces_only_what_is_named() -> None:
    """A change that nobody named stays to be seen; what is gone goes when it is named."""
    before = {"same": "00", "other": "01", "gone": "02", "wanted": "03"}
    now = {"same": "00", "other": "11", "wanted": "13", "new": "04"}
    after = update(now, before, {"wanted"})
    assert after == {"same": "00", "other": "01", "gone": "02", "wanted": "13", "new": "04"}
    assert changed(now, after) == ["gone", "other"]
    assert changed(now, update(now, after, {"gone", "other"})) == []
