"""ListOffsets (key 2): offsets by timestamp, and the first and last offset of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from bascule.wire.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Request,
    String,
    Structure,
    Versions,
)

TIMESTAMP_LATEST: Final = -1
TIMESTAMP_EARLIEST: Final = -2
TIMESTAMP_MAX: Final = -3
"""The record with the largest timestamp. Version 7 and later, KIP-734."""
TIMESTAMP_EARLIEST_LOCAL: Final = -4
"""The first offset on the node's local disk. Version 8 and later, KIP-405."""
TIMESTAMP_LATEST_TIERED: Final = -5
"""The last offset in remote storage. Version 9 and later, KIP-1005."""
TIMESTAMP_EARLIEST_PENDING_UPLOAD: Final = -6
"""The first offset that is not in remote storage yet. Version 11 and later, KIP-1023."""


@dataclass(slots=True)
class ListOffsetsPartition(Structure):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, Versions("4+")] = -1
    timestamp: Int64 = 0


@dataclass(slots=True)
class ListOffsetsTopic(Structure):
    name: String = ""
    partitions: Array[ListOffsetsPartition] = ()


@dataclass(slots=True)
class ListOffsetsPartitionResponse(Structure):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Versions("4+")] = -1


@dataclass(slots=True)
class ListOffsetsTopicResponse(Structure):
    name: String = ""
    partitions: Array[ListOffsetsPartitionResponse] = ()


@dataclass(slots=True)
class ListOffsetsResponse(Message):
    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[Versions] = Versions("1-11")
    FLEXIBLE: ClassVar[Versions] = Versions("6+")
    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    topics: Array[ListOffsetsTopicResponse] = ()


@dataclass(slots=True)
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[Versions] = Versions("1-11")
    FLEXIBLE: ClassVar[Versions] = Versions("6+")
    RESPONSE: ClassVar[type[Message]] = ListOffsetsResponse
    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, Versions("2+")] = 0
    topics: Array[ListOffsetsTopic] = ()
    timeout_ms: Annotated[Int32, Versions("10+")] = 0
