"""The messages of `external_scaler.proto`, made from its text when they are first needed: no generated code to keep.

Reads as much of the language as that file uses.
"""

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

PROTO = Path(__file__).with_suffix(".proto")
PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"
_MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"(repeated )?(map<string, string>|\w+) (\w+) = (\d+);")
_PLAIN = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}


def messages() -> dict[str, type[Any]]:
    """The classes by name."""
    file = FileDescriptorProto(name=PROTO.name, package=PACKAGE, syntax="proto3")
    for name, body in _MESSAGE.findall(PROTO.read_text()):
        made = file.message_type.add(name=name)
        for repeated, kind, field, number in _FIELD.findall(body):
            _add(made, kind, field, int(number), is_repeated=bool(repeated))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{PACKAGE}.{each.name}") for each in file.message_type)
    return {each.name: message_factory.GetMessageClass(each) for each in found}


def _add(message: DescriptorProto, kind: str, name: str, number: int, *, is_repeated: bool) -> None:
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if kind.startswith("map"):
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        for at, part in enumerate(("key", "value"), start=1):
            _add(entry, "string", part, at, is_repeated=False)
        kind, is_repeated = f"{message.name}.{entry.name}", True
    if is_repeated:
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if kind in _PLAIN:
        field.type = _PLAIN[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
