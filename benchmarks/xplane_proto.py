"""The XSpace message of XProf (`xplane.proto`, package `tensorflow.profiler`), written down for `google.protobuf`.

The xprof wheel carries no `xplane_pb2`. The messages live in a descriptor pool of their own, so that they do not clash
with those of a TensorFlow that may be installed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

_PACKAGE = "tensorflow.profiler"
_SCALARS = {
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}

# Per message: (number, type, name); a type may be "repeated X", "map X" (from int64), or "X in <oneof>".
_MESSAGES: dict[str, list[tuple[int, str, str]]] = {
    "XSpace": [
        (1, "repeated XPlane", "planes"),
        (2, "repeated string", "errors"),
        (3, "repeated string", "warnings"),
        (4, "repeated string", "hostnames"),
    ],
    "XPlane": [
        (1, "int64", "id"),
        (2, "string", "name"),
        (3, "repeated XLine", "lines"),
        (4, "map XEventMetadata", "event_metadata"),
        (5, "map XStatMetadata", "stat_metadata"),
        (6, "repeated XStat", "stats"),
    ],
    "XLine": [
        (1, "int64", "id"),
        (2, "string", "name"),
        (3, "int64", "timestamp_ns"),
        (4, "repeated XEvent", "events"),
        (9, "int64", "duration_ps"),
        (10, "int64", "display_id"),
        (11, "string", "display_name"),
    ],
    "XEvent": [
        (1, "int64", "metadata_id"),
        (2, "int64 in data", "offset_ps"),
        (3, "int64", "duration_ps"),
        (4, "repeated XStat", "stats"),
        (5, "int64 in data", "num_occurrences"),
    ],
    "XStat": [
        (1, "int64", "metadata_id"),
        (2, "double in value", "double_value"),
        (3, "uint64 in value", "uint64_value"),
        (4, "int64 in value", "int64_value"),
        (5, "string in value", "str_value"),
        (6, "bytes in value", "bytes_value"),
        (7, "uint64 in value", "ref_value"),
    ],
    "XEventMetadata": [
        (1, "int64", "id"),
        (2, "string", "name"),
        (3, "bytes", "metadata"),
        (4, "string", "display_name"),
        (5, "repeated XStat", "stats"),
        (6, "repeated int64", "child_id"),
    ],
    "XStatMetadata": [
        (1, "int64", "id"),
        (2, "string", "name"),
        (3, "string", "description"),
    ],
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="xplane.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        oneofs: list[str] = []
        for number, type_text, field_name in fields:
            type_text, _, oneof = type_text.partition(" in ")
            label, _, type_name = type_text.rpartition(" ")
            if label == "map":
                type_name = _add_map_entry(message, field_name, type_name)
            field = message.field.add(name=field_name, number=number)
            field.label = FieldDescriptorProto.LABEL_REPEATED if label else FieldDescriptorProto.LABEL_OPTIONAL
            _set_type(field, type_name)
            if oneof:
                if oneof not in oneofs:
                    oneofs.append(oneof)
                    message.oneof_decl.add(name=oneof)
                field.oneof_index = oneofs.index(oneof)
    return file


def _add_map_entry(message: descriptor_pb2.DescriptorProto, field_name: str, value_type: str) -> str:
    entry = message.nested_type.add(name=field_name.title().replace("_", "") + "Entry")
    entry.options.map_entry = True
    for number, name, type_name in ((1, "key", "int64"), (2, "value", value_type)):
        field = entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        _set_type(field, type_name)
    return f"{message.name}.{entry.name}"


def _set_type(field: FieldDescriptorProto, type_name: str) -> None:
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"


def _messages() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _messages()
XSpace: Any = _CLASSES["XSpace"]
XPlane: Any = _CLASSES["XPlane"]
XLine: Any = _CLASSES["XLine"]
XEvent: Any = _CLASSES["XEvent"]
XStat: Any = _CLASSES["XStat"]
