"""Builds message classes from the .proto files in this directory, with the protobuf runtime.

Generated `_pb2` modules work only with some protobuf versions; a descriptor built at import works with all. The
parser below knows only the constructs that our .proto files use, and refuses all others.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = re.compile(r"(?P<repeated>repeated\s+)?(?P<type>\w+)\s+(?P<name>\w+)\s*=\s*(?P<number>\d+)\s*")
_SCALARS = {"int32", "int64", "uint32", "uint64", "string", "bytes"}


def descriptor_of(text: str, file_name: str) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a proto3 text with flat messages of scalar and message fields."""
    text = re.sub(r"//[^\n]*", "", text)
    package = re.search(r"\bpackage\s+([\w.]+)\s*;", text)
    if package is None:
        raise ValueError(f"{file_name}: no package statement")
    result = descriptor_pb2.FileDescriptorProto(name=file_name, package=package[1], syntax="proto3")
    for name, body in re.findall(r"\bmessage\s+(\w+)\s*\{([^{}]*)\}", text):
        message = result.message_type.add(name=name)
        for statement in filter(None, (part.strip() for part in body.split(";"))):
            match = _FIELD.fullmatch(statement)
            if match is None:
                raise ValueError(f"{file_name}: message {name}: cannot read {statement!r}")
            field = message.field.add(name=match["name"], number=int(match["number"]))
            field.label = field.LABEL_REPEATED if match["repeated"] else field.LABEL_OPTIONAL
            if match["type"] in _SCALARS:
                field.type = getattr(field, "TYPE_" + match["type"].upper())
            else:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".{package[1]}.{match['type']}"
    return result


@cache
def message_class(proto: str, message: str) -> Any:
    """The class of one message of a .proto file in this directory, e.g. ("dump_data.proto", "DumpData")."""
    text = Path(__file__).with_name(proto).read_text(encoding="utf-8")
    pool = descriptor_pool.DescriptorPool()
    descriptor = descriptor_of(text, proto)
    pool.Add(descriptor)
    found = pool.FindMessageTypeByName(f"{descriptor.package}.{message}")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(found)
    return message_factory.MessageFactory(pool).GetPrototype(found)
