"""`MultiRaft`: all groups of one process, under one tick and one coalesced heartbeat per peer.

A pure object like the nodes in it: ticks, bundles, completions and requests come in, and `ready`
returns what is to be done. All messages for one peer leave in one bundle. The package docstring
says when groups hibernate and what wakes them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from bascule.errors import RemoteProtocolError
from bascule.raft.config import NEVER
from bascule.raft.effects import Answer, Apply, Completion, RaftState, Role, Write
from bascule.raft.messages import AnyMessage, HeartbeatReply
from bascule.raft.multi.bundle import Bundle, Hibernation
from bascule.raft.multi.peer import Peer, PeerContinuity, PeerReport
from bascule.raft.node import RaftNode


class MultiRaftReady(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the groups of a process request at one moment; see `effects.Ready`.

    One sync may make the writes of all groups durable.
    """

    bundles: tuple[Bundle, ...] = ()
    """To send at once; those for one peer in this order, if possible."""
    writes: tuple[tuple[int, Write], ...] = ()
    """(group, write); when it is done: `advance(group, WriteDone(number), write.then_send)`."""
    applies: tuple[tuple[int, Apply], ...] = ()
    answers: tuple[tuple[int, Answer], ...] = ()
    states: tuple[tuple[int, RaftState], ...] = ()
    """The groups whose state changed."""


class MultiRaftReport(msgspec.Struct, frozen=True):
    """The state of a process, for people and metrics; its groups have reports of their own."""

    node: int
    incarnation: int
    ticks: int
    """Since the start."""
    groups: int
    hibernating: int
    """The hibernating ones among them."""
    peers: tuple[PeerReport, ...]


class _Group:
    """One group of the process: its node, the node's timer, and with whom it hibernates."""

    __slots__ = (
        "clock", "due_at", "led_to", "node", "number", "queued_at", "quiet_since", "under",
    )  # fmt: skip

    def __init__(self, number: int, node: RaftNode, now: int) -> None:
        self.number = number
        self.node = node
        self.clock = now
        """The tick of the process up to which the node's clock was moved."""
        self.due_at = NEVER
        """The tick at which the node's timer is due."""
        self.queued_at = NEVER
        """Its earliest entry in the heap of timers; at most `due_at`."""
        self.led_to: tuple[Peer, ...] | None = None
        """While it hibernates as leader: the peers of the other members."""
        self.under: Peer | None = None
        """While it hibernates as follower: the leader's peer."""
        self.quiet_since: int | None = None
        """The tick since which the leader could hibernate; None: it cannot."""

    def catch_up(self, now: int) -> None:
        """Move the node's clock to `now`."""
        if now > self.clock:
            self.node.tick(now - self.clock)
            self.clock = now


class MultiRaft:
    """All groups of node `node_id` in this process. Not thread-safe; no method blocks.

    `incarnation` is positive and differs from those of this node's earlier starts (for example the
    time of the start). The ticks are those of the groups' settings.
    """

    def __init__(
        self, node_id: int, incarnation: int, *, heartbeat_ticks: int, election_ticks: int
    ) -> None:
        assert node_id > 0, node_id
        assert incarnation > 0, incarnation
        self.id = node_id
        self.incarnation = incarnation
        self.now = 0
        """Ticks since the start."""
        self._heartbeat_ticks = heartbeat_ticks
        self._election_ticks = election_ticks
        self._groups: dict[int, _Group] = {}
        self._peers: dict[int, Peer] = {}
        self._active: dict[int, _Group] = {}
        """Groups with an input since the last `ready`."""
        self._timers: list[tuple[int, int]] = []
        """Heap of (tick, group): when the timers of nodes are due."""

    # -- groups -------------------------------------------------------------------------------

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(self._groups)

    def add(self, number: int, node: RaftNode) -> None:
        """Add the node of a group that this process does not have yet."""
        assert node.id == self.id, (node.id, self.id)
        assert number not in self._groups, number
        group = self._groups[number] = _Group(number, node, self.now)
        self._mark_active(group)

    def remove(self, number: int) -> None:
        """Remove a group. Its messages and completions are ignored from now on."""
        group = self._groups.pop(number)
        self._active.pop(number, None)
        self._leave_hibernation(group)

    def node(self, number: int) -> RaftNode:
        """The node of a group, for requests and reports, with its clock at the present tick.

        Raises: KeyError for an unknown group.
        """
        group = self._groups[number]
        group.catch_up(self.now)
        self._mark_active(group)
        return group.node

    def report(self) -> MultiRaftReport:
        """The state of the process, without that of its groups."""
        return MultiRaftReport(
            node=self.id,
            incarnation=self.incarnation,
            ticks=self.now,
            groups=len(self._groups),
            hibernating=sum(group.node.hibernating for group in self._groups.values()),
            peers=tuple(peer.report(self.now) for peer in self._peers.values()),
        )

    def _mark_active(self, group: _Group) -> None:
        self._active[group.number] = group

    def _peer(self, node: int) -> Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = Peer(
                node,
                (self.id, self.incarnation),
                heartbeat_ticks=self._heartbeat_ticks,
                election_ticks=self._election_ticks,
            )
        return peer

    # -- time ---------------------------------------------------------------------------------

    def tick(self, count: int = 1) -> None:
        """Let `count` ticks pass.

        More ticks than `due` returned mean that this process stalled. Bundles that arrived
        meanwhile are not handled yet, so that time does not count as silence of the peers:
        hibernating groups survive a stall.
        """
        stalled = max(0, count - (self.due() or count)) if count > 1 else 0
        self.now = now = self.now + count
        while (group := self._next_due()) is not None and group.due_at <= now:
            heapq.heappop(self._timers)
            group.queued_at = NEVER
            group.catch_up(now)
            self._mark_active(group)
        for peer in tuple(self._peers.values()):
            if stalled:
                peer.discount_stall(stalled)
            if peer.followed.groups and peer.is_silent(now):
                self._reset_followed(peer)
            if peer.was_in_contact and not peer.is_in_contact(now):
                self._lose_contact(peer)

    def due(self) -> int | None:
        """Ticks until something is due if nothing else happens; None: never."""
        now = self.now
        group = self._next_due()
        times = [] if group is None else [group.due_at]
        times += [at for peer in self._peers.values() for at in peer.deadlines(now)]
        return max(1, min(times) - now) if times else None

    def _next_due(self) -> _Group | None:
        """The group whose node is due first. An entry in the heap may be too early: when a timer is
        restarted, as each heartbeat restarts a follower's, its entry stays until it is reached."""
        timers = self._timers
        while timers:
            at, number = timers[0]
            group = self._groups.get(number)
            if group is not None and group.queued_at == at:
                if group.due_at == at:
                    return group
                group.queued_at = NEVER
            heapq.heappop(timers)
            if group is not None:
                self._queue(group)
        return None

    def _queue(self, group: _Group) -> None:
        if group.due_at < group.queued_at:
            group.queued_at = group.due_at
            heapq.heappush(self._timers, (group.due_at, group.number))

    # -- input --------------------------------------------------------------------------------

    def receive(self, bundle: Bundle) -> list[tuple[int, RemoteProtocolError]]:
        """Handle a bundle from another process. Returns the messages that violate the protocol, by
        group: each is dropped, and has no effect on the other groups.

        Raises: RemoteProtocolError if the bundle is not for this node.
        """
        if bundle.target != self.id or bundle.source == self.id:
            raise RemoteProtocolError(
                f"node {self.id} got a bundle from {bundle.source} to {bundle.target}"
            )
        peer, now = self._peer(bundle.source), self.now
        continuity = peer.on_heartbeat(bundle, now)
        if continuity is PeerContinuity.RESTARTED:
            self._reset_followed(peer)
        if continuity is not PeerContinuity.CONTINUED:
            self._wake_led(peer)
        refused = []
        for number, message in bundle.messages:
            try:
                self._step(number, message)
            except RemoteProtocolError as error:
                refused.append((number, error))
        if peer.is_about_led(bundle):
            peer.led.confirm(bundle.held)
            self._on_refused(peer, bundle.refused)
        if peer.is_about_followed(bundle):
            self._on_changes(peer, bundle)
        return refused

    def _step(self, number: int, message: AnyMessage) -> None:
        group = self._groups.get(number)
        if group is None:
            return
        node = group.node
        group.catch_up(self.now)
        if node.hibernating:
            if (
                type(message) is HeartbeatReply
                and node.role is Role.LEADER
                and message.term == node.term
            ):
                return  # a reply to the last round before hibernation: nothing waits for it
            self._wake(group)
        self._mark_active(group)
        node.step(message)

    def on_process_lost(self, node: int) -> None:
        """The process of another node does not run: it is gone, or paused, or cut off. The groups
        that it leads do not wait for their election timeouts."""
        for group in self._groups.values():
            if group.node.leader == node:
                self._wake(group)
                group.catch_up(self.now)
                group.node.on_process_lost(node)
                self._mark_active(group)

    def advance(
        self, number: int, completion: Completion, then_send: tuple[AnyMessage, ...] = ()
    ) -> None:
        """A write or an apply of a group is done. Ignored for a group that was removed."""
        group = self._groups.get(number)
        if group is None:
            return
        self._send(number, then_send)
        group.catch_up(self.now)
        self._mark_active(group)
        group.node.advance(completion)

    # -- output -------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        """Whether a group has an input since the last `ready`, or a bundle is due."""
        now = self.now
        return bool(self._active) or any(peer.due_at(now) == now for peer in self._peers.values())

    def ready(self) -> MultiRaftReady | None:
        """Return what is to be sent, written, applied and answered, once; None: nothing."""
        writes: list[tuple[int, Write]] = []
        applies: list[tuple[int, Apply]] = []
        answers: list[tuple[int, Answer]] = []
        states: list[tuple[int, RaftState]] = []
        active, self._active = self._active, {}
        for number, group in active.items():
            ready = group.node.ready()
            if ready is not None:
                self._send(number, ready.send)
                if ready.write is not None:
                    writes.append((number, ready.write))
                if ready.apply is not None:
                    applies.append((number, ready.apply))
                if ready.state is not None:
                    states.append((number, ready.state))
                answers += [(number, answer) for answer in ready.answers]
            self._after_input(group)
        bundles: list[Bundle] = []
        for peer in self._peers.values():
            bundles += peer.take_bundles(self.now)
        if not (bundles or writes or applies or answers or states):
            return None
        return MultiRaftReady(
            bundles=tuple(bundles), writes=tuple(writes), applies=tuple(applies),
            answers=tuple(answers), states=tuple(states),
        )  # fmt: skip

    def _send(self, number: int, messages: Iterable[AnyMessage]) -> None:
        for message in messages:
            self._peer(message.target).outbox.append((number, message))

    # -- hibernation --------------------------------------------------------------------------

    def _after_input(self, group: _Group) -> None:
        """Update the group's hibernation and timer after its node handled all inputs."""
        node = group.node
        if not node.hibernating:
            self._leave_hibernation(group)
            self._maybe_hibernate(group)
        due = node.due()
        group.due_at = NEVER if due is None else group.clock + due
        self._queue(group)

    def _maybe_hibernate(self, group: _Group) -> None:
        """Hibernate if this node leads the group and it was quiet for an election timeout."""
        node, now = group.node, self.now
        if not node.is_quiet_leader or not node.may_hibernate(self._unreachable(node)):
            group.quiet_since = None
            return
        if group.quiet_since is None:
            group.quiet_since = now
        if now - group.quiet_since < self._election_ticks or not self._has_majority(node):
            return
        node.hibernate_as_leader()
        group.quiet_since = None
        group.led_to = tuple(self._peer(other) for other in node.members.all if other != self.id)
        hibernation = Hibernation(group.number, node.term, node.log.last)
        for peer in group.led_to:
            peer.led.add(hibernation)

    def _unreachable(self, node: RaftNode) -> list[int]:
        """The members of its group whose processes are out of contact."""
        peers, now = self._peers, self.now
        return [
            other
            for other in node.members.all
            if other != self.id and not (peers.get(other) or self._peer(other)).is_in_contact(now)
        ]

    def _has_majority(self, node: RaftNode) -> bool:
        """Whether this process is in contact with a majority of the group's voters."""
        unreachable = self._unreachable(node)
        return node.members.is_majority(lambda voter: voter not in unreachable)

    def _on_changes(self, peer: Peer, bundle: Bundle) -> None:
        """Take the changes of the hibernating groups that the peer leads."""
        if not peer.followed.take(bundle.base, bundle.version, bundle.hibernated, bundle.woken):
            return
        for number in bundle.woken:
            group = self._groups.get(number)
            if group is not None and group.under is peer:
                self._wake(group)
        for hibernation in bundle.hibernated:
            self._hibernate_as_follower(peer, hibernation)

    def _hibernate_as_follower(self, peer: Peer, hibernation: Hibernation) -> None:
        group = self._groups.get(hibernation.group)
        if group is None:
            peer.refuse(hibernation.group)
            return
        group.catch_up(self.now)
        if group.node.hibernate_as_follower(peer.id, hibernation.term, hibernation.index):
            if group.under is not peer:
                self._leave_hibernation(group)
                group.under = peer
            group.due_at = NEVER
        else:
            self._wake(group)
            peer.refuse(hibernation.group)

    # -- waking -------------------------------------------------------------------------------

    def _wake(self, group: _Group) -> None:
        """Wake a node. A follower counts the silence of its leader's process."""
        if not group.node.hibernating:
            return
        group.catch_up(self.now)
        under = group.under
        group.node.wake(0 if under is None else under.silent_ticks(self.now))
        self._mark_active(group)

    def _leave_hibernation(self, group: _Group) -> None:
        """Remove the group from the sets of the peers that it hibernated with."""
        if group.led_to is not None:
            for peer in group.led_to:
                peer.led.remove(group.number)
            group.led_to = None
        if group.under is not None:
            group.under.refuse(group.number)
            group.under = None

    def _on_refused(self, peer: Peer, refused: Iterable[Hibernation]) -> None:
        for hibernation in refused:
            if peer.led.groups.get(hibernation.group) == hibernation:
                self._wake(self._groups[hibernation.group])

    def _wake_led(self, peer: Peer) -> None:
        """Wake all groups that this process leads and that hibernate with the peer."""
        for number in peer.led.groups:
            self._wake(self._groups[number])
        peer.led.reset()

    def _reset_followed(self, peer: Peer) -> None:
        """Wake all groups that hibernate under the peer."""
        for number in peer.followed.groups:
            group = self._groups.get(number)
            if group is not None and group.under is peer:
                self._wake(group)
                group.under = None
        peer.reset_followed()

    def _lose_contact(self, peer: Peer) -> None:
        """Wake the groups whose majority of voters is not in contact with this process."""
        peer.was_in_contact = False
        for number in peer.led.groups:
            group = self._groups[number]
            if group.node.hibernating and not self._has_majority(group.node):
                self._wake(group)
