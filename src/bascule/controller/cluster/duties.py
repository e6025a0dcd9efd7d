"""What a node does as the controller, and what it owes the controller: its session.

The controller pings every node, and gives the partitions of one that it has lost to others. A node
that no controller reaches leads nothing. One that was lost although it goes on registers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.controller.cluster.sessions import LAPSE_SECONDS, Pong, ProcessLoss, Sessions
from bascule.controller.plan import NodeState
from bascule.errors import BasculeError, Broken
from bascule.metadata.image import Image
from bascule.metadata.requests import LoseNode, RegisterProcess
from bascule.model import NodeRegistration

log = logging.getLogger("bascule.controller")

DUTY_SECONDS: Final = 0.05
"""How often a node looks whether it has become the controller."""
NO_EPOCH: Final = -2


class ControllerDuties:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataGroup,
        peers: Peers,
        state: NodeState,
        *,
        process_loss: ProcessLoss,
        on_changed: Callable[[], None],
    ) -> None:
        """`on_changed` is called when `state` says that the node is suspended, or no longer."""
        self._node_id = node_id
        self._metadata = metadata
        self._state = state
        self._on_changed = on_changed
        self._registration: NodeRegistration | None = None
        self._sessions = Sessions(
            node_id, peers, process_loss=process_loss, on_lost=self._on_node_lost
        )
        self._term = 0
        """The term in which this node has taken up the duties of the controller; 0: none."""
        self._pinged = 0.0
        """When the last ping of a controller came, on the loop's clock."""
        self._lapsed_epoch = NO_EPOCH
        """The epoch of this node in which it has stopped leading."""

    @property
    def node_epoch(self) -> int:
        """The epoch of this process; -1 before it has registered."""
        found = self._metadata.image.nodes.get(self._node_id)
        mine = self._registration
        if found is None or mine is None or found.incarnation != mine.incarnation:
            return -1
        return found.epoch

    async def register(self, registration: NodeRegistration) -> None:
        """Register this process, or its other addresses. Raises: as `MetadataGroup.submit`."""
        self._registration = registration
        self._pinged = asyncio.get_running_loop().time()
        await self._metadata.submit(RegisterProcess(registration))

    def on_image(self, image: Image) -> None:
        """The group has agreed on a new image."""
        if self._term:
            self._sessions.follow(image)

    def close(self) -> None:
        """End the sessions with other nodes."""
        self._sessions.close()

    async def answer_ping(self, body: bytes) -> bytes:
        """Answer a ping of the controller. Raises: Broken before this process registers."""
        if self._registration is None:
            raise Broken(f"node {self._node_id} has not registered yet")
        self._pinged = asyncio.get_running_loop().time()
        pong = Pong(
            incarnation=self._registration.incarnation,
            applied=self._metadata.applied,
            has_lapsed=self._lapsed_epoch == self.node_epoch,
        )
        return msgspec.msgpack.encode(pong)

    async def run(self) -> None:
        """Take up the duties of the controller, and lay them down again. Run until cancelled."""
        while True:
            await asyncio.sleep(DUTY_SECONDS)
            metadata = self._metadata
            if not metadata.is_controller:
                if self._term:
                    self._term = 0
                    self._sessions.close()
            elif self._term != metadata.term:
                await self._take_up(metadata)
            self._check_lapse(metadata)
            await self._register_again()

    def _check_lapse(self, metadata: MetadataGroup) -> None:
        """Lead nothing while no controller reaches this node, until it is elected again."""
        now = asyncio.get_running_loop().time()
        if metadata.is_controller:
            self._pinged = now
        state, epoch = self._state, self.node_epoch
        if not state.is_suspended and epoch >= 0 and now - self._pinged > LAPSE_SECONDS:
            log.warning("no controller; this node leads nothing", extra={"seconds": LAPSE_SECONDS})
            self._lapsed_epoch, state.is_suspended = epoch, True
            self._on_changed()
        elif state.is_suspended and epoch > self._lapsed_epoch:
            log.info("a controller reaches this node again")
            state.is_suspended = False
            self._on_changed()

    async def _take_up(self, metadata: MetadataGroup) -> None:
        term = metadata.term
        try:
            await metadata.settle()
        except BasculeError as error:
            log.debug("not the controller yet", extra={"error": str(error)})
            return
        self._term = term
        self._sessions.close()
        self._sessions.follow(metadata.image)
        log.info("this node is the controller", extra={"term": term})

    async def _register_again(self) -> None:
        """Register where the controller had lost this process, which goes on."""
        mine = self._registration
        found = self._metadata.image.nodes.get(self._node_id)
        if mine is None or found is None or found.alive or found.incarnation != mine.incarnation:
            return
        try:
            await self._metadata.submit(RegisterProcess(mine))
        except BasculeError as error:
            log.debug("not registered again yet", extra={"error": str(error)})

    async def _on_node_lost(self, node: NodeRegistration, reason: str) -> None:
        log.warning("node lost", extra={"node": node.node_id, "reason": reason})
        await self._metadata.submit(LoseNode(node.node_id, node.epoch))
