"""ShareGroupHeartbeat (key 76): membership of a share group as KIP-932 defines it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bascule.wire.messages.group.consumer_group_heartbeat import GroupAssignment
from bascule.wire.schema import (
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    Request,
    String,
    Versions,
)


@dataclass(slots=True)
class ShareGroupHeartbeatResponse(Message):
    API_KEY: ClassVar[int] = 76
    VERSIONS: ClassVar[Versions] = Versions("1")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    member_id: NullableString = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: GroupAssignment | None = None


@dataclass(slots=True)
class ShareGroupHeartbeatRequest(Request[ShareGroupHeartbeatResponse]):
    API_KEY: ClassVar[int] = 76
    VERSIONS: ClassVar[Versions] = Versions("1")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    RESPONSE: ClassVar[type[Message]] = ShareGroupHeartbeatResponse
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: NullableString = None
    subscribed_topic_names: NullableArray[String] = None
