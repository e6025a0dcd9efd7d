"""FindCoordinator: always this node, which stores committed offsets but runs no consumer groups.

librdkafka derives LZ4 support from this API. Clients with a group id that assign partitions
themselves commit and fetch their offsets here. Clients that subscribe find that JoinGroup is not
advertised, and fail at once with an error that names it.

The alternative, COORDINATOR_NOT_AVAILABLE, was measured: clients retry ten times a second,
kafka-python never reads a record, closing takes librdkafka 46 s, and aiokafka never closes.
"""

from __future__ import annotations

from bascule.kafka.handlers.context import Context
from bascule.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)


def handle_find_coordinator(
    request: FindCoordinatorRequest, version: int, context: Context
) -> FindCoordinatorResponse:
    """This node for every key."""
    node_id, host, port = context.node.node_id, context.host, context.port
    if version < 4:
        return FindCoordinatorResponse(node_id=node_id, host=host, port=port)
    coordinators = [Coordinator(key, node_id, host, port) for key in request.coordinator_keys]
    return FindCoordinatorResponse(coordinators=coordinators)
