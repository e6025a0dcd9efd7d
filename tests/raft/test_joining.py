"""A node that joins late, one that is removed, and rings that are full."""

from __future__ import annotations

from collections import deque

from bascule.errors import CannotReplicate
from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.effects import ApplyDone, Role, WriteDone
from bascule.raft.membership import MemberChange, Members
from bascule.raft.messages import (
    AnyMessage,
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    RaftSnapshot,
    VoteRequest,
)
from bascule.raft.node import RaftNode
from bascule.raft.store import PersistentState, persist_write
from bascule.raft.testing.memory_store import MemoryStore
from raft.cluster import driven

BOUNDARY = 100
CONFIG = RaftConfig(
    commit_count_to_take_snapshot=BOUNDARY, pending_entries_max=50, append_entries_max=10
)
"""The proportions of the default settings: the committed section is larger than the others."""


class Group:
    """Nodes on stores in memory; node 1's snapshots take until `finish_snapshots`."""

    def __init__(self, config: RaftConfig, initial: dict[int, Members]) -> None:
        self.config = config
        self.stores: dict[int, MemoryStore] = {}
        self.nodes: dict[int, RaftNode] = {}
        self.network: deque[AnyMessage] = deque()
        self.cut: set[int] = set()
        self.draining: list[ApplyDone] = []
        for node, members in initial.items():
            store = self.stores[node] = MemoryStore()
            store.load()
            store.bootstrap(members)
        self.restart()

    def restart(self) -> None:
        self.network.clear()
        self.draining.clear()
        for number, store in self.stores.items():
            self.nodes[number] = RaftNode(number, self.config, store.load(), RealRandom(number))

    def carry_out(self, number: int) -> None:
        node, store = self.nodes[number], self.stores[number]
        while (ready := node.ready()) is not None:
            self.network.extend(ready.send)
            if (write := ready.write) is not None:
                persist_write(store, write)
                store.flush()
                self.network.extend(write.then_send)
                node.advance(WriteDone(write.number))
            if (apply := ready.apply) is not None:
                done = ApplyDone(apply.last, (b"s",) if apply.take_snapshot else None)
                if apply.take_snapshot and number == 1:
                    self.draining.append(done)
                else:
                    node.advance(done)

    def finish_snapshots(self) -> None:
        while self.draining:
            self.nodes[1].advance(self.draining.pop(0))
            self.carry_out(1)
        self.deliver()

    def deliver(self) -> None:
        while self.network:
            message = self.network.popleft()
            if not {message.source, message.target} & self.cut:
                self.nodes[message.target].step(message)
                self.carry_out(message.target)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            for number, node in self.nodes.items():
                node.tick()
                self.carry_out(number)
            self.deliver()

    def change(self, change: MemberChange, node: int) -> None:
        self.nodes[1].change_members(change, node)
        self.carry_out(1)
        self.deliver()
        self.tick(3)

    def propose(self, count: int) -> int:
        """Propose on the leader, with time for catching up after each refusal; returns how many
        were accepted in so many attempts."""
        leader = next(node for node in self.nodes.values() if node.role is Role.LEADER)
        accepted = 0
        for _ in range(count):
            try:
                leader.propose(b"y")
                accepted += 1
            except CannotReplicate:
                self.tick()
            self.carry_out(leader.id)
            self.deliver()
            self.finish_snapshots()
        return accepted


def test_a_node_may_join_before_the_first_snapshot_is_on_disk() -> None:
    """The joiner gets the log from entry 1 on, beyond the boundary, and needs a snapshot there."""
    group = Group(CONFIG, {1: Members.of(1), 2: Members(())})
    group.tick(25)
    leader, joiner = group.nodes[1], group.nodes[2]
    while leader.log.last < BOUNDARY + 5:
        leader.propose(b"x")
        group.carry_out(1)
    assert group.draining, "the snapshot at the boundary takes a while"
    group.change(MemberChange.ADD_LEARNER, 2)
    assert joiner.log.snapshot_index == BOUNDARY
    group.finish_snapshots()
    group.change(MemberChange.ADD_VOTER, 2)
    assert leader.members.voters == (1, 2)
    assert group.propose(6 * BOUNDARY) > 5 * BOUNDARY, "the group does not stop"
    group.restart()
    group.tick(40)
    assert group.propose(2 * BOUNDARY) > BOUNDARY
    assert {node.commit for node in group.nodes.values()} == {group.nodes[1].log.last}


def test_the_first_entry_of_a_log_has_the_initial_members() -> None:
    group = Group(CONFIG, {1: Members.of(1)})
    group.tick(25)
    entry = group.nodes[1].log.entry(1)
    assert entry.kind == EntryKind.MEMBERS
    assert group.nodes[1].members == Members((1,), (), 1)
    group.restart()
    group.tick(25)
    assert group.nodes[1].log.entry(2).kind == EntryKind.NO_OP


def votes_requested(group: Group, ticks: int, node: int) -> int:
    """Requests of `node` for votes within `ticks`."""
    found = 0
    for _ in range(ticks):
        group.nodes[node].tick()
        group.carry_out(node)
        found += sum(isinstance(message, VoteRequest) for message in group.network)
        group.tick()
    return found


def test_a_removed_follower_hears_of_its_removal() -> None:
    members = Members.of(1, 2, 3)
    group = Group(CONFIG, {1: members, 2: members, 3: members})
    group.nodes[1].campaign()
    group.carry_out(1)
    group.deliver()
    group.change(MemberChange.REMOVE, 3)
    assert group.nodes[3].state.is_removed
    assert group.nodes[3].members.voters == (1, 2)
    assert not votes_requested(group, 60, 3)
    assert [found.node for found in group.nodes[1].report().followers] == [2]


def test_a_removed_follower_that_was_cut_off_asks_for_votes_once() -> None:
    members = Members.of(1, 2, 3)
    group = Group(CONFIG, {1: members, 2: members, 3: members})
    group.nodes[1].campaign()
    group.carry_out(1)
    group.deliver()
    group.cut.add(3)
    group.change(MemberChange.REMOVE, 3)
    group.tick(60)
    assert [found.node for found in group.nodes[1].report().followers] == [2], "it gave up"
    assert not group.nodes[3].state.is_removed
    group.cut.clear()
    group.tick(30)
    assert group.nodes[3].state.is_removed
    assert not votes_requested(group, 60, 3)
    assert group.nodes[1].role is Role.LEADER
    # Added again, it is a member as before.
    group.change(MemberChange.ADD_LEARNER, 3)
    group.change(MemberChange.ADD_VOTER, 3)
    assert not group.nodes[3].state.is_removed
    assert group.nodes[3].commit == group.nodes[1].commit


def test_a_member_that_is_added_again_may_have_an_empty_disk() -> None:
    """Its leader still knows how far the old one was, until that has heard of its removal."""
    members = Members.of(1, 2, 3)
    group = Group(CONFIG, {1: members, 2: members, 3: members})
    group.nodes[1].campaign()
    group.carry_out(1)
    group.deliver()
    assert group.propose(5) == 5
    group.cut.add(3)
    group.change(MemberChange.REMOVE, 3)
    store = group.stores[3] = MemoryStore()
    store.load()
    store.bootstrap(Members(()))
    group.nodes[3] = RaftNode(3, CONFIG, store.load(), RealRandom(3))
    group.cut.clear()
    group.change(MemberChange.ADD_LEARNER, 3)
    group.tick(20)
    assert group.nodes[3].log.last == group.nodes[1].log.last
    group.change(MemberChange.ADD_VOTER, 3)
    assert group.nodes[3].commit == group.nodes[1].commit


def test_an_empty_disk_elects_nobody_who_missed_its_admission() -> None:
    """Two of five come back empty; a third one, cut off for long, still takes them for voters."""
    members = Members.of(1, 2, 3, 4, 5)
    group = Group(CONFIG, dict.fromkeys(members.voters, members))
    group.nodes[1].campaign()
    group.carry_out(1)
    group.deliver()
    group.cut.add(5)
    for lost in (3, 4):
        group.cut.add(lost)
        group.change(MemberChange.REMOVE, lost)
    removed_at = group.nodes[1].commit
    for votes_from, elects in ((0, True), (removed_at, False)):
        for lost in (3, 4):
            store = group.stores[lost] = MemoryStore()
            store.load()
            store.bootstrap(Members(()))
            group.nodes[lost] = RaftNode(
                lost, CONFIG, store.load(), RealRandom(lost), votes_from=votes_from
            )
        group.network.clear()
        group.nodes[5] = RaftNode(5, CONFIG, group.stores[5].load(), RealRandom(5))
        group.cut = {1, 2}
        group.nodes[5].campaign()
        group.carry_out(5)
        group.deliver()
        assert (group.nodes[5].role is Role.LEADER) is elects


def test_a_follower_gives_up_entries_that_its_snapshot_covers_for_later_ones() -> None:
    """All members restarted while a snapshot was being made, so none knows the commit index. The
    leader's ring begins at its snapshot, the follower's before it; both are full."""
    config = RaftConfig(
        commit_count_to_take_snapshot=4, pending_entries_max=1, snapshot_keep_ratio=0.5
    )
    assert config.log_capacity == 7
    entries = tuple(Entry(index, 1, EntryKind.NORMAL, b"") for index in range(7, 14))
    snapshot = RaftSnapshot(8, 1, Members.of(1, 2), (b"state",))
    found = driven(
        2,
        PersistentState(
            initial_members=Members.of(1, 2), term=2, snapshot=snapshot, entries=entries
        ),
        config,
    )
    assert (found.node.log.first, found.node.log.room) == (7, 0)
    rest = (
        Entry(14, 1, EntryKind.NORMAL, b""),
        Entry(15, 1, EntryKind.NORMAL, b""),
        Entry(16, 2, EntryKind.NO_OP, b""),
    )
    (reply,) = found.step(AppendRequest(1, 2, 2, 13, 1, 8, rest))
    assert reply == AppendReply(2, 1, 2, True, 16)
    assert (found.node.log.first, found.node.log.last) == (9, 16)
    assert [write.truncate_until for write in found.writes] == [8]
