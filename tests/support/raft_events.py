"""Events of a group of three, made by tests and passed to all checkers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from bascule.raft.config import RaftConfig
from bascule.raft.effects import Answer, Ready, RequestOutcome, Role, Write
from bascule.raft.log import RaftLog
from bascule.raft.membership import Members, decode_members
from bascule.raft.messages import AnyMessage, Entry, EntryKind, RaftSnapshot, VoteReply
from bascule.raft.store import PersistentState
from bascule.sim.checkers import Checkers, InvariantBroken, standard_checkers

THREE = Members.of(1, 2, 3)
CONFIG = RaftConfig(
    commit_count_to_take_snapshot=10, pending_entries_max=4, pending_bytes_max=200, reads_max=3,
    append_entries_max=2, append_bytes_max=100, apply_entries_max=3,
)  # fmt: skip


@dataclass
class FakeNode:
    """The state of a node as checkers see it, set by tests."""

    id: int
    config: RaftConfig = CONFIG
    term: int = 0
    voted_for: int = 0
    role: Role = Role.FOLLOWER
    commit: int = 0
    applied: int = 0
    synced: int = 0
    members: Members = THREE
    log: RaftLog = field(default_factory=lambda: RaftLog(CONFIG.log_capacity))
    reads_waiting: int = 0
    proposals_waiting: int = 0
    followers: tuple[SimpleNamespace, ...] = ()

    def report(self) -> SimpleNamespace:
        return SimpleNamespace(
            reads_waiting=self.reads_waiting,
            proposals_waiting=self.proposals_waiting,
            followers=self.followers,
        )


def entry(
    index: int, term: int, payload: bytes | None = None, kind: EntryKind = EntryKind.NORMAL
) -> Entry:
    return Entry(index, term, kind, b"%d/%d" % (index, term) if payload is None else payload)


class Scene:
    """Three nodes, and methods that pass their events to all checkers."""

    def __init__(self, *ids: int) -> None:
        self.standard = standard_checkers()
        self.checkers = Checkers(self.standard)
        self.nodes: dict[int, FakeNode] = {}
        self.numbers: dict[int, int] = {}
        for node_id in ids or (1, 2, 3):
            self.start(node_id)

    def start(
        self,
        node_id: int,
        *entries: Entry,
        term: int = 0,
        vote: int = 0,
        snapshot: RaftSnapshot | None = None,
        members: Members = THREE,
    ) -> FakeNode:
        restored = PersistentState(
            initial_members=THREE, term=term, voted_for=vote, entries=entries, snapshot=snapshot
        )
        log = RaftLog(CONFIG.log_capacity, snapshot, entries)
        node = FakeNode(
            node_id, term=term, voted_for=vote, log=log, members=members, commit=log.commit
        )
        self.nodes[node_id] = node
        self.checkers.on_start(node, restored)
        return node

    def crash(self, node_id: int) -> None:
        self.checkers.on_crash(node_id)

    def write(self, node_id: int, *entries: Entry, disk: bool = True, **fields: object) -> Write:
        """The node requests a write with `fields`. It is done at once unless `disk` is false."""
        node = self.nodes[node_id]
        self.numbers[node_id] = number = self.numbers.get(node_id, 0) + 1
        write = Write(number=number, entries=entries, sync=True, **fields)  # type: ignore[arg-type]
        if write.vote is not None:
            node.term, node.voted_for = write.vote
        if write.truncate_from:
            node.log.truncate_from(write.truncate_from)
        for new in entries:
            node.log.append(new)
        self.checkers.on_ready(node, Ready(write=write))
        if disk:
            self.checkers.on_written(node_id, write)
        return write

    def lead(self, node_id: int, term: int) -> None:
        """The node wins a pre-vote, votes for itself and leads `term`."""
        node = self.nodes[node_id]
        node.role = Role.FOLLOWER
        other = next(iter(self.nodes.keys() - {node_id}))
        self.checkers.on_step(node, VoteReply(other, node_id, term, True, True))
        self.write(node_id, vote=(term, node_id))
        node.role = Role.LEADER
        self.checkers.observe(node)

    def commit(self, node_id: int, index: int) -> None:
        node = self.nodes[node_id]
        node.log.commit_to(index)
        node.commit = index
        self.checkers.observe(node)

    def send(self, message: AnyMessage) -> None:
        self.checkers.on_send(message.source, message)

    def answer(self, node_id: int, ticket: int, outcome: RequestOutcome, index: int = 0) -> None:
        answers = (Answer(ticket, outcome, index),)
        self.checkers.on_ready(self.nodes[node_id], Ready(answers=answers))

    def replicated(self, *entries: Entry) -> None:
        """Node 1 leads term 1. One after the other, the entries are written to all disks and
        committed."""
        self.lead(1, 1)
        for new in entries:
            for node_id, node in self.nodes.items():
                node.term = 1
                self.checkers.observe(node)
                if new.kind == EntryKind.MEMBERS:
                    node.members = decode_members(new.payload)
                self.write(node_id, new)
            for node_id in self.nodes:
                self.commit(node_id, new.index)


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Expect that the block breaks the invariant `name`."""
    with pytest.raises(InvariantBroken) as found:
        yield
    assert found.value.name == name, found.value
