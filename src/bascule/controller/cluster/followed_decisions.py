"""How a request waits until a decision is in force on the nodes that it concerns.

::

    alter -> index of the log -> each leader of the stream, "await" -> it has followed to the index
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

import msgspec

from bascule.controller.cluster.image_follower import ImageFollower
from bascule.controller.cluster.metadata_group import LivingPeers, MetadataGroup
from bascule.controller.reconciler import Reconciler
from bascule.errors import Broken
from bascule.errors.plain import from_plain, to_plain
from bascule.model import NO_LEADER, StreamDefinition
from bascule.wire.nats import NatsRefused

log = logging.getLogger("bascule.controller")

AWAIT: Final = "await"
"""The kind of control request that waits until a node has followed the image to an index."""
FOLLOW_SECONDS_MAX: Final = 20.0
"""For the leaders of a stream, or this node, to follow a decision."""


class _Awaited(msgspec.Struct, array_like=True):
    index: int
    stream_id: bytes


class FollowedDecisions:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataGroup,
        peers: LivingPeers,
        reconciler: Reconciler,
        follower: ImageFollower,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._peers = peers
        self._reconciler = reconciler
        self._follower = follower

    async def wait_leaders(self, definition: StreamDefinition, index: int) -> None:
        """Return once all leaders of the stream have followed the image to `index`.

        A leader that is lost, or does not answer, is not waited for: its successor subscribes
        before it leads. Raises: what a leader raised, NatsRefused for example.
        """
        states = self._metadata.image.partitions.get(definition.id, ())
        leaders = {state.leader for state in states} - {NO_LEADER}
        await self.wait_nodes(leaders, index, definition.id)

    async def wait_nodes(self, nodes: Collection[int], index: int, stream_id: bytes = b"") -> None:
        """Return once these nodes have followed the image to `index`, as far as they are there and
        answer.

        Raises: what a node raises of the stream of this id, NatsRefused for example.
        """
        body = msgspec.msgpack.encode(_Awaited(index, stream_id))
        for node in sorted(nodes):
            if node == self._node_id:
                await self.answer(body)
                continue
            try:
                await self._peers.control(node, AWAIT, body, timeout_s=FOLLOW_SECONDS_MAX)
            except NatsRefused:
                raise
            except Broken as error:
                name = self._metadata.image.index.names.get(stream_id, "")
                log.warning(
                    "leader did not confirm a decision",
                    extra={"node": node, "stream": name, "error": str(error)},
                )

    async def answer(self, body: bytes) -> bytes:
        """Answer `AWAIT`. Raises: Broken, and what concerns the subscriptions of the stream."""
        asked = msgspec.msgpack.decode(body, type=_Awaited)
        await self._metadata.wait_applied(asked.index)
        try:
            async with asyncio.timeout(FOLLOW_SECONDS_MAX):
                await self._follower.wait_followed(asked.index)
        except TimeoutError:
            raise Broken(f"node {self._node_id} has not followed a decision in time") from None
        error = self._reconciler.failures.get(asked.stream_id)
        if isinstance(error, NatsRefused | Broken):
            raise from_plain(*to_plain(error))
        return b""
