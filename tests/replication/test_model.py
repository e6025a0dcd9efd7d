"""A group of replicas against the rules of commitment, with a controller that answers late.

The logs hold the leader epoch of each record. The model knows what each node has on its disk; the
leader knows what followers report. The controller's ISR may be ahead of what the leader was told.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bascule.model import PartitionState
from bascule.replication.leader import LeaderReplication

NODES = (1, 2, 3)
LEADERS = st.sampled_from(NODES)
LAG = 50


@dataclass
class Node:
    """One replica: its log, the leader epoch of each record; and its process."""

    log: list[int] = field(default_factory=list)
    synced: int = 0
    alive: bool = True
    node_epoch: int = 1
    checked_epoch: int = -1
    """The leader epoch for which its log was compared with the leader's."""

    def crash(self) -> None:
        """Lose what is not synced, as by a power loss."""
        del self.log[self.synced :]
        self.alive = False


@dataclass
class Proposal:
    """A change of the ISR on its way to the controller, with what it is fenced by."""

    proposer: int
    isr: tuple[int, ...]
    leader_epoch: int
    version: int


class Group(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.nodes = {n: Node() for n in NODES}
        self.committed = PartitionState(NODES, NODES, 1, 1, 1)
        """As the controller knows it."""
        self.min_isr = 2
        self.now = 0
        self.proposals: list[Proposal] = []
        self.acked: list[int] = []
        """The records that any leader has committed."""
        self.views: dict[int, LeaderReplication] = {}
        """Of all nodes that take themselves for the leader."""
        self.marks: dict[int, tuple[LeaderReplication, int]] = {}

    @initialize(min_isr=st.integers(1, 3))
    def start(self, min_isr: int) -> None:
        self.min_isr = min_isr
        self.lead()

    def lead(self) -> None:
        """The leader of the committed state takes over."""
        leader = self.committed.leader
        node = self.nodes[leader]
        node.synced = len(node.log)
        node.checked_epoch = self.committed.leader_epoch
        self.views[leader] = LeaderReplication(
            leader, self.committed, min_isr=self.min_isr, own_synced=node.synced,
            now_ns=self.now, lag_ns_max=LAG, epoch_start=len(node.log), high_watermark=0,
        )  # fmt: skip

    @rule(leader=LEADERS, count=st.integers(1, 5), ns=st.integers(0, 40))
    def append(self, leader: int, count: int, ns: int) -> None:
        view = self.views.get(leader)
        self.now += ns
        if view is not None and view.has_min_isr:
            log = self.nodes[leader].log
            log += count * [view.state.leader_epoch]
            view.on_appended(len(log), self.now)

    @rule(leader=LEADERS)
    def leader_syncs(self, leader: int) -> None:
        view, node = self.views.get(leader), self.nodes[leader]
        if view is not None:
            node.synced = len(node.log)
            view.on_synced(node.synced)

    @rule(
        leader=LEADERS, follower=st.sampled_from(NODES), size=st.integers(0, 6), syncs=st.booleans()
    )
    def fetch(self, leader: int, follower: int, size: int, syncs: bool) -> None:
        """A follower fetches from the one that it takes for the leader, then may sync."""
        view, node = self.views.get(leader), self.nodes[follower]
        if view is None or follower == leader or not node.alive:
            return
        epoch, source = view.state.leader_epoch, self.nodes[leader].log
        if node.checked_epoch > epoch:
            return  # it follows a later leader
        if node.checked_epoch < epoch:
            self.views.pop(follower, None)
            same = 0
            for ours, theirs in zip(node.log, source, strict=False):
                if ours != theirs:
                    break
                same += 1
            del node.log[same:]
            node.synced = min(node.synced, same)
            node.checked_epoch = epoch
        view.on_fetch(follower, node.node_epoch, len(node.log), node.synced, self.now, len(source))
        node.log += source[len(node.log) : len(node.log) + size]
        if syncs:
            node.synced = len(node.log)

    @rule(leader=LEADERS, followers=st.sets(LEADERS), syncs=st.booleans())
    def replicate(self, leader: int, followers: set[int], syncs: bool) -> None:
        """Some followers fetch all that there is, and report it."""
        self.append(leader, 1, 0)
        self.leader_syncs(leader)
        for follower in sorted(followers):
            self.fetch(leader, follower, 1_000, syncs)
            self.fetch(leader, follower, 0, False)

    @rule(leader=LEADERS, ns=st.sampled_from((0, LAG, 3 * LAG)))
    def propose(self, leader: int, ns: int) -> None:
        self.now += ns
        view = self.views.get(leader)
        wanted = None if view is None else view.wanted_isr(self.now)
        if view is not None and wanted is not None:
            assert wanted == tuple(sorted(wanted))
            view.on_isr_proposed(wanted)
            fence = view.state.leader_epoch, view.state.version
            self.proposals.append(Proposal(leader, wanted, *fence))

    @rule()
    @precondition(lambda self: self.proposals)
    def controller_decides(self) -> None:
        """The leader is told of what is committed later, of what never will be now."""
        proposal, state = self.proposals.pop(0), self.committed
        if (proposal.leader_epoch, proposal.version) == (state.leader_epoch, state.version):
            self.committed = replace(state, isr=proposal.isr, version=state.version + 1)
            return
        view = self.views.get(proposal.proposer)
        if (
            view is not None
            and (view.state.leader_epoch, view.state.version)
            == (proposal.leader_epoch, proposal.version)
            and view.pending_isr == proposal.isr
        ):
            view.on_isr_failed()

    @rule()
    def leader_is_told(self) -> None:
        view = self.views.get(self.committed.leader)
        if view is not None and view.state.leader_epoch == self.committed.leader_epoch:
            view.configure(self.committed, self.min_isr)

    @rule(node=st.sampled_from(NODES))
    def deposed_leader_is_told(self, node: int) -> None:
        view = self.views.get(node)
        if view is not None and view.state.leader_epoch < self.committed.leader_epoch:
            del self.views[node]

    @rule(node=st.sampled_from(NODES))
    def crash(self, node: int) -> None:
        self.nodes[node].crash()
        self.views.pop(node, None)

    @rule(node=st.sampled_from(NODES))
    def restart(self, node: int) -> None:
        """A new incarnation, which leads only after an election."""
        found = self.nodes[node]
        if not found.alive:
            found.alive, found.node_epoch, found.checked_epoch = True, found.node_epoch + 1, -1

    @rule(node=st.sampled_from(NODES))
    def elect(self, node: int) -> None:
        """The controller elects a member of the ISR; the election takes the old leader out.

        Alone in the ISR, the old leader may lead again as a new incarnation.
        """
        state = self.committed
        if node not in state.isr or not self.nodes[node].alive:
            return
        if node == state.leader and (len(state.isr) > 1 or node in self.views):
            return
        isr = tuple(n for n in state.isr if n == node or n != state.leader)
        epoch, version = state.leader_epoch + 1, state.version + 1
        self.committed = PartitionState(NODES, isr, node, epoch, version)
        self.lead()

    @invariant()
    def committed_records_are_on_every_member_of_the_isr(self) -> None:
        for leader, view in self.views.items():
            log = self.nodes[leader].log[: view.high_watermark]
            shorter = min(len(log), len(self.acked))
            assert log[:shorter] == self.acked[:shorter], "two leaders committed different records"
            if len(log) > len(self.acked):
                self.acked = log
        for member in self.committed.isr:
            node = self.nodes[member]
            assert node.synced >= len(self.acked), f"node {member} lacks committed records"
            assert node.log[: len(self.acked)] == self.acked

    @invariant()
    def the_high_watermark_of_a_leader_never_goes_back(self) -> None:
        for leader, view in self.views.items():
            before, mark = self.marks.get(leader, (view, 0))
            assert before is not view or view.high_watermark >= mark
            self.marks[leader] = view, view.high_watermark


Group.TestCase.settings = settings(
    Group.TestCase.settings, max_examples=300, stateful_step_count=50
)
TestGroup = Group.TestCase
