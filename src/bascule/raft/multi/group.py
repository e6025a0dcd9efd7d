"""A group as a hub has it: its own node, and what was agreed with others."""

from __future__ import annotations

from bascule.raft.config import NEVER
from bascule.raft.multi.peer import Peer
from bascule.raft.node import Node


class Group:
    """A group's node at this hub, and what the hub has agreed on for it."""

    __slots__ = ("clock", "due_at", "led_to", "node", "number", "queued_at", "quiet_since", "under")

    def __init__(self, number: int, node: Node, now: int) -> None:
        self.number = number
        self.node = node
        self.clock = now
        """The hub's tick up to which the node's clock was moved."""
        self.due_at = NEVER
        """The tick at which the node has something to do by itself."""
        self.queued_at = NEVER
        """Its earliest place in the heap of such ticks."""
        self.led_to: tuple[Peer, ...] | None = None
        """While it rests as leader: those who were told."""
        self.under: Peer | None = None
        """While it rests as follower: who leads."""
        self.quiet_since: int | None = None

    def catch_up(self, now: int) -> None:
        if now > self.clock:
            self.node.tick(now - self.clock)
            self.clock = now
