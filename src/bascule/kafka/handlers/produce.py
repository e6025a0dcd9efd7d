"""Produce: always refused; the error names the NATS subject to publish to.

It is advertised because librdkafka derives features from it. Without Produce 3 or later beside
Fetch 4, librdkafka does not fetch v2 batches. Versions before 2.12 test for Produce 3 and 7. The
range starts at 0 because some clients take a higher start for a broker without compression.
"""

from __future__ import annotations

from typing import Final

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

MESSAGES_MAX: Final = 100
"""Partitions of one response that carry the text of their error. A short request can name many."""


def handle_produce(
    request: ProduceRequest, client_id: str | None, context: Context
) -> ProduceResponse:
    """A non-retriable error for every partition, with the subject to publish to.

    Raises: RemoteProtocolError for acks = 0. The client expects no response then and takes its
    records for stored, so the connection is closed and the log says why.
    """
    responses = [_refuse(topic, context) for topic in request.topic_data]
    partitions = [p for topic in responses for p in topic.partition_responses]
    for partition in partitions[MESSAGES_MAX:]:
        partition.error_message = None
    reason = partitions[0].error_message if partitions else "the request has no records"
    if request.acks == 0:
        reason = f"acks is 0, so the client does not learn that nothing is stored: {reason}"
    context.refusals.note(context.peer, client_id, api="Produce", reason=str(reason))
    if request.acks == 0:
        raise RemoteProtocolError(f"Produce is refused; {reason}")
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
