"""Directed scenes: a simulated group with all checkers, and faults from the test alone."""

from __future__ import annotations

import dataclasses
import errno

import pytest

from bascule.errors import CannotReplicate, NotLeader
from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Answer, ReadPolicy, RequestOutcome, Role
from bascule.raft.membership import MemberChange, Members
from bascule.raft.node import RaftNode
from bascule.sim.checkers import standard_checkers
from bascule.sim.checkers.base import Checkers
from bascule.sim.loop import MILLISECOND
from bascule.sim.network import NetworkConditions
from bascule.sim.prng import Prng
from bascule.sim.raft.cluster import Cluster
from bascule.sim.raft.disk_queue import DiskLatency
from bascule.sim.raft.environment import Environment
from bascule.sim.raft.member import SimMember
from bascule.sim.raft.plan import draw_plan
from bascule.sim.raft.state import PUT, CommandResult, KeyValueCommand, encode_command

TICK = 50 * MILLISECOND
CONFIG = RaftConfig(
    election_ticks=10, heartbeat_ticks=2, commit_count_to_take_snapshot=20, pending_entries_max=50
)
ELECTION = TICK * CONFIG.election_ticks


class Scene:
    """A simulated group, and methods to control it."""

    def __init__(self, nodes: int = 3) -> None:
        prng = Prng(RealRandom(1))
        drawn = dataclasses.replace(
            draw_plan(1, prng, nodes=nodes),
            config=CONFIG, tick=TICK, network=NetworkConditions(),
            calm=NetworkConditions(), busy_max=0,
            apply_max=0, faults={}, drift=0.0, chunk_bytes=40, disk=DiskLatency(),
            fault_lasts=4 * ELECTION,
        )  # fmt: skip
        self._checkers = Checkers(standard_checkers())
        self.cluster = Cluster(Environment(drawn, prng, self._checkers))
        self.answers: dict[int, Answer] = {}
        self._number = 0
        self.cluster.start()
        self.run(3)

    def run(self, elections: float) -> None:
        """Run for this many election timeouts."""
        loop = self.cluster.loop
        loop.run(loop.now + int(elections * ELECTION))

    @property
    def leader(self) -> SimMember:
        found = self.cluster.leader()
        assert found is not None, "nobody leads"
        return found

    def follower(self) -> SimMember:
        return next(member for member in self.cluster.up() if member is not self.leader)

    def node(self, member: SimMember) -> RaftNode:
        assert member.node is not None
        return member.node

    def propose(self, member: SimMember, deadline: int | None = None) -> int:
        """Propose; returns the number of the request."""
        self._number += 1
        number = self._number
        payload = encode_command(KeyValueCommand(number, PUT, f"k{number % 5}", b"%d" % number))
        member.propose(payload, deadline, self._on_answer, number)
        return number

    def read(self, member: SimMember, policy: ReadPolicy, min_index: int = 0) -> int:
        self._number += 1
        member.read(policy, min_index, None, self._on_answer, self._number)
        return self._number

    def change(self, change: MemberChange, target: int) -> int:
        self._number += 1
        self.leader.change_members(change, target, None, None, self._on_answer, self._number)
        return self._number

    def _on_answer(
        self, member: SimMember, answer: Answer, effect: CommandResult | None, number: int
    ) -> None:
        assert number not in self.answers
        self.answers[number] = answer

    def outcome(self, number: int) -> RequestOutcome | None:
        return self.answers[number].outcome if number in self.answers else None

    def commit(self, count: int = 1) -> None:
        """Make this many proposals at the leader, and wait until each is committed."""
        for _ in range(count):
            number = self.propose(self.leader)
            self.run(0.1)
            assert self.outcome(number) is RequestOutcome.COMMITTED

    def isolate(self, *members: SimMember, inward: bool = True, outward: bool = True) -> None:
        inside = {member.id for member in members}
        rest = [number for number in self.cluster.members if number not in inside]
        links = []
        for number in inside:
            links += [(other, number) for other in rest if inward]
            links += [(number, other) for other in rest if outward]
        self.cluster.network.cut(links)

    def end(self) -> None:
        """End all faults, start all members, and check that they agree."""
        self.cluster.network.restore_all()
        for member in self.cluster.members.values():
            if self.cluster.may_start(member):
                member.start()
        self.run(10)
        self.commit()
        self.run(2)
        leader = self.leader
        for number in self.node(leader).members.all:
            member = self.cluster.members[number]
            if not member.wrecked:
                assert member.state.values == leader.state.values, number
                assert self.node(member).commit == self.node(leader).commit
        self._checkers.at_end(self.cluster.nodes())


def test_another_node_leads_after_the_leader_stopped() -> None:
    scene = Scene()
    scene.commit(3)
    first = scene.leader
    scene.cluster.crash(first)
    scene.run(3)
    assert scene.leader is not first
    scene.commit(3)
    scene.end()


def test_a_leader_that_receives_nothing_steps_down() -> None:
    """Its followers receive its messages and stay. Only its own quorum check ends its term."""
    scene = Scene()
    first = scene.leader
    scene.isolate(first, outward=False)
    scene.run(1.5)
    assert scene.node(first).role is not Role.LEADER
    scene.run(3)
    assert scene.leader is not first
    scene.end()


def test_an_isolated_member_does_not_disrupt_the_group() -> None:
    """With pre-votes the term of the isolated member does not rise, and the leader stays when it
    returns."""
    scene = Scene()
    first, other = scene.leader, scene.follower()
    term = scene.node(first).term
    scene.isolate(other)
    scene.run(20)
    scene.cluster.network.restore_all()
    scene.run(5)
    assert scene.leader is first
    assert scene.node(first).term == term
    scene.end()


def test_a_minority_commits_nothing_and_answers_so() -> None:
    scene = Scene(5)
    scene.commit(2)
    first = scene.leader
    scene.isolate(first, scene.follower())
    lost = scene.propose(first)
    doubtful = scene.propose(first, deadline=CONFIG.election_ticks // 2)
    scene.run(4)
    assert scene.outcome(lost) is None
    assert scene.outcome(doubtful) is RequestOutcome.INDETERMINATE
    assert scene.leader is not first
    scene.commit(2)
    scene.end()
    assert scene.outcome(lost) is RequestOutcome.NOT_LEADER


def test_a_paused_leader_that_was_deposed_answers_no_read() -> None:
    scene = Scene()
    first = scene.leader
    first.pause()
    scene.run(4)
    second = scene.leader
    assert second is not first
    scene.commit()
    scene.isolate(first)
    first.resume(clock_first=False)
    with pytest.raises(NotLeader):
        scene.read(first, ReadPolicy.LINEARIZABLE)
    scene.end()


def test_a_leader_that_lost_its_quorum_answers_no_read() -> None:
    scene = Scene()
    first = scene.leader
    scene.isolate(first)
    read = scene.read(first, ReadPolicy.LINEARIZABLE)
    scene.run(0.5)
    assert scene.outcome(read) is None
    scene.run(3)
    assert scene.outcome(read) is RequestOutcome.NOT_LEADER
    scene.end()


def test_acknowledged_writes_survive_a_crash_of_all_members() -> None:
    scene = Scene(5)
    scene.commit(30)
    held = dict(scene.leader.state.values)
    for member in scene.cluster.members.values():
        scene.cluster.crash(member, down=ELECTION)
    scene.run(6)
    read = scene.read(scene.leader, ReadPolicy.LINEARIZABLE)
    scene.run(1)
    assert scene.outcome(read) is RequestOutcome.READABLE
    assert scene.leader.state.values == held
    scene.end()


def test_a_full_disk_stops_only_its_node() -> None:
    scene = Scene()
    other = scene.follower()
    other.store.fail_in(1, errno.ENOSPC)
    scene.commit(5)
    assert (other.life, scene.cluster.crashes) == (1, 1)
    scene.end()
    assert other.node is not None


def test_a_member_that_lags_too_far_fetches_a_snapshot() -> None:
    scene = Scene()
    other = scene.follower()
    scene.cluster.crash(other)
    scene.commit(3 * CONFIG.commit_count_to_take_snapshot)
    other.start()
    scene.run(3)
    report = scene.node(other).report()
    assert report.snapshots_installed == 1
    assert report.applied == scene.node(scene.leader).commit
    scene.end()


def test_members_with_destroyed_disks_are_replaced() -> None:
    """At most a minority at a time; in the end none of the initial members is left."""
    scene = Scene()
    for old in (1, 2, 3):
        scene.commit(CONFIG.commit_count_to_take_snapshot)
        scene.cluster.wreck(scene.cluster.members[old])
        scene.run(10)
        new = scene.cluster.add(old + 3, Members(())).id
        for change, target in (
            (MemberChange.ADD_LEARNER, new), (MemberChange.ADD_VOTER, new),
            (MemberChange.REMOVE, old),
        ):  # fmt: skip
            number = scene.change(change, target)
            scene.run(2)
            assert scene.outcome(number) is RequestOutcome.COMMITTED, (change, target)
    assert scene.node(scene.leader).members.voters == (4, 5, 6)
    scene.end()


def test_proposals_beyond_the_capacity_are_refused() -> None:
    scene = Scene()
    first = scene.leader
    scene.isolate(first)
    taken = [scene.propose(first) for _ in range(CONFIG.pending_entries_max)]
    with pytest.raises(CannotReplicate):
        scene.propose(first)
    scene.cluster.network.restore_all()
    scene.run(3)
    assert {scene.outcome(number) for number in taken} == {RequestOutcome.COMMITTED}
    scene.end()


def test_leadership_is_transferred_without_an_election_timeout() -> None:
    scene = Scene(5)
    target = scene.follower()
    scene.leader.transfer(target.id, None, scene._on_answer, -1)
    scene.run(0.3)
    assert scene.leader is target
    assert scene.outcome(-1) is RequestOutcome.COMMITTED
    scene.end()


def test_a_local_read_waits_for_its_index() -> None:
    scene = Scene()
    other = scene.follower()
    scene.isolate(other)
    scene.commit(2)
    index = scene.node(scene.leader).commit
    read = scene.read(other, ReadPolicy.LOCAL, index)
    stale = scene.read(other, ReadPolicy.LOCAL)
    scene.run(0.2)
    assert scene.outcome(read) is None
    assert scene.outcome(stale) is RequestOutcome.READABLE
    scene.cluster.network.restore_all()
    scene.run(2)
    assert scene.outcome(read) is RequestOutcome.READABLE
    scene.end()
