"""DescribeProducers: there are none, since records come from NATS."""

from __future__ import annotations

from bascule.errors import BasculeError
from bascule.kafka.handlers.context import Context, find_stream, readable_log
from bascule.wire.error_codes import ErrorCode, code_of
from bascule.wire.messages.administration.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionProducers,
    TopicProducers,
)

ANY_EPOCH = -1


def handle_describe_producers(
    request: DescribeProducersRequest, context: Context
) -> DescribeProducersResponse:
    """No producers for each partition that this node leads; an error for others."""
    return DescribeProducersResponse(
        topics=[
            TopicProducers(
                topic.name,
                [
                    PartitionProducers(index, _error(topic.name, index, context))
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _error(name: str, index: int, context: Context) -> ErrorCode:
    stream, code = find_stream(context, name=name)
    if not stream:
        return code
    try:
        readable_log(stream, index, ANY_EPOCH)
    except BasculeError as error:
        return code_of(error)
    return ErrorCode.NONE
