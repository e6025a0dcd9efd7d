"""ConsumerGroupDescribe (key 69): groups of the consumer protocol and their members (KIP-848)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    NO_ID,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    NullableString,
    Request,
    String,
    Structure,
    Uuid,
    Versions,
)


@dataclass(slots=True)
class DescribedTopicPartitions(Structure):
    topic_id: Uuid = NO_ID
    topic_name: String = ""
    partitions: Array[Int32] = ()


@dataclass(slots=True)
class DescribedAssignment(Structure):
    topic_partitions: Array[DescribedTopicPartitions] = ()


@dataclass(slots=True)
class DescribedConsumerMember(Structure):
    """`member_type` is 0 for the classic protocol, 1 for the consumer protocol."""

    member_id: String = ""
    instance_id: NullableString = None
    rack_id: NullableString = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: Array[String] = ()
    subscribed_topic_regex: NullableString = None
    assignment: DescribedAssignment = field(default_factory=DescribedAssignment)
    target_assignment: DescribedAssignment = field(default_factory=DescribedAssignment)
    member_type: Annotated[Int8, Versions("1+")] = -1


@dataclass(slots=True)
class DescribedConsumerGroup(Structure):
    error_code: Int16 = 0
    error_message: NullableString = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: Array[DescribedConsumerMember] = ()
    authorized_operations: Int32 = -(1 << 31)


@dataclass(slots=True)
class ConsumerGroupDescribeResponse(Message):
    API_KEY: ClassVar[int] = 69
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    throttle_time_ms: Int32 = 0
    groups: Array[DescribedConsumerGroup] = ()


@dataclass(slots=True)
class ConsumerGroupDescribeRequest(Request[ConsumerGroupDescribeResponse]):
    API_KEY: ClassVar[int] = 69
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    RESPONSE: ClassVar[type[Message]] = ConsumerGroupDescribeResponse
    group_ids: Array[String] = ()
    include_authorized_operations: Bool = False
