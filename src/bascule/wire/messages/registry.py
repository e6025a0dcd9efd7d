"""All requests by API key, for who serves them. A client imports those that it sends."""

from __future__ import annotations

from typing import Any, Final

from bascule.wire.messages.administration.create_partitions import CreatePartitionsRequest
from bascule.wire.messages.administration.create_topics import CreateTopicsRequest
from bascule.wire.messages.administration.delete_records import DeleteRecordsRequest
from bascule.wire.messages.administration.delete_topics import DeleteTopicsRequest
from bascule.wire.messages.administration.describe_cluster import DescribeClusterRequest
from bascule.wire.messages.administration.describe_log_dirs import DescribeLogDirsRequest
from bascule.wire.messages.administration.describe_producers import DescribeProducersRequest
from bascule.wire.messages.administration.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
)
from bascule.wire.messages.administration.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.describe_configs import DescribeConfigsRequest
from bascule.wire.messages.fetch import FetchRequest
from bascule.wire.messages.find_coordinator import FindCoordinatorRequest
from bascule.wire.messages.group.consumer_group_describe import ConsumerGroupDescribeRequest
from bascule.wire.messages.group.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from bascule.wire.messages.group.delete_groups import DeleteGroupsRequest
from bascule.wire.messages.group.describe_groups import DescribeGroupsRequest
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.group.join_group import JoinGroupRequest
from bascule.wire.messages.group.leave_group import LeaveGroupRequest
from bascule.wire.messages.group.list_groups import ListGroupsRequest
from bascule.wire.messages.group.offset_delete import OffsetDeleteRequest
from bascule.wire.messages.group.share_group_heartbeat import ShareGroupHeartbeatRequest
from bascule.wire.messages.group.sync_group import SyncGroupRequest
from bascule.wire.messages.list_offsets import ListOffsetsRequest
from bascule.wire.messages.metadata import MetadataRequest
from bascule.wire.messages.offset_commit import OffsetCommitRequest
from bascule.wire.messages.offset_fetch import OffsetFetchRequest
from bascule.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from bascule.wire.messages.peer.control import ControlRequest, PeerHelloRequest
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchRequest
from bascule.wire.messages.produce import ProduceRequest
from bascule.wire.messages.table_reads import TableReadsRequest
from bascule.wire.schema import Request

REQUESTS: Final[dict[int, type[Request[Any]]]] = {
    request.API_KEY: request
    for request in (
        ProduceRequest,
        FetchRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        FindCoordinatorRequest,
        JoinGroupRequest,
        HeartbeatRequest,
        LeaveGroupRequest,
        SyncGroupRequest,
        DescribeGroupsRequest,
        ListGroupsRequest,
        ApiVersionsRequest,
        OffsetForLeaderEpochRequest,
        DescribeConfigsRequest,
        DescribeClusterRequest,
        CreateTopicsRequest,
        DeleteTopicsRequest,
        CreatePartitionsRequest,
        IncrementalAlterConfigsRequest,
        DeleteRecordsRequest,
        DescribeLogDirsRequest,
        DeleteGroupsRequest,
        OffsetDeleteRequest,
        DescribeTopicPartitionsRequest,
        DescribeProducersRequest,
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupDescribeRequest,
        ShareGroupHeartbeatRequest,
    )
}
"""API key -> request class."""

PEER_REQUESTS: Final[dict[int, type[Request[Any]]]] = {
    request.API_KEY: request for request in (PeerHelloRequest, ReplicaFetchRequest, ControlRequest)
}
"""API key -> class of the requests between nodes; only the peer listener serves them."""

OWN_REQUESTS: Final[dict[int, type[Request[Any]]]] = {TableReadsRequest.API_KEY: TableReadsRequest}
"""API key -> class of what only clients of Bascule send; ApiVersions does not list it."""
