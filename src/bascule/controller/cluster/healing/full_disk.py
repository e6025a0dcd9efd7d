"""A node whose disk is full leaves the in-sync sets in which others stay, and leads nothing there.

It can append nothing, so its partitions would take no messages: those that it leads at once, others
after `replica_lag_ms_max`. It copies again what it has missed once there is room. What it has it
keeps: where too few are left to commit anything without it, it stays eligible.

A controller whose reserve is used up as well decides nothing: no node is lost, and nobody elected.
Another voter is the controller then.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from bascule.controller.cluster.image_follower import ImageFollower
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.cluster.upkeep import hand_over
from bascule.errors import BasculeError
from bascule.model import NO_LEADER, StreamDefinition
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.partitions import Partitions

log = logging.getLogger("bascule.controller")

LOOK_SECONDS: Final = 1.0
HAND_OVER_SECONDS_MAX: Final = 30.0
"""Between two attempts to have another node be the controller; the pause doubles to this one. The
disks of all voters may be full."""
AT_A_TIME: Final = 64
"""Partitions that are left at a time: enough for them to share commits."""


class FullDisk:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataGroup,
        follower: ImageFollower,
        partitions: Partitions,
        reserve: DiskReserve,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._follower = follower
        self._partitions = partitions
        self._reserve = reserve
        self._pause_seconds = 0.0
        """After the last attempt to have another node be the controller; 0: there was room."""
        self._hand_over_at = 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._give_up_control()
            if not await asyncio.to_thread(self._reserve.is_needed):
                continue
            left = self._replaceable()
            if not left:
                continue
            # Appends are refused from now on, until there is room for the reserve again: a replica
            # that came back with the last bytes would leave again at once.
            await asyncio.to_thread(self._reserve.keep_room)
            log.warning(
                "the disk is full; others replace this node", extra={"partitions": len(left)}
            )
            for start in range(0, len(left), AT_A_TIME):
                some = left[start : start + AT_A_TIME]
                await asyncio.gather(*(self._leave(*each) for each in some))

    async def _give_up_control(self) -> None:
        """Have another voter be the controller where this one has no room for a decision."""
        if not self._metadata.is_controller:
            return
        if not await asyncio.to_thread(self._reserve.cannot_decide):
            self._pause_seconds = 0.0
            return
        now = asyncio.get_running_loop().time()
        if self._pause_seconds and now < self._hand_over_at:
            return
        self._pause_seconds = min(2 * self._pause_seconds or LOOK_SECONDS, HAND_OVER_SECONDS_MAX)
        self._hand_over_at = now + self._pause_seconds
        try:
            is_done = await hand_over(self._metadata, self._node_id)
        except BasculeError as error:
            log.debug("full disk: still the controller", extra={"error": str(error)})
            return
        if is_done:
            log.warning("the disk is full; another node is the controller")

    def _replaceable(self) -> list[tuple[StreamDefinition, int]]:
        """The partitions with a leader, this node in sync, and another one that is alive."""
        image = self._metadata.image
        alive = set(image.alive()) - {self._node_id}
        return [
            (definition, index)
            for stream_id, index, state in image.partition_states()
            if self._node_id in state.isr and not alive.isdisjoint(state.isr)
            if state.leader != NO_LEADER
            if (definition := image.stream_of(stream_id)) is not None
        ]

    async def _leave(self, definition: StreamDefinition, index: int) -> None:
        try:
            is_whole = self._is_whole(definition, index)
            await self._follower.resign(definition, index, is_whole=is_whole)
        except (BasculeError, LookupError) as error:
            log.debug("not resigned yet", extra={"error": str(error)})

    def _is_whole(self, definition: StreamDefinition, index: int) -> bool:
        """Whether the log has all that it had."""
        held = self._partitions.stream_by_id(definition.id) or ()
        found = held[index] if index < len(held) else None
        return found is not None and found.log is not None and found.failure is None
