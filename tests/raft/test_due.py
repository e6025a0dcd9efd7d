"""`due` is correct in every state that a few random inputs lead to: ticks before it have no effect,
so a driver may sleep until then."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import BasculeError
from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.effects import ReadPolicy, Role
from bascule.raft.membership import MemberChange, Members
from bascule.raft.messages import AnyMessage, SnapshotOffer
from bascule.raft.node import RaftNode
from bascule.raft.store import PersistentState
from raft.cluster import DrivenNode, acknowledge, follower, leader_of

CONFIG = RaftConfig(
    election_ticks=6,
    heartbeat_ticks=2,
    commit_count_to_take_snapshot=3,
    pending_entries_max=4,
    lease_reads=True,
)

Action = tuple[str, int, int]


def ask(node: RaftNode, what: str, number: int) -> None:
    """Make one of the requests, unless it is refused."""
    deadline = 1 + number % 9 if number % 2 else None
    try:
        match what:
            case "propose":
                node.propose(b"x", deadline_ticks=deadline)
            case "read":
                node.read(list(ReadPolicy)[number % 3], min_index=number, deadline_ticks=deadline)
            case "transfer":
                node.transfer(1 + number % 3, deadline_ticks=deadline)
            case "change":
                node.change_members(list(MemberChange)[number % 3], 3 + number % 2)
            case "campaign":
                node.campaign()
    except BasculeError:
        pass


def check(node: RaftNode) -> None:
    """A node has no effects up to the tick before it is due."""
    due = node.due()
    assert due is not None
    assert due >= 1
    stepwise, at_once = deepcopy(node), deepcopy(node)
    for _ in range(due - 1):
        stepwise.tick()
        assert stepwise.ready() is None
    if due > 1:
        at_once.tick(due - 1)
    assert at_once.ready() is None
    assert at_once.report() == stepwise.report()
    stepwise.tick()
    at_once.tick()
    assert at_once.ready() == stepwise.ready()
    assert at_once.report() == stepwise.report()


ACTIONS = st.tuples(
    st.sampled_from(
        ("settle", "settle", "deliver", "drop", "cut", "tick", "due", "due", "propose", "propose",
         "read", "transfer", "change", "campaign")
    ),
    st.integers(0, 2),
    st.integers(0, 20),
)  # fmt: skip


class Group:
    """Three nodes, with the first as leader; requests go to the leader."""

    def __init__(self, seed: int) -> None:
        members = PersistentState(initial_members=Members.of(1, 2, 3))
        self.nodes = [
            DrivenNode(RaftNode(n, CONFIG, members, RealRandom(seed + n))) for n in (1, 2, 3)
        ]
        self.network: list[AnyMessage] = []
        self.cut: set[int] = set()
        for found in self.nodes:
            self.network += found.tick(CONFIG.election_ticks - 1)
        self.nodes[0].node.campaign()
        self.network += self.nodes[0].tick()
        self.do("settle", 0, 0)

    def do(self, what: str, who: int, number: int) -> None:
        found = self.nodes[who]
        if what == "settle":
            while self.network:
                self.deliver()
        elif what in ("deliver", "drop"):
            for _ in range(min(len(self.network), 1 + number % 4)):
                self.deliver() if what == "deliver" else self.network.pop(0)
        elif what == "cut":
            self.cut ^= {who + 1}
        elif what in ("tick", "due"):
            due = found.node.due() or 1
            self.network += found.tick(due if what == "due" else 1 + number % due)
        else:
            leaders = [one for one in self.nodes if one.node.role is Role.LEADER]
            found = (leaders or [found])[0] if number % 4 else found
            ask(found.node, what, number)
            self.network += found.drive()

    def deliver(self) -> None:
        message = self.network.pop(0)
        if message.target <= len(self.nodes) and not {message.source, message.target} & self.cut:
            self.network += self.nodes[message.target - 1].step(message)


@settings(max_examples=20)
@given(st.lists(ACTIONS, min_size=10, max_size=40), st.integers(0, 9))
def test_ticks_before_due_have_no_effect(actions: list[Action], seed: int) -> None:
    group = Group(seed)
    for action in actions:
        group.do(*action)
        check(group.nodes[action[1]].node)


# ------------------------------------------------------------ each reason


def leader() -> DrivenNode:
    """The leader of three, with its no-op committed: a heartbeat is due in 2 ticks, a quorum check
    in 6."""
    found = leader_of(1, 2, 3, config=CONFIG)
    acknowledge(found, 2, 3)
    return found


def test_a_follower_is_due_at_its_election_timeout() -> None:
    found = follower(config=CONFIG)
    assert found.node.due() == 6
    check(found.node)


def test_a_leader_is_due_at_heartbeats_and_quorum_checks() -> None:
    found = leader()
    assert found.node.due() == 2
    check(found.node)
    config = RaftConfig(election_ticks=6, heartbeat_ticks=5)
    found = leader_of(1, 2, 3, config=config)
    found.tick(5)
    assert found.node.due() == 1
    found.tick(6)
    assert found.node.due() == 1
    check(found.node)


def test_a_proposal_is_due_at_its_deadline() -> None:
    found = leader()
    found.node.propose(b"x", deadline_ticks=1)
    found.drive()
    assert found.node.due() == 1
    check(found.node)


def test_a_read_is_due_at_its_deadline() -> None:
    found = follower(config=CONFIG)
    found.node.read(ReadPolicy.LOCAL, min_index=9, deadline_ticks=4)
    assert found.node.due() == 4
    check(found.node)


def test_a_transfer_is_due_at_its_deadline() -> None:
    found = leader()
    found.node.transfer(2, deadline_ticks=1)
    found.drive()
    assert found.node.due() == 1
    check(found.node)


def test_a_chunk_request_is_due_after_two_heartbeats() -> None:
    found = follower(config=CONFIG)
    found.step(SnapshotOffer(2, 1, 9, 4, 3, Members.of(1, 2, 3), (0, 0), (2,)))
    assert found.node.due() == 4
    check(found.node)
