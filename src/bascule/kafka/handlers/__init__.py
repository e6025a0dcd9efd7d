"""One module per request of the Kafka protocol, and the table of supported versions.

A handler takes a decoded request and returns its response. It sees neither bytes nor sockets. An
error of one partition becomes that partition's error code. An exception that a handler raises
closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from bascule.kafka.handlers.administration import handle_administration
from bascule.kafka.handlers.api_versions import handle_api_versions
from bascule.kafka.handlers.context import Context
from bascule.kafka.handlers.fetch import handle_fetch
from bascule.kafka.handlers.find_coordinator import handle_find_coordinator
from bascule.kafka.handlers.group_administration import (
    handle_delete_groups,
    handle_describe_groups,
    handle_list_groups,
    handle_offset_delete,
)
from bascule.kafka.handlers.list_offsets import handle_list_offsets
from bascule.kafka.handlers.membership.consumer_group_describe import (
    handle_consumer_group_describe,
)
from bascule.kafka.handlers.membership.consumer_group_heartbeat import (
    handle_consumer_group_heartbeat,
)
from bascule.kafka.handlers.membership.heartbeat import handle_heartbeat
from bascule.kafka.handlers.membership.join_group import handle_join_group
from bascule.kafka.handlers.membership.leave_group import handle_leave_group
from bascule.kafka.handlers.membership.sync_group import handle_sync_group
from bascule.kafka.handlers.metadata import handle_metadata
from bascule.kafka.handlers.offset_commit import handle_offset_commit
from bascule.kafka.handlers.offset_fetch import handle_offset_fetch
from bascule.kafka.handlers.offset_for_leader_epoch import handle_offset_for_leader_epoch
from bascule.kafka.handlers.produce import handle_produce
from bascule.kafka.handlers.share_group_heartbeat import handle_share_group_heartbeat
from bascule.kafka.handlers.table_reads import handle_table_reads
from bascule.wire.connection import ReceivedRequest
from bascule.wire.messages.api_versions import ApiVersionsRequest
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
from bascule.wire.messages.produce import ProduceRequest
from bascule.wire.messages.registry import OWN_REQUESTS, REQUESTS
from bascule.wire.messages.table_reads import TableReadsRequest
from bascule.wire.schema import Message, Versions

SUPPORTED_VERSIONS: Final[dict[int, Versions]] = {
    key: kind.VERSIONS for key, kind in REQUESTS.items()
}
"""API key -> versions advertised and answered: all versions that the codec supports."""
SERVED_REQUESTS: Final = {**REQUESTS, **OWN_REQUESTS}
SERVED_VERSIONS: Final = {key: kind.VERSIONS for key, kind in SERVED_REQUESTS.items()}
"""Also those that are not advertised."""


def handle(request: ReceivedRequest, context: Context) -> Message | Awaitable[Message]:
    """Answer one request; the result is an awaitable if the handler may have to wait.

    Raises: RemoteProtocolError if the connection must be closed instead of a response.
    """
    message, version = request.message, request.version
    match message:
        case TableReadsRequest():
            return handle_table_reads(message, context)
        case FetchRequest():
            return handle_fetch(message, version, context)
        case ListOffsetsRequest():
            return handle_list_offsets(message, version, context)
        case MetadataRequest():
            return handle_metadata(message, version, context)
        case OffsetCommitRequest():
            return handle_offset_commit(message, version, context)
        case HeartbeatRequest():
            return handle_heartbeat(message, context)
        case JoinGroupRequest():
            return handle_join_group(message, version, request.client_id, context)
        case SyncGroupRequest():
            return handle_sync_group(message, context)
        case LeaveGroupRequest():
            return handle_leave_group(message, version, context)
        case OffsetFetchRequest():
            return handle_offset_fetch(message, version, context)
        case ApiVersionsRequest():
            return handle_api_versions(version, SUPPORTED_VERSIONS)
        case OffsetForLeaderEpochRequest():
            return handle_offset_for_leader_epoch(message, version, context)
        case ProduceRequest():
            return handle_produce(message, request.client_id, context)
        case FindCoordinatorRequest():
            return handle_find_coordinator(message, version, context)
        case ListGroupsRequest():
            return handle_list_groups(message, context)
        case DescribeGroupsRequest():
            return handle_describe_groups(message, version, context)
        case DeleteGroupsRequest():
            return handle_delete_groups(message, request.client_id, context)
        case OffsetDeleteRequest():
            return handle_offset_delete(message, request.client_id, context)
        case ConsumerGroupHeartbeatRequest():
            return handle_consumer_group_heartbeat(message, request.client_id, context)
        case ConsumerGroupDescribeRequest():
            return handle_consumer_group_describe(message, context)
        case ShareGroupHeartbeatRequest():
            return handle_share_group_heartbeat(message, request.client_id, context)
        case _:
            return handle_administration(request, context)
