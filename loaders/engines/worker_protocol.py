"""The messages of XProf's worker service, `xprof.pywrap.XprofAnalysisWorkerService/GetProfileData`.

The layout is that of xprof 2.24.2 (proto3): `WorkerProfileDataRequest{ProfileDataRequest origin_request=1}`,
`ProfileDataRequest{string session_id=1; string tool_name=2; map<string,string> parameters=3}` and
`WorkerProfileDataResponse{bytes output=1; string worker_id=2}`. The wheel has no Python module for them.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD: Final = "/xprof.pywrap.XprofAnalysisWorkerService/GetProfileData"

_PACKAGE: Final = "xprof_hosting.worker"
_Field = descriptor_pb2.FieldDescriptorProto


def _build() -> tuple[Any, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="xprof_hosting/worker.proto", package=_PACKAGE, syntax="proto3")
    request = file.message_type.add(name="ProfileDataRequest")
    entry = request.nested_type.add(name="ParametersEntry")
    entry.options.map_entry = True
    for message, name, number in (
        (entry, "key", 1),
        (entry, "value", 2),
        (request, "session_id", 1),
        (request, "tool_name", 2),
    ):
        message.field.add(name=name, number=number, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    request.field.add(
        name="parameters",
        number=3,
        type=_Field.TYPE_MESSAGE,
        label=_Field.LABEL_REPEATED,
        type_name=f".{_PACKAGE}.ProfileDataRequest.ParametersEntry",
    )
    file.message_type.add(name="WorkerProfileDataRequest").field.add(
        name="origin_request",
        number=1,
        type=_Field.TYPE_MESSAGE,
        label=_Field.LABEL_OPTIONAL,
        type_name=f".{_PACKAGE}.ProfileDataRequest",
    )
    response = file.message_type.add(name="WorkerProfileDataResponse")
    response.field.add(name="output", number=1, type=_Field.TYPE_BYTES, label=_Field.LABEL_OPTIONAL)
    response.field.add(name="worker_id", number=2, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.WorkerProfileDataRequest")),
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.WorkerProfileDataResponse")),
    )


WorkerProfileDataRequest, WorkerProfileDataResponse = _build()
