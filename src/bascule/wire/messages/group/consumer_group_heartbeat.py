"""ConsumerGroupHeartbeat (key 68): membership of a consumer group as KIP-848 defines it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    NO_ID,
    Array,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    Request,
    String,
    Structure,
    Uuid,
    Versions,
)


@dataclass(slots=True)
class GroupTopicPartitions(Structure):
    topic_id: Uuid = NO_ID
    partitions: Array[Int32] = ()


@dataclass(slots=True)
class GroupAssignment(Structure):
    topic_partitions: Array[GroupTopicPartitions] = ()


@dataclass(slots=True)
class ConsumerGroupHeartbeatResponse(Message):
    API_KEY: ClassVar[int] = 68
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    member_id: NullableString = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: GroupAssignment | None = None


@dataclass(slots=True)
class ConsumerGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse]):
    API_KEY: ClassVar[int] = 68
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    RESPONSE: ClassVar[type[Message]] = ConsumerGroupHeartbeatResponse
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: NullableString = None
    rack_id: NullableString = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: NullableArray[String] = None
    subscribed_topic_regex: Annotated[NullableString, Versions("1+")] = None
    server_assignor: NullableString = None
    topic_partitions: NullableArray[GroupTopicPartitions] = None
