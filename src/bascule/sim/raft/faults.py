"""`Faults`: an independent series of faults for each kind that was drawn."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Final

from bascule.raft.effects import Role
from bascule.sim.checkers.base import Checker, NodeView
from bascule.sim.raft.burst_clients import BurstClients
from bascule.sim.raft.cluster import Cluster
from bascule.sim.raft.member import SimMember
from bascule.sim.raft.operator import Operator
from bascule.sim.raft.plan import InjectedFault

Links = tuple[tuple[int, int], ...]

DISK_ERRORS: Final = (errno.EIO, errno.ENOSPC)
FAIL_IN_MAX: Final = 40
"""A failing disk fails within this many calls."""


class NextLeaderWatcher(Checker):
    """Calls a function when the next leader is elected, before that leader sends anything."""

    name = "next leader"

    def __init__(self) -> None:
        self.callback: Callable[[int], None] | None = None
        """Called once, with the id of the leader; None: nothing is waiting."""

    def on_role(self, node: NodeView) -> None:
        if node.role is Role.LEADER and self.callback is not None:
            callback, self.callback = self.callback, None
            callback(node.id)


class Faults:
    """Injects faults into a cluster until `stop`."""

    def __init__(
        self,
        cluster: Cluster,
        operator: Operator,
        burst_clients: BurstClients,
        next_leader: NextLeaderWatcher,
    ) -> None:
        self._cluster = cluster
        self._burst_clients = burst_clients
        self._next_leader = next_leader
        self._prng = cluster.prng
        self._active = True
        self.counts: dict[InjectedFault, int] = {}
        """How often each kind happened."""
        self._injectors: dict[InjectedFault, Callable[[], None]] = {
            InjectedFault.CRASH: self._crash,
            InjectedFault.OUTAGE: self._outage,
            InjectedFault.PAUSE: self._pause,
            InjectedFault.SPLIT: self._split,
            InjectedFault.ISOLATE: self._isolate,
            InjectedFault.BRIDGE: self._bridge,
            InjectedFault.LINK: self._link,
            InjectedFault.FLAP: self._flap,
            InjectedFault.SLOW_LINK: self._slow_link,
            InjectedFault.SLOW_DISK: self._slow_disk,
            InjectedFault.FAIL_DISK: self._fail_disk,
            InjectedFault.WRECK: self._wreck,
            InjectedFault.CLOCK_JUMP: self._jump,
            InjectedFault.CLOCK_DRIFT: self._drift,
            InjectedFault.CHANGE: operator.change,
            InjectedFault.DEMOTION: operator.demote,
            InjectedFault.TRANSFER: operator.transfer,
            InjectedFault.CAMPAIGN: operator.campaign,
            InjectedFault.DUEL: self._duel,
            InjectedFault.RELAY: self._relay,
            InjectedFault.LATE_ANSWERS: self._late_answers,
            InjectedFault.BURST: burst_clients.burst,
        }
        for fault, mean in cluster.plan.faults.items():
            cluster.loop.after(self._prng.wait(mean), self._inject, fault, mean)

    def stop(self) -> None:
        """Inject nothing more, and end all faults."""
        self._active = False
        self._next_leader.callback = None
        cluster = self._cluster
        cluster.network.restore_all()
        cluster.network.set(cluster.plan.calm)
        for member in list(cluster.members.values()):
            member.disk_queue.slow = False
            member.store.fail_in(0)
            if member.paused:
                member.resume(clock_first=True)
            member.set_tick(cluster.plan.tick)
            if cluster.may_start(member):
                member.start()

    def _inject(self, fault: InjectedFault, mean: int) -> None:
        if self._active:
            self.counts[fault] = self.counts.get(fault, 0) + 1
            self._cluster.note(0, f"fault: {fault.value}")
            self._injectors[fault]()
            self._cluster.loop.after(self._prng.wait(mean), self._inject, fault, mean)

    def _duration(self) -> int:
        return self._prng.wait(self._cluster.plan.fault_lasts)

    def _anyone(self) -> SimMember | None:
        """A machine that is up; the leader with a probability of 0.4 at least."""
        leader = self._cluster.leader()
        if leader is not None and self._prng.happens(0.4):
            return leader
        up = self._cluster.up()
        return self._prng.pick(up) if up else None

    # -- machines -----------------------------------------------------------------------------

    def _crash(self) -> None:
        if (member := self._anyone()) is not None:
            self._cluster.crash(member, self._cluster.down_time())
            if self._prng.happens(0.3):
                # Another crash in the election that follows.
                wait = self._prng.wait(self._cluster.plan.election)
                self._cluster.loop.after(wait, self._on_aftershock)

    def _on_aftershock(self, _: None, __: None) -> None:
        if self._active and (member := self._anyone()) is not None:
            self._cluster.crash(member, self._cluster.down_time())

    def _outage(self) -> None:
        for member in self._cluster.members.values():
            if member.node is not None:
                self._cluster.crash(member, self._duration())

    def _pause(self) -> None:
        if (member := self._anyone()) is not None:
            member.pause()
            self._cluster.loop.after(self._duration(), self._on_resume, member, member.life)

    def _on_resume(self, member: SimMember, life: int) -> None:
        if member.life == life and member.paused:
            # A node that serves reads by lease has to advance its clock before other inputs.
            leases = self._cluster.plan.config.lease_reads
            member.resume(clock_first=leases or self._prng.happens(0.5))

    # -- the network --------------------------------------------------------------------------

    def _cut(self, links: Links) -> None:
        self._cluster.network.cut(links)
        self._cluster.loop.after(self._duration(), self._on_cut_end, links)
        if InjectedFault.BURST in self._cluster.plan.faults and self._prng.happens(0.5):
            # The burst reaches a leader that cannot commit, or its successor.
            wait = self._prng.wait(self._cluster.plan.election)
            self._cluster.loop.after(wait, self._on_burst)

    def _on_burst(self, _: None, __: None) -> None:
        if self._active:
            self._burst_clients.burst()

    def _on_cut_end(self, links: Links, _: None) -> None:
        self._cluster.network.restore(links)

    def _ids(self) -> list[int]:
        return list(self._cluster.members)

    def _parts(self) -> tuple[list[int], list[int]]:
        left: list[int] = []
        right: list[int] = []
        for number in self._ids():
            (left if self._prng.happens(0.5) else right).append(number)
        return left, right

    def _split(self) -> None:
        self._cut(between(*self._parts()))

    def _isolate(self) -> None:
        if (member := self._anyone()) is None:
            return
        others = [number for number in self._ids() if number != member.id]
        outward = tuple((member.id, other) for other in others)
        inward = tuple((other, member.id) for other in others)
        self._cut(self._prng.pick((outward + inward, outward, inward)))

    def _bridge(self) -> None:
        left, right = self._parts()
        if len(left) > 1:
            left.pop()
        self._cut(between(left, right))

    def _link(self) -> None:
        ids = self._ids()
        self._cut(((self._prng.pick(ids), self._prng.pick(ids)),))

    def _flap(self) -> None:
        links = between(*self._parts())
        if self._prng.happens(0.5):
            links = links[::2]  # one direction of each
        self._on_flap(links, self._prng.between(3, 12))

    def _on_flap(self, links: Links, left: int) -> None:
        network = self._cluster.network
        if not left or not self._active:
            network.restore(links)
            return
        (network.cut if left % 2 else network.restore)(links)
        every = max(1, self._cluster.plan.fault_lasts // 6)
        self._cluster.loop.after(self._prng.wait(every), self._on_flap, links, left - 1)

    def _slow_link(self) -> None:
        ids = self._ids()
        left, right = self._prng.pick(ids), self._prng.pick(ids)
        links = ((left, right), (right, left))
        by = int(self._prng.log_uniform(1, 4) * self._cluster.plan.beat)
        self._cluster.network.slow(links, by)
        self._cluster.loop.after(self._duration(), self._on_slow_link_end, links)

    def _on_slow_link_end(self, links: Links, _: None) -> None:
        self._cluster.network.slow(links, 0)

    # -- leaders ------------------------------------------------------------------------------

    def _duel(self) -> None:
        up = self._cluster.up()
        if len(up) < 2:
            return
        for _ in range(2):
            rival = self._prng.pick(up)
            if rival.is_up:
                rival.campaign()
        plan = self._cluster.plan
        while_they_vote = plan.network.delay + plan.network.jitter + plan.disk.sync
        wait = self._prng.wait(2 * while_they_vote)
        self._cluster.loop.after(wait, self._on_aftershock)

    def _relay(self) -> None:
        if (leader := self._cluster.leader()) is not None and self._next_leader.callback is None:
            self._cut_off(leader, 0, (), self._prng.between(2, 6))

    def _cut_off(self, leader: SimMember, before: int, links: Links, left: int) -> None:
        """Isolate a leader, sometimes together with one follower, for example the previous leader.
        The next leader is isolated in the same way as soon as it is elected."""
        cluster, prng = self._cluster, self._prng
        cluster.network.restore(links)
        if not self._active or not left:
            return
        others = [number for number in self._ids() if number != leader.id]
        inner = [leader.id]
        if len(others) > 2 and prng.happens(0.7):
            again = before in others and prng.happens(0.6)
            inner.append(before if again else prng.pick(others))
            others.remove(inner[-1])
        if leader.node is not None and prng.happens(0.3):
            inner += [number for number in leader.node.members.learners if number in others]
            others = [number for number in others if number not in inner]
        links = between(inner, others)
        cluster.network.cut(links)
        cluster.loop.after(0, self._on_proposals, leader)
        if prng.happens(0.3):
            cluster.loop.after(prng.wait(cluster.plan.beat), self._on_crash, leader)
        callback = partial(self._on_elected, leader.id, links, left - 1)
        self._next_leader.callback = callback
        cluster.loop.after(4 * cluster.plan.election, self._on_nobody_elected, callback, links)

    def _on_elected(self, before: int, links: Links, left: int, node_id: int) -> None:
        cluster, old = self._cluster, self._cluster.members[before]
        wait = self._prng.between(0, 2 * cluster.plan.election)
        cluster.loop.after(wait, self._on_requests, old)
        self._cut_off(cluster.members[node_id], before, links, left)

    def _on_nobody_elected(self, callback: Callable[[int], None], links: Links) -> None:
        if self._next_leader.callback is callback:
            self._next_leader.callback = None
            self._cluster.network.restore(links)

    def _on_proposals(self, leader: SimMember, _: None) -> None:
        if self._active:
            self._burst_clients.send(leader, reads=0.0)

    def _on_crash(self, member: SimMember, _: None) -> None:
        if self._active and member.is_up:
            self._cluster.crash(member, self._cluster.down_time())

    def _late_answers(self) -> None:
        cluster, prng = self._cluster, self._prng
        if (leader := cluster.leader()) is None or leader.node is None:
            return
        election = cluster.plan.election
        near = leader.node.members.learners if prng.happens(0.5) else ()
        others = [number for number in self._ids() if number != leader.id and number not in near]
        inward = tuple((other, leader.id) for other in others)
        outward = tuple((leader.id, other) for other in others)
        by = prng.between(election // 2, 2 * election)
        cluster.network.slow(inward, by)
        cluster.loop.after(by + self._duration(), self._on_cut_outward, leader, (inward, outward))

    def _on_cut_outward(self, leader: SimMember, links: tuple[Links, Links]) -> None:
        if not self._active:
            return
        cluster, prng = self._cluster, self._prng
        inward, outward = links
        election = cluster.plan.election
        cluster.network.cut(outward)
        for _ in range(6):
            cluster.loop.after(prng.between(0, 3 * election), self._on_requests, leader)
        cluster.loop.after(3 * election, self._on_cut_end, outward)
        cluster.loop.after(3 * election, self._on_slow_link_end, inward)

    def _on_requests(self, leader: SimMember, _: None) -> None:
        if self._active:
            self._burst_clients.send(leader, reads=0.9)

    # -- disks --------------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        if (member := self._anyone()) is not None:
            member.disk_queue.slow = True
            self._cluster.loop.after(self._duration(), self._on_slow_disk_end, member)

    def _on_slow_disk_end(self, member: SimMember, _: None) -> None:
        member.disk_queue.slow = False

    def _fail_disk(self) -> None:
        if (member := self._anyone()) is not None:
            calls = int(self._prng.log_uniform(1, FAIL_IN_MAX))
            member.store.fail_in(calls, self._prng.pick(DISK_ERRORS))

    def _wreck(self) -> None:
        cluster = self._cluster
        member = self._prng.pick(list(cluster.members.values()))
        if all(cluster.survives(members, lost=member.id) for members in cluster.all_views()):
            cluster.wreck(member)

    # -- clocks -------------------------------------------------------------------------------

    def _jump(self) -> None:
        if (member := self._anyone()) is not None:
            member.jump(self._prng.between(1, 3 * self._cluster.plan.config.election_ticks))

    def _drift(self) -> None:
        plan = self._cluster.plan
        if (member := self._anyone()) is not None and plan.drift:
            factor = self._prng.uniform(1 - plan.drift, 1 + plan.drift)
            member.set_tick(max(1, int(plan.tick * factor)))


def between(left: list[int], right: list[int]) -> Links:
    """Both directions of every link between two parts, alternating."""
    return tuple(link for a in left for b in right for link in ((a, b), (b, a)))
