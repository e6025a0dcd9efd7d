"""The route table: what is offered where. Routing and documentation are both made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.http.offsets import OffsetList, OffsetsRemoved, ResetOffsetsRequest
from bascule.http.openapi import Operation
from bascule.http.requests import (
    AlterStreamRequest,
    CreateStreamRequest,
    NothingToSay,
    PurgeRequest,
)
from bascule.http.schemas import Health, Node, Purged, Stream, StreamList

_BODY: Final = (
    (400, "malformed_request"),
    (413, "limit_exceeded"),
    (415, "unsupported_media_type"),
)
"""What every operation with a body may answer."""
_CHANGE: Final = ((404, "unknown_stream"), (409, "internal_stream"))
"""What every operation that changes a stream may answer."""
_OFFSETS: Final = ((500, "partition_failed"), (503, "indeterminate"), (503, "not_stored"))
"""What every operation on committed offsets may answer."""

OPERATIONS: Final[Mapping[str, Operation]] = {
    "node": Operation(
        "GET",
        "/v1/node",
        "The node: its doors, and what it runs on",
        {200: ("The node.", Node)},
        example="curl $SERVER/v1/node",
    ),
    "list_streams": Operation(
        "GET",
        "/v1/streams",
        "List the streams",
        {200: ("All streams, by name.", StreamList)},
        example="curl $SERVER/v1/streams",
    ),
    "create_stream": Operation(
        "POST",
        "/v1/streams",
        "Create a stream; asking again changes nothing",
        {
            201: ("Created now.", Stream),
            200: ("It exists with this configuration.", Stream),
        },
        request=CreateStreamRequest,
        errors=(
            *_BODY,
            (400, "invalid_name"),
            (400, "invalid_config"),
            (409, "stream_conflict"),
        ),
        example='curl --json \'{"name": "flights", "subject": "flights.>"}\' $SERVER/v1/streams',
    ),
    "stream": Operation(
        "GET",
        "/v1/streams/{name}",
        "One stream",
        {200: ("The stream.", Stream)},
        errors=((404, "unknown_stream"),),
        example="curl $SERVER/v1/streams/flights",
    ),
    "alter_stream": Operation(
        "PATCH",
        "/v1/streams/{name}",
        "Change settings of a stream; what is left out stays",
        {200: ("The stream, altered.", Stream)},
        request=AlterStreamRequest,
        errors=(*_BODY, *_CHANGE, (400, "invalid_config"), (409, "cannot_alter")),
        example="curl -X PATCH --json '{\"retention_ms_max\": 604800000}' "
        "$SERVER/v1/streams/flights",
    ),
    "pause_stream": Operation(
        "POST",
        "/v1/streams/{name}/pause",
        "Take no messages for now; whoever asks for an ack is told so",
        {200: ("The stream is paused.", Stream)},
        request=NothingToSay,
        errors=(*_BODY, *_CHANGE),
        example="curl --json '{}' $SERVER/v1/streams/flights/pause",
    ),
    "resume_stream": Operation(
        "POST",
        "/v1/streams/{name}/resume",
        "Take messages again",
        {200: ("The stream takes messages.", Stream)},
        request=NothingToSay,
        errors=(*_BODY, *_CHANGE),
        example="curl --json '{}' $SERVER/v1/streams/flights/resume",
    ),
    "purge_stream": Operation(
        "POST",
        "/v1/streams/{name}/purge",
        "Remove the oldest records, for good",
        {200: ("What went, and where each partition starts now.", Purged)},
        request=PurgeRequest,
        errors=(
            *_BODY,
            *_CHANGE,
            (400, "offset_out_of_range"),
            (404, "unknown_partition"),
            (500, "partition_failed"),
        ),
        example='curl --json \'{"to_offset": 1000, "partition": 0}\' '
        "$SERVER/v1/streams/flights/purge",
    ),
    "delete_stream": Operation(
        "DELETE",
        "/v1/streams/{name}",
        "Delete a stream and all its records",
        {204: ("Deleted.", None)},
        errors=_CHANGE,
        example="curl -X DELETE $SERVER/v1/streams/flights",
    ),
    "list_offsets": Operation(
        "GET",
        "/v1/offsets",
        "How far consumers have come",
        {200: ("Every commit, or those asked for.", OffsetList)},
        errors=_OFFSETS,
        query=(("consumer", "Only this consumer's."), ("stream", "Only for this stream.")),
        example="curl '$SERVER/v1/offsets?consumer=billing'",
    ),
    "reset_offsets": Operation(
        "POST",
        "/v1/offsets",
        "Have a consumer go on from another place; stop it first",
        {200: ("Where it goes on, in each partition.", OffsetList)},
        request=ResetOffsetsRequest,
        errors=(
            *_BODY,
            *_OFFSETS,
            (400, "invalid_name"),
            (400, "offset_out_of_range"),
            (404, "unknown_stream"),
            (404, "unknown_partition"),
        ),
        example='curl --json \'{"consumer": "billing", "stream": "flights", "to": "earliest"}\' '
        "$SERVER/v1/offsets",
    ),
    "remove_offsets": Operation(
        "DELETE",
        "/v1/offsets",
        "Forget how far a consumer has come",
        {200: ("How many commits went.", OffsetsRemoved)},
        errors=((400, "malformed_request"), *_OFFSETS),
        query=(
            ("consumer", "Whose; needed."),
            ("stream", "Only for this stream."),
            ("partition", "Only of this partition."),
        ),
        example="curl -X DELETE '$SERVER/v1/offsets?consumer=billing&stream=flights'",
    ),
    "metrics": Operation(
        "GET",
        "/metrics",
        "Metrics in Prometheus text form",
        {200: ("All metrics.", None)},
        example="curl $SERVER/metrics",
        media_type="text/plain",
    ),
    "health": Operation(
        "GET",
        "/healthz",
        "Whether the node lives; `parts` says which does not",
        {
            200: ("It does.", Health),
            503: ("A thread it needs has ended: restart the node.", Health),
        },
        example="curl $SERVER/healthz",
    ),
    "ready": Operation(
        "GET",
        "/readyz",
        "Whether the node serves; `parts` says which does not, and why",
        {
            200: ("It does, though `degraded` says that some partition does not.", Health),
            503: ("It opens, drains, or has lost its NATS server.", Health),
        },
        example="curl $SERVER/readyz",
    ),
}
"""Name -> operation; `AdminApi.handle_<name>` answers it."""
