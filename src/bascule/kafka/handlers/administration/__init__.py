"""Requests of administration tools: about the cluster, and about streams as topics.

A change goes to the controller as a request over HTTP does, from any node.
"""

from __future__ import annotations

from collections.abc import Awaitable

from bascule.errors import RemoteProtocolError
from bascule.kafka.handlers.administration.describe_cluster import handle_describe_cluster
from bascule.kafka.handlers.administration.describe_configs import handle_describe_configs
from bascule.kafka.handlers.context import Context
from bascule.wire.connection import ReceivedRequest
from bascule.wire.messages.administration.describe_cluster import DescribeClusterRequest
from bascule.wire.messages.describe_configs import DescribeConfigsRequest
from bascule.wire.schema import Message


def handle_administration(
    request: ReceivedRequest, context: Context
) -> Message | Awaitable[Message]:
    """Answer one request. Raises: RemoteProtocolError for a request without a handler."""
    message = request.message
    match message:
        case DescribeConfigsRequest():
            return handle_describe_configs(message, context)
        case DescribeClusterRequest():
            return handle_describe_cluster(message, context)
        case _:
            raise RemoteProtocolError(f"api key {request.api_key} has no handler")
