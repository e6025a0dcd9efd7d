"""OffsetFetch (key 9): read committed offsets. KIP-447, KIP-709 (several groups), KIP-848."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    NO_ID,
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Nullable,
    NullableArray,
    NullableString,
    Request,
    String,
    Structure,
    Uuid,
    Versions,
)


@dataclass(slots=True)
class OffsetFetchPartitionResponse(Structure):
    """One partition; `committed_offset` is -1 if no offset is committed."""

    partition_index: Int32 = 0
    committed_offset: Int64 = -1
    committed_leader_epoch: Annotated[Int32, Versions("5+")] = -1
    metadata: NullableString = ""
    error_code: Int16 = 0


@dataclass(slots=True)
class OffsetFetchTopicResponse(Structure):
    name: String = ""
    partitions: Array[OffsetFetchPartitionResponse] = ()


@dataclass(slots=True)
class OffsetFetchGroupTopicResponse(Structure):
    name: Annotated[String, Versions("8-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_ID
    partitions: Array[OffsetFetchPartitionResponse] = ()


@dataclass(slots=True)
class OffsetFetchGroupResponse(Structure):
    group_id: String = ""
    topics: Array[OffsetFetchGroupTopicResponse] = ()
    error_code: Int16 = 0


@dataclass(slots=True)
class OffsetFetchResponse(Message):
    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[Versions] = Versions("1-10")
    FLEXIBLE: ClassVar[Versions] = Versions("6+")
    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    topics: Annotated[Array[OffsetFetchTopicResponse], Versions("0-7")] = ()
    error_code: Annotated[Int16, Versions("2-7")] = 0
    groups: Annotated[Array[OffsetFetchGroupResponse], Versions("8+")] = ()


@dataclass(slots=True)
class OffsetFetchTopic(Structure):
    name: String = ""
    partition_indexes: Array[Int32] = ()


@dataclass(slots=True)
class OffsetFetchGroupTopic(Structure):
    name: Annotated[String, Versions("8-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_ID
    partition_indexes: Array[Int32] = ()


@dataclass(slots=True)
class OffsetFetchGroup(Structure):
    """`topics` null requests all committed offsets of the group."""

    group_id: String = ""
    member_id: Annotated[NullableString, Versions("9+")] = None
    member_epoch: Annotated[Int32, Versions("9+")] = -1
    topics: NullableArray[OffsetFetchGroupTopic] = None


@dataclass(slots=True)
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[Versions] = Versions("1-10")
    FLEXIBLE: ClassVar[Versions] = Versions("6+")
    RESPONSE: ClassVar[type[Message]] = OffsetFetchResponse
    group_id: Annotated[String, Versions("0-7")] = ""
    topics: Annotated[NullableArray[OffsetFetchTopic], Versions("0-7"), Nullable("2-7")] = ()
    groups: Annotated[Array[OffsetFetchGroup], Versions("8+")] = ()
    require_stable: Annotated[Bool, Versions("7+")] = False
