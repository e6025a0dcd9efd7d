"""DescribeCluster: the nodes, and which of them is the controller."""

from __future__ import annotations

from bascule.kafka.handlers.context import Context
from bascule.model import NodeRegistration
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.administration.describe_cluster import (
    BROKERS,
    ClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def handle_describe_cluster(
    request: DescribeClusterRequest, context: Context
) -> DescribeClusterResponse:
    """The nodes that are alive, and those that are lost if the request asks for them, too."""
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="every node is a broker here: ask for endpoint type 1",
            endpoint_type=request.endpoint_type,
        )
    chosen = [
        node
        for node in context.cluster.registrations()
        if node.client and (node.alive or request.include_fenced_brokers)
    ]
    return DescribeClusterResponse(
        cluster_id=context.node.cluster_id,
        controller_id=context.cluster.controller_id or -1,
        brokers=[_broker(node, context) for node in chosen],
    )


def _broker(node: NodeRegistration, context: Context) -> ClusterBroker:
    host, port = context.address_of(node)
    return ClusterBroker(node.node_id, host, port, node.rack or None, is_fenced=not node.alive)
