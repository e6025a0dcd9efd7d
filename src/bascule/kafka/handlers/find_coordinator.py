"""FindCoordinator: this node, which keeps the offsets of every group and the members of none.

librdkafka reads LZ4 support off it. Clients that have a group id and only assign partitions commit
and fetch their offsets here. Those that subscribe find that JoinGroup is not advertised, and fail
at once with an error that names it. Measured against the other possible answer,
COORDINATOR_NOT_AVAILABLE: with that one, clients keep asking (ten times a second), kafka-python
never reads a record, and closing takes librdkafka 46 s and aiokafka for ever.
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
