"""CreateTopics (key 19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    ITEMS_AT_ONCE,
    NO_ID,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    Request,
    String,
    Structure,
    Tagged,
    Uuid,
    Versions,
)


@dataclass(slots=True)
class ReplicaAssignment(Structure):
    partition_index: Int32 = 0
    broker_ids: Array[Int32] = ()


@dataclass(slots=True)
class CreatableTopicConfig(Structure):
    name: String = ""
    value: NullableString = ""


@dataclass(slots=True)
class CreatableTopic(Structure):
    name: String = ""
    num_partitions: Int32 = 0
    """-1: the default."""
    replication_factor: Int16 = 0
    """-1: the default."""
    assignments: Array[ReplicaAssignment] = ()
    configs: Array[CreatableTopicConfig] = ()


@dataclass(slots=True)
class CreatedTopicConfig(Structure):
    name: Annotated[String, Versions("5+")] = ""
    value: Annotated[NullableString, Versions("5+")] = ""
    read_only: Annotated[Bool, Versions("5+")] = False
    config_source: Annotated[Int8, Versions("5+")] = -1
    is_sensitive: Annotated[Bool, Versions("5+")] = False


@dataclass(slots=True)
class CreatedTopic(Structure):
    name: String = ""
    topic_id: Annotated[Uuid, Versions("7+")] = NO_ID
    error_code: Int16 = 0
    error_message: NullableString = ""
    topic_config_error_code: Annotated[Int16, Versions("5+"), Tagged(0)] = 0
    num_partitions: Annotated[Int32, Versions("5+")] = -1
    replication_factor: Annotated[Int16, Versions("5+")] = -1
    configs: Annotated[NullableArray[CreatedTopicConfig], Versions("5+")] = ()


@dataclass(slots=True)
class CreateTopicsResponse(Message):
    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[Versions] = Versions("2-7")
    FLEXIBLE: ClassVar[Versions] = Versions("5+")
    throttle_time_ms: Int32 = 0
    topics: Array[CreatedTopic] = ()

    @property
    def is_large(self) -> bool:
        return sum(1 + len(each.configs or ()) for each in self.topics) > ITEMS_AT_ONCE


@dataclass(slots=True)
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[Versions] = Versions("2-7")
    FLEXIBLE: ClassVar[Versions] = Versions("5+")
    RESPONSE: ClassVar[type[Message]] = CreateTopicsResponse
    topics: Array[CreatableTopic] = ()
    timeout_ms: Int32 = 60_000
    validate_only: Bool = False
