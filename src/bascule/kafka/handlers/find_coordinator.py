"""FindCoordinator: the node that stores committed offsets and coordinates the groups.

librdkafka derives LZ4 support from this API. Clients with a group id that assign partitions
themselves commit and fetch their offsets here, too.

The alternative, COORDINATOR_NOT_AVAILABLE, was measured: clients retry ten times a second,
kafka-python never reads a record, closing takes librdkafka 46 s, and aiokafka never closes.
"""

from __future__ import annotations

from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from bascule.wire.offsets import OFFSETS_STREAM


def handle_find_coordinator(
    request: FindCoordinatorRequest, version: int, context: Context
) -> FindCoordinatorResponse:
    """The same node for every key: the one that leads the stream of committed offsets."""
    found = _coordinator(context)
    code = ErrorCode.NONE if found is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE
    node_id, host, port = found or (-1, "", -1)
    if version < 4:
        return FindCoordinatorResponse(error_code=code, node_id=node_id, host=host, port=port)
    # Each key once: a short request that repeats a key must not cause a huge response.
    distinct = dict.fromkeys(request.coordinator_keys)
    coordinators = [Coordinator(key, node_id, host, port, code) for key in distinct]
    return FindCoordinatorResponse(coordinators=coordinators)


def is_coordinator(context: Context) -> bool:
    """Whether this node stores committed offsets."""
    return _leader(context) == context.node.node_id


def _coordinator(context: Context) -> tuple[int, str, int] | None:
    """Node id, host and port; None while nobody leads the stream of committed offsets."""
    leader = _leader(context)
    for node in context.cluster.nodes():
        if node.node_id == leader:
            return node.node_id, *context.address_of(node)
    return None


def _leader(context: Context) -> int:
    """Of the stream of committed offsets; 0 if it has none."""
    stream = context.partitions.stream(OFFSETS_STREAM)
    states = context.cluster.states(stream[0].definition.id) if stream else ()
    return states[0].leader if states else 0
