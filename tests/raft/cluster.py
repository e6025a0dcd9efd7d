"""Nodes whose writes are done at once, driven from Python: for tests of one rule each."""

from __future__ import annotations

from collections import deque

from bascule.raft.config import RaftConfig
from bascule.raft.effects import Answer, Apply, ApplyDone, Ready, Role, Write, WriteDone
from bascule.raft.membership import Members
from bascule.raft.messages import AnyMessage, AppendReply, Entry, EntryKind, VoteReply
from bascule.raft.node import RaftNode
from bascule.raft.store import PersistentState
from raft.environment import FixedRandom

CONFIG = RaftConfig(election_ticks=10, heartbeat_ticks=2)
"""Small numbers of ticks, so that tests can count them."""
CHECKSUM = CONFIG.sent_checksum


def restored(
    *voters: int, terms: tuple[int, ...] = (), term: int = 0, voted_for: int = 0
) -> PersistentState:
    """The disk of a bootstrapped group with one empty entry of each of `terms`."""
    entries = tuple(Entry(index, of, EntryKind.NORMAL, b"") for index, of in enumerate(terms, 1))
    return PersistentState(
        initial_members=Members.of(*voters),
        term=max(term, *terms, 0),
        voted_for=voted_for,
        entries=entries,
    )


class DrivenNode:
    """One node whose writes and applies are done at once, and a record of its effects."""

    def __init__(self, node: RaftNode) -> None:
        self.node = node
        self.sent: list[AnyMessage] = []
        self.writes: list[Write] = []
        self.applied: list[Entry] = []
        self.answers: list[Answer] = []

    def drive(self) -> list[AnyMessage]:
        """Carry out all effects; returns the messages sent."""
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
            self.node.advance(WriteDone(ready.write.number))
        if ready.apply is not None:
            self.applied += ready.apply.entries
            self.node.advance(done(ready.apply))

    def step(self, *messages: AnyMessage) -> list[AnyMessage]:
        """Handle messages and carry out all effects; returns the messages sent."""
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


def done(apply: Apply) -> ApplyDone:
    return ApplyDone(apply.last, (b"state",) if apply.take_snapshot else None)


def driven(
    node_id: int,
    found: PersistentState,
    config: RaftConfig | None = None,
    random: FixedRandom | None = None,
) -> DrivenNode:
    """A node that starts from `found`, with the shortest election timeouts unless `random` is
    given."""
    return DrivenNode(RaftNode(node_id, config or RaftConfig(), found, random or FixedRandom()))


def leader_of(*voters: int, terms: tuple[int, ...] = (), config: RaftConfig = CONFIG) -> DrivenNode:
    """Node 1, elected in the term after the last of `terms` by all `voters`. Its no-op follows the
    entries of `terms`. `sent` is empty."""
    found = driven(1, restored(*voters, terms=terms), config)
    candidacy(found)
    term = found.node.term
    found.step(*(VoteReply(voter, 1, term, False, True) for voter in voters if voter != 1))
    assert found.node.role is Role.LEADER
    found.sent.clear()
    return found


def candidacy(found: DrivenNode) -> list[AnyMessage]:
    """Let the node start an election and win the pre-vote; returns its vote requests."""
    node = found.node
    if node.config.lease_reads:
        # Before its start it may have extended a lease, which must end first.
        found.tick(node.config.election_ticks)
    node.campaign()
    found.drive()
    yes = [VoteReply(v, 1, node.term + 1, True, True) for v in node.members.voters if v != 1]
    return found.step(*yes)


def follower(
    *voters: int, terms: tuple[int, ...] = (), term: int = 0, config: RaftConfig = CONFIG
) -> DrivenNode:
    return driven(1, restored(*(voters or (1, 2, 3)), terms=terms, term=term), config)


def log_terms(node: RaftNode) -> list[int]:
    return [node.log.entry(index).term for index in range(node.log.first, node.log.last + 1)]


def entries(start: int, *terms: int) -> tuple[Entry, ...]:
    return tuple(Entry(index, of, EntryKind.NORMAL, b"") for index, of in enumerate(terms, start))


def acknowledge(found: DrivenNode, *voters: int, index: int | None = None) -> list[AnyMessage]:
    node = found.node
    upto = node.log.last if index is None else index
    return found.step(*(AppendReply(v, 1, node.term, True, upto) for v in voters))


class Cluster:
    """A bootstrapped group. `settle` delivers messages, except over links that are cut."""

    def __init__(self, config: RaftConfig, *voters: int) -> None:
        members = Members(tuple(sorted(voters)))
        self.driven = {
            voter: driven(voter, PersistentState(initial_members=members), config)
            for voter in voters
        }
        self.nodes = {voter: found.node for voter, found in self.driven.items()}
        self.cuts: set[tuple[int, int]] = set()

    def cut(self, source: int, target: int) -> None:
        self.cuts |= {(source, target), (target, source)}

    def settle(self) -> None:
        """Deliver until no message is in flight."""
        network: deque[AnyMessage] = deque()
        for found in self.driven.values():
            network += found.drive()
        while network:
            message = network.popleft()
            if (message.source, message.target) not in self.cuts:
                network += self.driven[message.target].step(message)

    def elect(self, node_id: int) -> RaftNode:
        node = self.nodes[node_id]
        node.campaign()
        self.settle()
        assert node.leader == node_id
        return node
