"""A filled-in example of every message, and the bytes that it has always had.

python -m tests.unit.wire_goldens                 after new messages: adds their bytes, never touches others
python -m tests.unit.wire_goldens --replace NAME  after a wanted change of the wire: replaces what is named

Examples come from the descriptors: every field holds something made from its number, so that renaming a field changes
no bytes and renumbering it does. A message with a oneof has one example per arm. An enum's values are listed as well.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message

GOLDENS = Path(__file__).with_suffix(".json")
GENERATED = Path(__file__).parents[2] / "commonscale" / "v1"
PACKAGE = "commonscale.v1"

_UNSIGNED = {
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_FIXED64,
}


def files() -> Iterator[FileDescriptor]:
    """Of all that is generated from proto/."""
    for path in sorted(GENERATED.glob("*_pb2.py")):
        yield importlib.import_module(f"{PACKAGE}.{path.stem}").DESCRIPTOR


def messages() -> Iterator[Descriptor]:
    """All, also those inside of others."""

    def within(found: Descriptor) -> Iterator[Descriptor]:
        if not found.GetOptions().map_entry:
            yield found
            for inner in found.nested_types:
                yield from within(inner)

    for file in files():
        for found in file.message_types_by_name.values():
            yield from within(found)


def enums() -> Iterator[EnumDescriptor]:
    """All, also those inside of messages."""
    for file in files():
        yield from file.enum_types_by_name.values()
    for message in messages():
        yield from message.enum_types


def examples() -> dict[str, Message]:
    """By name; one with a oneof is `name[arm]`."""
    found: dict[str, Message] = {}
    for descriptor in messages():
        arms = [field for oneof in descriptor.oneofs for field in oneof.fields]
        for arm in arms:
            found[f"{descriptor.full_name}[{arm.name}]"] = example(descriptor, arm)
        if not arms:
            found[descriptor.full_name] = example(descriptor)
    return found


def example(descriptor: Descriptor, arm: FieldDescriptor | None = None) -> Message:
    """With every field set; of a oneof this arm, or its first."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if oneof is not None:
            chosen = arm if arm is not None and arm.containing_oneof is oneof else oneof.fields[0]
            if field is not chosen:
                continue
        _set(message, field)
    return message


def _set(message: Message, field: FieldDescriptor) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for number in (field.number, field.number + 1):
            getattr(message, field.name)[_scalar(key, number)] = _scalar(value, number)
    elif field.message_type is not None:
        inner = example(field.message_type)
        if field.is_repeated:
            getattr(message, field.name).extend([inner, inner])
        else:
            getattr(message, field.name).CopyFrom(inner)
    elif field.is_repeated:
        getattr(message, field.name).extend([_scalar(field, field.number), _scalar(field, field.number + 1)])
    else:
        setattr(message, field.name, _scalar(field, field.number))


def _scalar(field: FieldDescriptor, number: int) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[1].number
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"s{number}"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes([0xFF, number])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return number + 0.5
    return number if field.type in _UNSIGNED else -number


def wire() -> dict[str, str]:
    """What is on the wire now, examples of messages in hexadecimal, and numbers of enums' values."""
    found = {name: message.SerializeToString(deterministic=True).hex() for name, message in examples().items()}
    for enum in enums():
        found |= {f"{enum.full_name}.{value.name}": str(value.number) for value in enum.values}
    return found


def goldens() -> dict[str, str]:
    """What has always been on the wire."""
    found: dict[str, str] = json.loads(GOLDENS.read_text()) if GOLDENS.exists() else {}
    return found


def changed(now: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    """Names whose bytes are others than before, or that are gone."""
    return sorted(name for name, golden in before.items() if now.get(name) != golden)


def update(now: Mapping[str, str], before: Mapping[str, str], replace: set[str]) -> dict[str, str]:
    """The goldens with those that are new, and with those to be replaced as they are now (or without them)."""
    kept = {name: golden for name, golden in before.items() if name not in replace}
    return {**now, **kept}


def main() -> int:
    """Write the file; 1 if something is left that changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.unit.wire_goldens", description=__doc__)
    parser.add_argument("--replace", nargs="+", default=[], metavar="NAME", help="as the test names them")
    replace = set(parser.parse_args().replace)
    now, before = wire(), goldens()
    if unknown := replace - {*now, *before}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    after = update(now, before, replace)
    GOLDENS.write_text(json.dumps(after, indent=0, sort_keys=True) + "\n")
    sys.stdout.write("".join(f"added {name}\n" for name in sorted(set(after) - set(before))))
    left = changed(now, after)
    sys.stdout.write("".join(f"NOT replaced, its bytes changed: {name}\n" for name in left))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
