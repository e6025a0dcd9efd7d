"""Fetch (key 1): record batches from an offset on. KIP-74, KIP-227, KIP-320, KIP-516."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    NO_ID,
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Nullable,
    NullableArray,
    NullableString,
    Records,
    Request,
    String,
    Structure,
    Tagged,
    Uuid,
    Versions,
)


@dataclass(slots=True)
class ReplicaState(Structure):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


@dataclass(slots=True)
class FetchPartition(Structure):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, Versions("9+")] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, Versions("12+")] = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, Versions("17+"), Tagged(0)] = NO_ID


@dataclass(slots=True)
class FetchTopic(Structure):
    topic: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_ID
    partitions: Array[FetchPartition] = ()


@dataclass(slots=True)
class ForgottenTopic(Structure):
    topic: Annotated[String, Versions("7-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_ID
    partitions: Array[Int32] = ()


@dataclass(slots=True)
class FetchEpochEndOffset(Structure):
    epoch: Int32 = -1
    end_offset: Int64 = -1


@dataclass(slots=True)
class FetchLeader(Structure):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@dataclass(slots=True)
class FetchSnapshotId(Structure):
    end_offset: Int64 = -1
    epoch: Int32 = -1


@dataclass(slots=True)
class AbortedTransaction(Structure):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


@dataclass(slots=True)
class FetchPartitionResponse(Structure):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    diverging_epoch: Annotated[FetchEpochEndOffset | None, Versions("12+"), Tagged(0)] = None
    current_leader: Annotated[FetchLeader | None, Versions("12+"), Tagged(1)] = None
    snapshot_id: Annotated[FetchSnapshotId | None, Versions("12+"), Tagged(2)] = None
    aborted_transactions: NullableArray[AbortedTransaction] = None
    preferred_read_replica: Annotated[Int32, Versions("11+")] = -1
    records: Records = None


@dataclass(slots=True)
class FetchTopicResponse(Structure):
    topic: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_ID
    partitions: Array[FetchPartitionResponse] = ()


@dataclass(slots=True)
class FetchNodeEndpoint(Structure):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: NullableString = None


@dataclass(slots=True)
class FetchResponse(Message):
    """A `session_id` of 0 means that there is no fetch session."""

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[Versions] = Versions("4-17")
    FLEXIBLE: ClassVar[Versions] = Versions("12+")
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("7+")] = 0
    session_id: Annotated[Int32, Versions("7+")] = 0
    responses: Array[FetchTopicResponse] = ()
    node_endpoints: Annotated[Array[FetchNodeEndpoint], Versions("16+"), Tagged(0)] = ()


@dataclass(slots=True)
class FetchRequest(Request[FetchResponse]):
    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[Versions] = Versions("4-17")
    FLEXIBLE: ClassVar[Versions] = Versions("12+")
    RESPONSE: ClassVar[type[Message]] = FetchResponse
    cluster_id: Annotated[NullableString, Versions("12+"), Nullable("12+"), Tagged(0)] = None
    replica_id: Annotated[Int32, Versions("0-14")] = -1
    replica_state: Annotated[ReplicaState | None, Versions("15+"), Tagged(1)] = None
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Versions("7+")] = 0
    session_epoch: Annotated[Int32, Versions("7+")] = -1
    topics: Array[FetchTopic] = ()
    forgotten_topics_data: Annotated[Array[ForgottenTopic], Versions("7+")] = ()
    rack_id: Annotated[String, Versions("11+")] = ""
