"""Nodes on disks that are done at once, driven from Python: for tests of one rule each."""

from __future__ import annotations

from collections import deque

from bascule.raft.config import RaftConfig
from bascule.raft.effects import Answer, Applied, Apply, Ready, Write, Written
from bascule.raft.messages import AnyMessage, Entry, Kind
from bascule.raft.node import Node
from bascule.raft.quorum import Members, founded
from bascule.raft.store.contract import Restored
from raft.environment import Dice


def restored(
    *voters: int, terms: tuple[int, ...] = (), term: int = 0, voted_for: int = 0
) -> Restored:
    """A disk of a founded group with one empty entry of each of `terms`."""
    entries = tuple(Entry(index, of, Kind.NORMAL, b"") for index, of in enumerate(terms, 1))
    return Restored(
        founding=founded(*voters),
        term=max(term, *terms, 0),
        voted_for=voted_for,
        entries=entries,
    )


class Driven:
    """One node whose writes and applies are done as soon as they are asked for, and all it did."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sent: list[AnyMessage] = []
        self.writes: list[Write] = []
        self.applied: list[Entry] = []
        self.answers: list[Answer] = []

    def drive(self) -> list[AnyMessage]:
        """Do all that the node wants done; what it sent meanwhile."""
        before = len(self.sent)
        while (ready := self.node.ready()) is not None:
            self._carry_out(ready)
        return self.sent[before:]

    def _carry_out(self, ready: Ready) -> None:
        self.sent += ready.send
        self.answers += ready.answers
        if ready.write is not None:
            self.writes.append(ready.write)
            self.sent += ready.write.then_send
            self.node.advance(Written(ready.write.number))
        if ready.apply is not None:
            self.applied += ready.apply.entries
            self.node.advance(done(ready.apply))

    def step(self, *messages: AnyMessage) -> list[AnyMessage]:
        """Take messages, do what follows; what it sent."""
        before = len(self.sent)
        for message in messages:
            self.node.step(message)
            self.drive()
        return self.sent[before:]

    def tick(self, count: int = 1) -> list[AnyMessage]:
        before = len(self.sent)
        for _ in range(count):
            self.node.tick()
            self.drive()
        return self.sent[before:]


def done(apply: Apply) -> Applied:
    return Applied(apply.last, (b"state",) if apply.take_snapshot else None)


def driven(
    node_id: int, found: Restored, config: RaftConfig | None = None, dice: Dice | None = None
) -> Driven:
    """A node that starts from `found`; its election timeouts are the shortest unless `dice`."""
    return Driven(Node(node_id, config or RaftConfig(), found, dice or Dice()))


class Cluster:
    """A founded group. Messages arrive when `settle` is called, unless their way is cut."""

    def __init__(self, config: RaftConfig, *voters: int) -> None:
        members = Members(tuple(sorted(voters)))
        self.driven = {voter: driven(voter, Restored(founding=members), config) for voter in voters}
        self.nodes = {voter: found.node for voter, found in self.driven.items()}
        self.cuts: set[tuple[int, int]] = set()

    def cut(self, source: int, target: int) -> None:
        self.cuts |= {(source, target), (target, source)}

    def settle(self) -> None:
        """Deliver until nothing is under way."""
        network: deque[AnyMessage] = deque()
        for found in self.driven.values():
            network += found.drive()
        while network:
            message = network.popleft()
            if (message.source, message.target) not in self.cuts:
                network += self.driven[message.target].step(message)

    def elect(self, node_id: int) -> Node:
        node = self.nodes[node_id]
        node.campaign()
        self.settle()
        assert node.leader == node_id
        return node
