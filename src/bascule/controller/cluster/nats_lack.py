"""Nodes that have lost their NATS connection: others lead instead, where they can.

Such a node gets no messages of publishers, and nobody hears its acks. It is alive: its replicas
stay in sync.

::

    a node        no subscriptions for LACK_SECONDS    -> its pongs say so
                  subscriptions for STEADY_SECONDS     -> its pongs say no more so
    controller    notes it in the image, once for each change
                  a leader has lacked NATS, and another replica in sync has had it, both for
                  SETTLED_SECONDS by the image         -> that one leads, by a planned handover

A NATS server that all nodes share is missed by all of them, at slightly different times: they lack
it, and have it again, within less than SETTLED_SECONDS of each other, and nothing moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from bascule.cluster_version import NATS_LACKS
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.host.api import Clock
from bascule.metadata.image import Image
from bascule.metadata.nodes import NatsNote
from bascule.metadata.replicas.leadership import moves_from_lacking
from bascule.metadata.requests import LeaveLacking, NoteNats

log = logging.getLogger("bascule.controller")

LACK_SECONDS: Final = 1.0
"""A server that is restarted, or one in lame duck mode, is replaced within this time."""
STEADY_SECONDS: Final = 2.0
"""Longer than LACK_SECONDS: a connection that is lost again and again does not move leaders."""
SETTLED_SECONDS: Final = 2.0
"""Nodes tell the controller within a ping and an upkeep step, 0.8 s, what they notice; this is
twice as long."""
GIVEN_MAX: Final = 500
"""Partitions that get another leader in one step, as many as in one of a drain."""


class WatchedNats(Protocol):
    """See `ingest.nats_ingest`."""

    def standing_ns(self) -> tuple[int | None, int]: ...


class NatsWatch:
    """Whether this node lacks NATS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connection: WatchedNats | None = None
        self._lacks_since_ns: int | None = None

    def follow(self, connection: WatchedNats) -> None:
        """Watch this connection, which stands. Before that the node does not lack any."""
        self._connection = connection

    def lacks_ms(self) -> int:
        """For how many milliseconds this node has lacked NATS, at least 1; 0: it does not."""
        if self._connection is None:
            return 0
        now_ns = self._clock.monotonic_ns()
        lost_ns, stands_ns = self._connection.standing_ns()
        since_ns = self._lacks_since_ns
        if since_ns is None:
            if lost_ns is None or now_ns - lost_ns < LACK_SECONDS * 1e9:
                return 0
            since_ns = self._lacks_since_ns = lost_ns
            log.warning(
                "no nats connection: others lead where they can",
                extra={"seconds": round((now_ns - lost_ns) / 1e9, 1)},
            )
        elif lost_ns is None and now_ns - stands_ns >= STEADY_SECONDS * 1e9:
            self._lacks_since_ns = None
            log.info("nats connection is steady again: this node may lead")
            return 0
        return max(1, (now_ns - since_ns) // 1_000_000)


class LackingNodes:
    """What the controller does about nodes without NATS. Belongs to the event loop."""

    def __init__(
        self,
        metadata: MetadataGroup,
        told: Callable[[], Mapping[int, tuple[int, int]]],
        clock: Clock,
    ) -> None:
        """`told` is what the nodes have said last; see `Sessions.nats_lacks`."""
        self._metadata = metadata
        self._told = told
        self._clock = clock
        self._seen: dict[int, tuple[tuple[int, bool], float]] = {}
        """Node -> its epoch and whether it lacks NATS, by the image, and since when that is so, on
        the loop's clock."""
        self._nodes: object = None
        """Those of the image that `_seen` is of."""
        self._given: Image | None = None
        """The image in which nobody could lead for a node that lacks NATS."""

    def forget(self) -> None:
        """This node is not the controller. The next time it begins anew."""
        self._seen.clear()
        self._nodes = self._given = None

    async def note(self) -> None:
        """Note in the image what the nodes say. Raises: BasculeError."""
        image = self._metadata.image
        if image.cluster_version < NATS_LACKS:
            return
        now_ms = self._clock.now_ms()
        notes = []
        for node_id, (epoch, lacks_ms) in sorted(self._told().items()):
            found = image.nodes.get(node_id)
            is_same = found is not None and found.alive and found.epoch == epoch
            if found is not None and is_same and found.lacks_nats != (lacks_ms > 0):
                since_ms = max(1, now_ms - lacks_ms) if lacks_ms else 0
                notes.append(NatsNote(node_id, epoch, since_ms))
        if not notes:
            return
        await self._metadata.submit(NoteNats(tuple(notes)))
        for each in notes:
            if each.lacks_since_ms:
                log.warning("a node has no nats connection", extra={"node": each.node_id})
            else:
                log.info("a node has its nats connection again", extra={"node": each.node_id})

    async def give_leaders(self, now: float) -> None:
        """Have others lead for nodes that lack NATS, once it is certain who has it. `now` is on the
        loop's clock. Raises: BasculeError."""
        image = self._metadata.image
        if image.nodes is not self._nodes:
            self._look(image, now)
        settled = {
            node_id: lacks
            for node_id, ((_, lacks), since) in self._seen.items()
            if now - since >= SETTLED_SECONDS
        }
        lacking = tuple(sorted(node_id for node_id, lacks in settled.items() if lacks))
        able = tuple(sorted(node_id for node_id, lacks in settled.items() if not lacks))
        if not lacking or not able or image is self._given:
            return
        if moves_from_lacking(image, lacking, able, count_max=1) is not None:
            await self._metadata.submit(LeaveLacking(lacking, able, GIVEN_MAX))
        elif len(settled) == len(self._seen):
            self._given = image

    def _look(self, image: Image, now: float) -> None:
        """The nodes have changed."""
        self._nodes = image.nodes
        before, self._seen = self._seen, {}
        for node_id, node in image.nodes.items():
            if node.alive:
                state = node.epoch, node.lacks_nats
                known = before.get(node_id)
                is_same = known is not None and known[0] == state
                self._seen[node_id] = known if known is not None and is_same else (state, now)
