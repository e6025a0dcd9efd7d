"""Requests of administration tools: about the cluster, and about streams as topics.

A change goes to the controller as a request over HTTP does, from any node.
"""

from __future__ import annotations

from collections.abc import Awaitable

from bascule.errors import RemoteProtocolError
from bascule.kafka.handlers.administration.alter_configs import (
    handle_incremental_alter_configs,
)
from bascule.kafka.handlers.administration.delete_records import handle_delete_records
from bascule.kafka.handlers.administration.describe_cluster import handle_describe_cluster
from bascule.kafka.handlers.administration.describe_configs import handle_describe_configs
from bascule.kafka.handlers.administration.describe_log_dirs import handle_describe_log_dirs
from bascule.kafka.handlers.administration.describe_producers import handle_describe_producers
from bascule.kafka.handlers.administration.describe_topic_partitions import (
    handle_describe_topic_partitions,
)
from bascule.kafka.handlers.administration.topics import (
    handle_create_partitions,
    handle_create_topics,
    handle_delete_topics,
)
from bascule.kafka.handlers.context import Context
from bascule.wire.connection import ReceivedRequest
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
from bascule.wire.messages.describe_configs import DescribeConfigsRequest
from bascule.wire.schema import Message


def handle_administration(
    request: ReceivedRequest, context: Context
) -> Message | Awaitable[Message]:
    """Answer one request. Raises: RemoteProtocolError for a request without a handler."""
    message, client_id = request.message, request.client_id
    match message:
        case DescribeConfigsRequest():
            return handle_describe_configs(message, context)
        case DescribeClusterRequest():
            return handle_describe_cluster(message, context)
        case DescribeTopicPartitionsRequest():
            return handle_describe_topic_partitions(message, context)
        case DescribeLogDirsRequest():
            return handle_describe_log_dirs(message, context)
        case DescribeProducersRequest():
            return handle_describe_producers(message, context)
        case CreateTopicsRequest():
            return handle_create_topics(message, request.version, client_id, context)
        case DeleteTopicsRequest():
            return handle_delete_topics(message, client_id, context)
        case CreatePartitionsRequest():
            return handle_create_partitions(message, client_id, context)
        case IncrementalAlterConfigsRequest():
            return handle_incremental_alter_configs(message, client_id, context)
        case DeleteRecordsRequest():
            return handle_delete_records(message, client_id, context)
        case _:
            raise RemoteProtocolError(f"api key {request.api_key} has no handler")
