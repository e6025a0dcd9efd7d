"""Where partitions begin and end. Those that other nodes lead are asked for at their leaders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.controller.cluster.views import ClusterViews
from bascule.errors import BasculeError, UnknownStream
from bascule.model import NO_LEADER
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions

log = logging.getLogger("bascule.controller")

ENDS: Final = "ends"
"""The kind of control request for the ends of partitions that a node leads."""
ANSWER_SECONDS_MAX: Final = 2.0
SLICE: Final = 1_000
"""Partitions that are looked at before other work of the event loop comes in between: 1 to 2 ms."""


class Ends(NamedTuple):
    """The records that a consumer can read: from `start` to `high_watermark`, exclusive."""

    start: int
    high_watermark: int


Place: TypeAlias = tuple[str, int]
"""Stream and partition."""


class PartitionEnds:
    """Belongs to the event loop."""

    def __init__(
        self, node_id: int, partitions: Partitions, views: ClusterViews, peers: Peers
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._views = views
        self._peers = peers

    async def find(
        self, places: Iterable[Place], *, from_replicas: bool = False
    ) -> dict[Place, Ends]:
        """The ends of those partitions that there are, as their leaders say.

        With `from_replicas` a replica of this node that is in sync is not asked for elsewhere: it
        knows an end that is some milliseconds old. Where a leader does not answer within 2 s, the
        replica of this node says what it knows; without one the partition is left out.
        """
        found: dict[Place, Ends] = {}
        here: dict[Place, Ends] = {}
        wanted: dict[int, list[Place]] = {}
        for number, place in enumerate(dict.fromkeys(places)):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            leader, is_in_sync = self._standing(place)
            held = self._held(place)
            if held is not None:
                here[place] = held
            if held is not None and (leader == self._node_id or (from_replicas and is_in_sync)):
                found[place] = held
            elif leader not in (NO_LEADER, self._node_id):
                wanted.setdefault(leader, []).append(place)
        answers = await asyncio.gather(*(self._ask(node, asked) for node, asked in wanted.items()))
        for answer in answers:
            found |= answer
        return here | found

    def _standing(self, place: Place) -> tuple[int, bool]:
        """The leader of a partition, and whether this node is in sync."""
        stream, partition = place
        try:
            states = self._views.states(self._views.definition(stream).id)
        except UnknownStream:
            return NO_LEADER, False
        if not 0 <= partition < len(states):
            return NO_LEADER, False
        return states[partition].leader, self._node_id in states[partition].isr

    def _held(self, place: Place) -> Ends | None:
        stream, partition = place
        found = self._partitions.stream(stream) or ()
        return _ends(found[partition]) if 0 <= partition < len(found) else None

    async def _ask(self, node: int, places: list[Place]) -> dict[Place, Ends]:
        try:
            body = msgspec.msgpack.encode(places)
            reply = await self._peers.control(node, ENDS, body, timeout_s=ANSWER_SECONDS_MAX)
            said = msgspec.msgpack.decode(reply, type=list[tuple[Place, Ends]])
        except (BasculeError, msgspec.MsgspecError) as error:
            log.debug("ends of partitions not told", extra={"node": node, "error": str(error)})
            return {}
        return dict(said)

    async def answer(self, body: bytes) -> bytes:
        """Answer a control request: the ends of those partitions that this node leads."""
        said: list[tuple[Place, Ends]] = []
        places = msgspec.msgpack.decode(body, type=list[Place])
        for number, place in enumerate(places):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            leader, _ = self._standing(place)
            held = self._held(place)
            if leader == self._node_id and held is not None:
                said.append((place, held))
        return msgspec.msgpack.encode(said)


def _ends(partition: Partition) -> Ends | None:
    if partition.log is None:
        return None
    return Ends(partition.start_offset, partition.high_watermark.offset)
