"""The route table: what is offered where. Routing and documentation are both made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.broker.http.openapi import Operation
from bascule.broker.http.shapes import CreateStreamRequest, Health, Node, Stream, StreamList

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
            (400, "malformed_request"),
            (400, "invalid_name"),
            (400, "invalid_config"),
            (409, "stream_conflict"),
            (413, "limit_exceeded"),
            (415, "unsupported_media_type"),
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
    "delete_stream": Operation(
        "DELETE",
        "/v1/streams/{name}",
        "Delete a stream and all its records",
        {204: ("Deleted.", None)},
        errors=((404, "unknown_stream"),),
        example="curl -X DELETE $SERVER/v1/streams/flights",
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
        "Whether the node lives",
        {200: ("It does.", Health)},
        example="curl $SERVER/healthz",
    ),
    "ready": Operation(
        "GET",
        "/readyz",
        "Whether the node serves",
        {
            200: ("It does.", Health),
            503: ("It opens, drains, or has lost its NATS server.", Health),
        },
        example="curl $SERVER/readyz",
    ),
}
"""Name -> operation; `AdminApi.handle_<name>` answers it."""
