"""One module per request of the log protocol, and the table of what is served.

A handler takes a decoded request and returns its response; it neither sees bytes nor sockets.
Errors of one partition become that partition's error code; what a handler raises costs the
connection.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from bascule.errors import RemoteProtocolError
from bascule.kafka.handlers.api_versions import handle_api_versions
from bascule.kafka.handlers.context import Context
from bascule.kafka.handlers.fetch import handle_fetch
from bascule.kafka.handlers.find_coordinator import handle_find_coordinator
from bascule.kafka.handlers.list_offsets import handle_list_offsets
from bascule.kafka.handlers.metadata import handle_metadata
from bascule.kafka.handlers.offset_commit import handle_offset_commit
from bascule.kafka.handlers.offset_fetch import handle_offset_fetch
from bascule.kafka.handlers.offset_for_leader_epoch import handle_offset_for_leader_epoch
from bascule.kafka.handlers.produce import handle_produce
from bascule.wire.connection import ReceivedRequest
from bascule.wire.messages import REQUESTS
from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.fetch import FetchRequest
from bascule.wire.messages.find_coordinator import FindCoordinatorRequest
from bascule.wire.messages.list_offsets import ListOffsetsRequest
from bascule.wire.messages.metadata import MetadataRequest
from bascule.wire.messages.offset_commit import OffsetCommitRequest
from bascule.wire.messages.offset_fetch import OffsetFetchRequest
from bascule.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from bascule.wire.messages.produce import ProduceRequest
from bascule.wire.schema import Message, Versions

SERVED: Final[dict[int, Versions]] = {key: kind.VERSIONS for key, kind in REQUESTS.items()}
"""API key -> versions advertised and answered: every version the codec knows."""


def handle(request: ReceivedRequest, context: Context) -> Message | Awaitable[Message]:
    """Answer one request; what may have to wait is awaitable.

    Raises: RemoteProtocolError where closing the connection is the only answer.
    """
    message, version = request.message, request.version
    match message:
        case FetchRequest():
            return handle_fetch(message, version, context)
        case ListOffsetsRequest():
            return handle_list_offsets(message, version, context)
        case MetadataRequest():
            return handle_metadata(message, version, context)
        case OffsetCommitRequest():
            return handle_offset_commit(message, version, context)
        case OffsetFetchRequest():
            return handle_offset_fetch(message, version, context)
        case ApiVersionsRequest():
            return handle_api_versions(version, SERVED)
        case OffsetForLeaderEpochRequest():
            return handle_offset_for_leader_epoch(message, version, context)
        case ProduceRequest():
            return handle_produce(message, version, context)
        case FindCoordinatorRequest():
            return handle_find_coordinator(message, version, context)
        case _:
            raise RemoteProtocolError(f"api key {request.api_key} has no handler")
