"""SyncGroup (key 14): the assignment of a generation, from its leader and to its members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    Array,
    Bytes,
    Int16,
    Int32,
    Message,
    NullableString,
    Request,
    String,
    Structure,
    Versions,
)


@dataclass(slots=True)
class SyncGroupResponse(Message):
    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[Versions] = Versions("0-5")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[NullableString, Versions("5+")] = None
    protocol_name: Annotated[NullableString, Versions("5+")] = None
    assignment: Bytes = b""


@dataclass(slots=True)
class SyncGroupRequestAssignment(Structure):
    member_id: String = ""
    assignment: Bytes = b""


@dataclass(slots=True)
class SyncGroupRequest(Request[SyncGroupResponse]):
    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[Versions] = Versions("0-5")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    RESPONSE: ClassVar[type[Message]] = SyncGroupResponse
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[NullableString, Versions("3+")] = None
    protocol_type: Annotated[NullableString, Versions("5+")] = None
    protocol_name: Annotated[NullableString, Versions("5+")] = None
    assignments: Array[SyncGroupRequestAssignment] = ()
