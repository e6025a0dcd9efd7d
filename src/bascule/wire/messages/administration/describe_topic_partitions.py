"""DescribeTopicPartitions (key 75): as Metadata, in pages (KIP-966)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bascule.wire.messages.metadata import OPERATIONS_UNKNOWN
from bascule.wire.schema import (
    NO_ID,
    Array,
    Bool,
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
class PartitionCursor(Structure):
    topic_name: String = ""
    partition_index: Int32 = 0


@dataclass(slots=True)
class DescribedPartition(Structure):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: Array[Int32] = ()
    isr_nodes: Array[Int32] = ()
    eligible_leader_replicas: NullableArray[Int32] = None
    last_known_elr: NullableArray[Int32] = None
    offline_replicas: Array[Int32] = ()


@dataclass(slots=True)
class DescribedTopic(Structure):
    error_code: Int16 = 0
    name: NullableString = ""
    topic_id: Uuid = NO_ID
    is_internal: Bool = False
    partitions: Array[DescribedPartition] = ()
    topic_authorized_operations: Int32 = OPERATIONS_UNKNOWN


@dataclass(slots=True)
class DescribeTopicPartitionsResponse(Message):
    API_KEY: ClassVar[int] = 75
    VERSIONS: ClassVar[Versions] = Versions("0")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    throttle_time_ms: Int32 = 0
    topics: Array[DescribedTopic] = ()
    next_cursor: PartitionCursor | None = None


@dataclass(slots=True)
class TopicToDescribe(Structure):
    name: String = ""


@dataclass(slots=True)
class DescribeTopicPartitionsRequest(Request[DescribeTopicPartitionsResponse]):
    API_KEY: ClassVar[int] = 75
    VERSIONS: ClassVar[Versions] = Versions("0")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    RESPONSE: ClassVar[type[Message]] = DescribeTopicPartitionsResponse
    topics: Array[TopicToDescribe] = ()
    """Empty: all."""
    response_partition_limit: Int32 = 2_000
    cursor: PartitionCursor | None = None
    """Where to begin: `next_cursor` of the page before."""
