"""`Operator`: adds, promotes, demotes and removes members, and transfers leadership.

The operator follows one rule: no voter is removed or demoted if the remaining voters would have no
majority of intact disks. A machine is switched off for good only when its removal is known to be
committed.
"""

from __future__ import annotations

from typing import Final

from bascule.errors import BasculeError
from bascule.host.real import RealRandom
from bascule.raft.effects import Answer, RequestOutcome
from bascule.raft.membership import MemberChange, Members
from bascule.sim.prng import Prng
from bascule.sim.raft.cluster import Cluster
from bascule.sim.raft.member import SimMember
from bascule.sim.raft.plan import APART
from bascule.sim.raft.state import CommandResult

MEMBERS_MAX: Final = 7
MACHINES_MAX: Final = 14


class Operator:
    """Changes of members and leaders."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._prng = cluster.prng
        self._apart = Prng(RealRandom(cluster.plan.seed + 2 * APART))
        """For `demote`: its choices leave those of others as they are."""
        self.changes = 0
        """Changes known to be committed."""

    def change(self) -> None:
        """Request a change of members from the leader, chosen by the members in force there."""
        leader = self._cluster.leader()
        if leader is None:
            return
        assert leader.node is not None
        members = leader.node.members
        change, target = self._draw(leader, members)
        if target:
            self._request(leader, change, target, self._prng)

    def demote(self) -> None:
        """Request that a voter becomes a learner, or that a learner votes. The target of a change
        campaigns soon, in some cases: it may not have heard of the change."""
        leader, prng, plan = self._cluster.leader(), self._apart, self._cluster.plan
        if leader is None:
            return
        assert leader.node is not None
        members = leader.node.members
        if members.learners and prng.happens(0.5):
            change, target = MemberChange.ADD_VOTER, self._whole(prng.pick(members.learners))
        else:
            change, target = MemberChange.DEMOTE, prng.pick(members.voters)
            if not self._cluster.survives(members.changed(change, target, 0)):
                return
        if not target:
            return
        self._request(leader, change, target, prng)
        if prng.happens(0.3):
            wait = prng.between(0, plan.election)
            self._cluster.loop.after(wait, self._on_demoted, target)

    def _on_demoted(self, target: int, _: None) -> None:
        member = self._cluster.members[target]
        if member.is_up:
            member.campaign()

    def _request(self, leader: SimMember, change: MemberChange, target: int, prng: Prng) -> None:
        assert leader.node is not None
        expected = leader.node.members.index if prng.happens(0.5) else None
        ticks = self._cluster.plan.config.election_ticks
        deadline = prng.between(1, 4 * ticks) if prng.happens(0.5) else None
        try:
            leader.change_members(
                change, target, expected, deadline, self._on_changed, (change, target)
            )
        except BasculeError:
            return  # refused: one is under way, or there is no room

    def _draw(self, leader: SimMember, members: Members) -> tuple[MemberChange, int]:
        """A change and its target; target 0 if no change is possible."""
        prng = self._prng
        promotes = self._cluster.plan.promotes
        if members.learners and prng.happens(0.2 + promotes / 2):
            target = prng.pick(members.learners)
            if prng.happens(promotes):
                return MemberChange.ADD_VOTER, self._whole(target)
            return MemberChange.REMOVE, target
        if len(members.all) < MEMBERS_MAX and prng.happens(0.5):
            change = MemberChange.ADD_LEARNER if prng.happens(0.85) else MemberChange.ADD_VOTER
            return change, self._newcomer(members)
        others = [voter for voter in members.voters if voter != leader.id or prng.happens(0.5)]
        if len(members.voters) < 2 or not others:
            return MemberChange.REMOVE, 0
        target = prng.pick(others)
        after = members.changed(MemberChange.REMOVE, target, 0)
        return MemberChange.REMOVE, target if self._cluster.survives(after) else 0

    def _whole(self, target: int) -> int:
        """`target` if its disk is intact, else 0."""
        member = self._cluster.members.get(target)
        return target if member is not None and not member.wrecked else 0

    def _newcomer(self, members: Members) -> int:
        """A machine that is not a member: a waiting one, or a new one."""
        cluster = self._cluster
        waiting = [
            member.id
            for member in cluster.members.values()
            if member.is_up and member.id not in members and member.id not in cluster.retired
        ]
        if waiting and (self._prng.happens(0.5) or len(cluster.members) >= MACHINES_MAX):
            return self._prng.pick(waiting)
        if len(cluster.members) >= MACHINES_MAX:
            return 0
        return cluster.add(max(cluster.members) + 1, Members(())).id

    def _on_changed(
        self,
        member: SimMember,
        answer: Answer,
        effect: CommandResult | None,
        asked: tuple[MemberChange, int],
    ) -> None:
        del member, effect
        if answer.outcome is not RequestOutcome.COMMITTED:
            return
        self.changes += 1
        change, target = asked
        if change is MemberChange.REMOVE:
            wait = self._prng.wait(self._cluster.plan.fault_lasts)
            self._cluster.loop.after(wait, self._retire, target)

    def _retire(self, target: int, _: None) -> None:
        """Switch off a removed machine, unless it is a member again."""
        cluster = self._cluster
        machine = cluster.members[target]
        others = [
            cluster.views[member.id] if member.node is None else member.node.members
            for member in cluster.members.values()
            if member.id != target and not member.wrecked and member.id not in cluster.retired
        ]
        if any(target in members for members in others):
            return
        cluster.retired.add(target)
        if machine.node is not None:
            cluster.crash(machine)

    def transfer(self) -> None:
        """Request the leader to transfer leadership to another voter."""
        leader = self._cluster.leader()
        if leader is None:
            return
        assert leader.node is not None
        target = self._prng.pick(leader.node.members.all)
        ticks = self._cluster.plan.config.election_ticks
        try:
            leader.transfer(target, 2 * ticks, self._on_transferred, None)
        except BasculeError:
            return  # to itself, to a learner, or one is under way

    def _on_transferred(
        self, member: SimMember, answer: Answer, effect: CommandResult | None, asked: None
    ) -> None:
        pass

    def campaign(self) -> None:
        """Make a random node start an election."""
        up = self._cluster.up()
        if up:
            self._prng.pick(up).campaign()
