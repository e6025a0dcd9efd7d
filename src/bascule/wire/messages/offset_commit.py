"""OffsetCommit (key 8): commit the offsets of a consumer. KIP-848 (member epoch, topic ids)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    NO_ID,
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Request,
    String,
    Structure,
    Uuid,
    Versions,
)


@dataclass(slots=True)
class OffsetCommitPartitionResponse(Structure):
    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(slots=True)
class OffsetCommitTopicResponse(Structure):
    name: Annotated[String, Versions("0-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_ID
    partitions: Array[OffsetCommitPartitionResponse] = ()


@dataclass(slots=True)
class OffsetCommitResponse(Message):
    API_KEY: ClassVar[int] = 8
    VERSIONS: ClassVar[Versions] = Versions("2-10")
    FLEXIBLE: ClassVar[Versions] = Versions("8+")
    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    topics: Array[OffsetCommitTopicResponse] = ()


@dataclass(slots=True)
class OffsetCommitPartition(Structure):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Versions("6+")] = -1
    committed_metadata: NullableString = ""


@dataclass(slots=True)
class OffsetCommitTopic(Structure):
    name: Annotated[String, Versions("0-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_ID
    partitions: Array[OffsetCommitPartition] = ()


@dataclass(slots=True)
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    API_KEY: ClassVar[int] = 8
    VERSIONS: ClassVar[Versions] = Versions("2-10")
    FLEXIBLE: ClassVar[Versions] = Versions("8+")
    RESPONSE: ClassVar[type[Message]] = OffsetCommitResponse
    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[NullableString, Versions("7+")] = None
    retention_time_ms: Annotated[Int64, Versions("2-4")] = -1
    topics: Array[OffsetCommitTopic] = ()
