"""Requests to nodes that are alive, as the cluster knows; they end once it knows better."""

from __future__ import annotations

from bascule.controller.cluster.metadata_group.metadata_group import MetadataGroup, Peers


class LivingPeers:
    """`Peers` for requests that take long. A node that hangs is lost within a second, and answers
    nothing before it is back. Belongs to the event loop."""

    def __init__(self, metadata: MetadataGroup, peers: Peers) -> None:
        self._metadata = metadata
        self._peers = peers

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """See `Peers`. Raises: Broken also where the node is lost before it has answered."""
        return await self._metadata.watchers.ask_while(
            lambda: self._metadata.image.is_alive(node),
            self._peers.control(node, kind, body, timeout_s=timeout_s),
            otherwise=f"node {node} is lost",
        )
