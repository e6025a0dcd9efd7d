"""Produce: always refused; the error names the NATS subject to publish to.

It is advertised because librdkafka derives features from it. Without Produce 3 or later beside
Fetch 4, librdkafka does not fetch v2 batches. Versions before 2.12 test for Produce 3 and 7. The
range starts at 0 because some clients take a higher start for a broker without compression.
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
    """A non-retriable error for every partition, with the subject to publish to.

    Raises: RemoteProtocolError for acks = 0. The client expects no response then, so only
    closing the connection can report the refusal.
    """
    responses = [_refuse(topic, context) for topic in request.topic_data]
    if request.acks == 0:
        why = next((p.error_message for r in responses for p in r.partition_responses), "")
        raise RemoteProtocolError(f"a produce request without acks cannot be refused: {why}")
    return ProduceResponse(responses=responses)


def _refuse(topic: ProduceTopic, context: Context) -> ProduceTopicResponse:
    stream, code = find_stream(context, name=topic.name, id=topic.topic_id)
    message = "unknown stream; records are written to streams by publishing to NATS"
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
