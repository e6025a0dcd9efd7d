"""Produce: refused, with the way that works. Advertised because librdkafka reads features off it.

Without Produce 3 or later beside Fetch 4 librdkafka does not fetch v2 batches at all, and
versions before 2.12 test for Produce 3 and 7; the range starts at 0 for those that take a higher
start for a broker without compression.
"""

from __future__ import annotations

from bascule.errors import RemoteProtocolError
from bascule.kafka.handlers.context import Context, find_stream
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)


def handle_produce(request: ProduceRequest, version: int, context: Context) -> ProduceResponse:
    """An error for every partition that no client retries, with the subject to publish to.

    Raises: RemoteProtocolError for acks = 0, where no answer is expected and closing is all
    that can be said.
    """
    responses = [_refuse(topic, context) for topic in request.topic_data]
    if request.acks == 0:
        why = next((p.error_message for r in responses for p in r.partition_responses), "")
        raise RemoteProtocolError(f"a produce request without acks cannot be refused: {why}")
    return ProduceResponse(responses=responses)


def _refuse(topic: ProduceTopic, context: Context) -> ProduceTopicResponse:
    stream, code = find_stream(context, name=topic.name, id=topic.topic_id)
    message = "no stream of this name is here, and streams are written by publishing to NATS"
    if stream:
        definition = stream[0].definition
        code = ErrorCode.POLICY_VIOLATION
        message = (
            f"stream {definition.name} is written by publishing to its NATS subject "
            f"{definition.config.subject}"
        )
    refusals = [
        ProducePartitionResponse(index=p.index, error_code=code, error_message=message)
        for p in topic.partition_data
    ]
    return ProduceTopicResponse(topic.name, topic.topic_id, refusals)
