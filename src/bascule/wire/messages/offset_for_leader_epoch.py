"""OffsetForLeaderEpoch (key 23): the end offset of a leader epoch. KIP-101."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    Request,
    String,
    Structure,
    Versions,
)


@dataclass(slots=True)
class EpochPartitionResponse(Structure):
    """The largest epoch up to the requested one, and the offset after its last record."""

    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@dataclass(slots=True)
class EpochTopicResponse(Structure):
    topic: String = ""
    partitions: Array[EpochPartitionResponse] = ()


@dataclass(slots=True)
class OffsetForLeaderEpochResponse(Message):
    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[Versions] = Versions("2-4")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    throttle_time_ms: Int32 = 0
    topics: Array[EpochTopicResponse] = ()


@dataclass(slots=True)
class EpochPartition(Structure):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class EpochTopic(Structure):
    topic: String = ""
    partitions: Array[EpochPartition] = ()


@dataclass(slots=True)
class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse]):
    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[Versions] = Versions("2-4")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    RESPONSE: ClassVar[type[Message]] = OffsetForLeaderEpochResponse
    replica_id: Annotated[Int32, Versions("3+")] = -2
    topics: Array[EpochTopic] = ()
