"""What a node does as the controller, and what it owes the controller: its session.

The controller pings every node, and gives the partitions of one that it has lost to others. A node
that no controller reaches leads nothing. One that was lost although it goes on registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.controller.cluster.nats_lack import NatsWatch
from bascule.controller.cluster.sessions import (
    FOUND_RESTARTED,
    LAPSE_SECONDS,
    LAPSED,
    PING_SECONDS,
    Pong,
    ProcessLoss,
    Sessions,
)
from bascule.controller.plan import NodeState
from bascule.errors import BasculeError, Broken, Indeterminate
from bascule.host.api import Clock
from bascule.metadata.image import Image
from bascule.metadata.requests import LoseNode, RegisterProcess
from bascule.model import NodeRegistration

log = logging.getLogger("bascule.controller")

RETRY_SECONDS: Final = 0.05
"""Before what has failed is tried again: to take up the duties, or to register."""
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
        clock: Clock,
    ) -> None:
        """`on_changed` is called when `state` says that the node is suspended, or no longer."""
        self._node_id = node_id
        self._metadata = metadata
        self._state = state
        self._on_changed = on_changed
        self._clock = clock
        self._is_due = asyncio.Event()
        """Whether the role, the term or the nodes have changed since `run` looked last."""
        metadata.on_role_changed = self._is_due.set
        self._nodes: Mapping[int, NodeRegistration] | None = None
        self._registration: NodeRegistration | None = None
        self._sessions = Sessions(
            node_id, peers, process_loss=process_loss, on_lost=self._on_node_lost, clock=clock
        )
        self._process_loss = process_loss
        self._controller_before = 0
        """The last other node that was the controller, as far as this node knows; 0: none."""
        self._term = 0
        """The term in which this node has taken up the duties of the controller; 0: none."""
        self._is_controller = False
        """Whether this node was the controller when `run` looked last."""
        self._registered_term = 0
        """The term in which this process has registered again last."""
        self.nats = NatsWatch(clock)
        """Whether this node lacks NATS."""
        self._pinged = 0.0
        """When a controller has pinged last, or this node was elected; on the loop's clock."""
        self.is_cut_off = False
        """Whether no controller has reached this node for `LAPSE_SECONDS`, or as the controller it
        has not heard a majority for so long. Others may do what it does, then."""
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

    async def register(
        self, registration: NodeRegistration, *, has_lost_writes: bool = False
    ) -> None:
        """Register this process, or its other addresses, however long there is no controller.

        `has_lost_writes`: its machine went down before the node had stopped.

        Raises: as `MetadataGroup.submit`, but not Indeterminate.
        """
        self._registration = registration
        self._pinged = asyncio.get_running_loop().time()
        while True:
            try:
                await self._metadata.submit(RegisterProcess(registration, has_lost_writes))
                return
            except Indeterminate as error:
                log.warning("waiting for a controller", extra={"error": str(error)})

    def on_image(self, image: Image) -> None:
        """The group has agreed on a new image."""
        if image.nodes is self._nodes:
            return
        self._nodes = image.nodes
        self._is_due.set()
        if self._term:
            self._sessions.follow(image)

    def on_process_lost(self) -> None:
        """Heartbeats say that a process is gone or silent: look now, as the controller."""
        self._sessions.look()

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
            now_ms=self._clock.now_ms(),
            lacks_nats_ms=self.nats.lacks_ms(),
        )
        return msgspec.msgpack.encode(pong)

    def nats_lacks(self) -> dict[int, tuple[int, int]]:
        """As `Sessions.nats_lacks`, with this node."""
        return self._sessions.nats_lacks() | {
            self._node_id: (self.node_epoch, self.nats.lacks_ms())
        }

    async def run(self) -> None:
        """Take up the duties of the controller, and lay them down again. Run until cancelled."""
        while True:
            self._is_due.clear()
            metadata = self._metadata
            is_done = True
            if not metadata.is_controller:
                self._lay_down()
                self._controller_before = metadata.controller_id or self._controller_before
            else:
                if not self._is_controller:
                    self._is_controller = True
                    self._pinged = asyncio.get_running_loop().time()
                if self._term != metadata.term:
                    is_done = await self._take_up(metadata)
            self._check_lapse(metadata)
            is_done = await self._register_again() and is_done
            pause = self._until_lapse(metadata) if is_done else RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._is_due.wait()

    def _lay_down(self) -> None:
        """Be the controller no longer. This node was reached by a controller, itself, while it
        heard a majority."""
        if self._is_controller:
            self._is_controller = False
            heard = self._sessions.heard_at(self._metadata.members.voters)
            self._pinged = max(self._pinged, min(heard, asyncio.get_running_loop().time()))
        if self._term:
            self._term = 0
            self._sessions.close()

    def _reached_at(self, metadata: MetadataGroup) -> float:
        """When a controller has reached this node last, or it has heard a majority as the
        controller."""
        if not metadata.is_controller:
            return self._pinged
        return max(self._pinged, self._sessions.heard_at(metadata.members.voters))

    def _until_lapse(self, metadata: MetadataGroup) -> float | None:
        """In how many seconds this node is cut off, unless it is reached; None: it leads nothing,
        or is alone."""
        if self._state.is_suspended or self.node_epoch < 0:
            return None
        left = self._reached_at(metadata) + LAPSE_SECONDS - asyncio.get_running_loop().time()
        if left == inf:
            return None
        return PING_SECONDS if self.is_cut_off else max(left, 0) + RETRY_SECONDS

    def _check_lapse(self, metadata: MetadataGroup) -> None:
        """Lead nothing while no controller reaches this node, until it is elected again. As the
        controller it leads until it is deposed."""
        silence = asyncio.get_running_loop().time() - self._reached_at(metadata)
        self.is_cut_off = silence > LAPSE_SECONDS
        is_reached = metadata.is_controller or not self.is_cut_off
        state, epoch = self._state, self.node_epoch
        if not state.is_suspended and epoch >= 0 and not is_reached:
            log.warning("no controller; this node leads nothing", extra={"seconds": LAPSE_SECONDS})
            self._lapsed_epoch, state.is_suspended = epoch, True
            self._on_changed()
        elif state.is_suspended and epoch > self._lapsed_epoch:
            log.info("a controller reaches this node again")
            state.is_suspended = False
            self._on_changed()

    async def _take_up(self, metadata: MetadataGroup) -> bool:
        """Be the controller; whether there is nothing to repeat."""
        term = metadata.term
        mine = metadata.image.nodes.get(self._node_id)
        try:
            await metadata.settle()
            if mine is not None and mine.alive and self._lapsed_epoch == mine.epoch:
                # No session with another node reports it: it registers again afterwards.
                await self._on_node_lost(mine, LAPSED)
        except BasculeError as error:
            log.debug("not the controller yet", extra={"error": str(error)})
            return False
        self._term = term
        self._sessions.close()
        self._sessions.follow(metadata.image)
        extra = {"term": term, "reason": self._why_controller(metadata.image)}
        log.info("this node is the controller", extra=extra)
        return True

    def _why_controller(self, image: Image) -> str:
        """Why another node is the controller no longer."""
        before = image.nodes.get(self._controller_before)
        if before is None:
            return "no other node was"
        lost = self._process_loss(before.node_id, before.incarnation)
        if before.is_stopping:
            why = "it stops, and has handed over"
        elif lost:
            why = lost
        elif before.is_leaving:
            why = "it is to be removed, and has handed over"
        elif before.is_drained:
            why = "it is drained, and has handed over"
        else:
            why = "it was not heard of, or has stopped"
        return f"node {before.node_id} was: {why}"

    async def _register_again(self) -> bool:
        """Register where the controller had lost this process, which goes on, or did not know its
        cluster versions; whether there is nothing to repeat."""
        mine = self._registration
        found = self._metadata.image.nodes.get(self._node_id)
        if mine is None or found is None or found.incarnation != mine.incarnation:
            return True
        if found.alive and not self._lacks_versions(found, mine):
            return True
        term = self._metadata.term
        try:
            await self._metadata.submit(RegisterProcess(mine))
        except BasculeError as error:
            log.debug("not registered again yet", extra={"error": str(error)})
            return False
        self._registered_term = term
        return True

    def _lacks_versions(self, found: NodeRegistration, mine: NodeRegistration) -> bool:
        """Whether a controller of a release before there were cluster versions has registered this
        process, without those that it supports, and another one is the controller now."""
        metadata = self._metadata
        if found.cluster_version_max == mine.cluster_version_max:
            return False
        controller = metadata.image.nodes.get(metadata.controller_id)
        knows = controller is not None and controller.cluster_version_max > 1
        is_tried = self._registered_term == metadata.term
        return (metadata.is_controller or knows) and not is_tried

    async def _on_node_lost(self, node: NodeRegistration, reason: str) -> None:
        if reason == FOUND_RESTARTED:
            log.info("node was started again", extra={"node": node.node_id})
        else:
            log.warning("node lost", extra={"node": node.node_id, "reason": reason})
        await self._metadata.submit(LoseNode(node.node_id, node.epoch))
