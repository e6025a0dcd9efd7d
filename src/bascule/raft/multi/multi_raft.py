"""`Hub`: all groups of one process, under one tick and one heartbeat per peer.

A pure object like the nodes it holds: ticks, bundles, completions and requests go in, and `ready`
hands over what is to be done. What all groups have for one peer leaves in one bundle. The package
says how groups come to rest and what wakes them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from bascule.errors import RemoteProtocolError
from bascule.raft.config import NEVER
from bascule.raft.effects import Answer, Apply, Completion, Role, Write
from bascule.raft.messages import AnyMessage, HeartbeatReply
from bascule.raft.multi.bundle import Bundle, Rest
from bascule.raft.multi.group import Group
from bascule.raft.multi.peer import Heard, Peer
from bascule.raft.multi.report import HubReport
from bascule.raft.node import Node


class HubReady(msgspec.Struct, frozen=True, kw_only=True):
    """All that the groups of a hub want done at one moment; see `effects.Ready`.

    The writes of all groups may be made durable by one sync.
    """

    bundles: tuple[Bundle, ...] = ()
    """To be sent at once; those for one peer in this order, if it can be had."""
    writes: tuple[tuple[int, Write], ...] = ()
    """(group, write); when it is done: `advance(group, Written(number), write.then_send)`."""
    applies: tuple[tuple[int, Apply], ...] = ()
    answers: tuple[tuple[int, Answer], ...] = ()


class Hub:
    """All groups of node `node_id` in this process. Not thread-safe; every method returns at once.

    `incarnation` is not 0 and differs from those of this node's earlier starts (the time of the
    start will do). The ticks are those of the groups' settings.
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
        self._groups: dict[int, Group] = {}
        self._peers: dict[int, Peer] = {}
        self._busy: dict[int, Group] = {}
        """Those to whom something happened since `ready` last asked them."""
        self._timers: list[tuple[int, int]] = []
        """Heap of (tick, group)."""

    # -- groups -------------------------------------------------------------------------------

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(self._groups)

    def add(self, number: int, node: Node) -> None:
        """Take in a node, new or restored, of a group that is not here yet."""
        assert node.id == self.id, (node.id, self.id)
        assert number not in self._groups, number
        group = self._groups[number] = Group(number, node, self.now)
        self._touch(group)

    def remove(self, number: int) -> None:
        """Let go of a group: its messages go nowhere from now on, and what is under way is lost."""
        group = self._groups.pop(number)
        self._busy.pop(number, None)
        self._leave_rest(group)

    def node(self, number: int) -> Node:
        """The node of a group, for requests and reports, at the present tick.

        Raises: KeyError where the group is not here.
        """
        group = self._groups[number]
        group.catch_up(self.now)
        self._touch(group)
        return group.node

    def report(self) -> HubReport:
        """All of it; the groups have reports of their own."""
        return HubReport(
            node=self.id,
            incarnation=self.incarnation,
            ticks=self.now,
            groups=len(self._groups),
            at_rest=sum(group.node.resting for group in self._groups.values()),
            links=tuple(peer.report(self.now) for peer in self._peers.values()),
        )

    def _touch(self, group: Group) -> None:
        self._busy[group.number] = group

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

        More than `due` said means that this process was late; what peers said meanwhile is not
        heard yet, so that time does not count as their silence. Groups at rest survive a stall.
        """
        late = max(0, count - (self.due() or count))
        self.now = now = self.now + count
        while (group := self._next_due()) is not None and group.due_at <= now:
            heapq.heappop(self._timers)
            group.queued_at = NEVER
            group.catch_up(now)
            self._touch(group)
        for peer in tuple(self._peers.values()):
            peer.excuse(late)
            if peer.followed.resting and peer.is_silent(now):
                self._forget_followed(peer)
            if peer.was_in_contact and not peer.is_in_contact(now):
                self._lose_contact(peer)

    def due(self) -> int | None:
        """Ticks until something happens if nothing else does; None: never."""
        now = self.now
        group = self._next_due()
        times = [] if group is None else [group.due_at]
        times += [at for peer in self._peers.values() for at in peer.deadlines(now)]
        return max(1, min(times) - now) if times else None

    def _next_due(self) -> Group | None:
        """The group whose node is due first. A place in the heap may be too early: a node that is
        put off, as a follower is by each heartbeat, keeps its place until it comes up."""
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

    def _queue(self, group: Group) -> None:
        if group.due_at < group.queued_at:
            group.queued_at = group.due_at
            heapq.heappush(self._timers, (group.due_at, group.number))

    # -- what comes in ------------------------------------------------------------------------

    def receive(self, bundle: Bundle) -> None:
        """Take what another hub sent.

        Raises: RemoteProtocolError where it is not for this node or cannot come from one that
        keeps to the protocol; the rest of it is then as if lost.
        """
        if bundle.target != self.id or bundle.source == self.id:
            raise RemoteProtocolError(
                f"node {self.id} got a bundle from {bundle.source} to {bundle.target}"
            )
        peer, now = self._peer(bundle.source), self.now
        heard = peer.hear(bundle, now)
        if heard is Heard.RESTARTED:
            self._forget_followed(peer)
        if heard is not Heard.SAME:
            self._wake_led(peer)
        for number, message in bundle.messages:
            self._step(number, message)
        if peer.is_about_led(bundle):
            peer.led.confirm(bundle.held)
            self._on_refused(peer, bundle.refused)
        if peer.is_about_followed(bundle):
            self._on_changes(peer, bundle)

    def _step(self, number: int, message: AnyMessage) -> None:
        group = self._groups.get(number)
        if group is None:
            return
        node = group.node
        group.catch_up(self.now)
        if node.resting:
            if (
                type(message) is HeartbeatReply
                and node.role is Role.LEADER
                and message.term == node.term
            ):
                return  # of the last round before it came to rest: nobody waits for it
            self._wake(group)
        self._touch(group)
        node.step(message)

    def advance(
        self, number: int, completion: Completion, then_send: tuple[AnyMessage, ...] = ()
    ) -> None:
        """Something handed over is done. Of a group that is no longer here it is of no interest."""
        group = self._groups.get(number)
        if group is None:
            return
        self._send(number, then_send)
        group.catch_up(self.now)
        self._touch(group)
        group.node.advance(completion)

    # -- what goes out ------------------------------------------------------------------------

    def ready(self) -> HubReady | None:
        """Hand over what is to be done; None where there is nothing."""
        writes: list[tuple[int, Write]] = []
        applies: list[tuple[int, Apply]] = []
        answers: list[tuple[int, Answer]] = []
        busy, self._busy = self._busy, {}
        for number, group in busy.items():
            ready = group.node.ready()
            if ready is not None:
                self._send(number, ready.send)
                if ready.write is not None:
                    writes.append((number, ready.write))
                if ready.apply is not None:
                    applies.append((number, ready.apply))
                answers += [(number, answer) for answer in ready.answers]
            self._settle(group)
        bundles: list[Bundle] = []
        for peer in self._peers.values():
            bundles += peer.take_bundles(self.now)
        if not (bundles or writes or applies or answers):
            return None
        return HubReady(
            bundles=tuple(bundles), writes=tuple(writes), applies=tuple(applies),
            answers=tuple(answers),
        )  # fmt: skip

    def _send(self, number: int, messages: Iterable[AnyMessage]) -> None:
        for message in messages:
            self._peer(message.target).outbox.append((number, message))

    # -- coming to rest -----------------------------------------------------------------------

    def _settle(self, group: Group) -> None:
        """See what has become of a node after all that happened to it."""
        node = group.node
        if not node.resting:
            self._leave_rest(group)
            self._maybe_rest(group)
        due = node.due()
        group.due_at = NEVER if due is None else group.clock + due
        self._queue(group)

    def _maybe_rest(self, group: Group) -> None:
        """Put a group to rest that this node leads and that has been quiet for long enough."""
        node, now = group.node, self.now
        if node.role is not Role.LEADER or not node.may_rest(self._away(node)):
            group.quiet_since = None
            return
        if group.quiet_since is None:
            group.quiet_since = now
        if now - group.quiet_since < self._election_ticks or not self._has_majority(node):
            return
        node.rest_as_leader()
        group.quiet_since = None
        group.led_to = tuple(self._peer(other) for other in node.members.all if other != self.id)
        rest = Rest(group.number, node.term, node.log.last)
        for peer in group.led_to:
            peer.led.add(rest)

    def _away(self, node: Node) -> list[int]:
        """Members of its group that are out of contact."""
        others = [other for other in node.members.all if other != self.id]
        return [other for other in others if not self._peer(other).is_in_contact(self.now)]

    def _has_majority(self, node: Node) -> bool:
        """Whether bundles pass both ways between this hub and a majority of the group's voters."""
        away = self._away(node)
        return node.members.is_majority(lambda voter: voter not in away)

    def _on_changes(self, peer: Peer, bundle: Bundle) -> None:
        """Follow what the peer says of the groups it leads."""
        if not peer.followed.take(bundle.base, bundle.version, bundle.rested, bundle.woken):
            return
        for number in bundle.woken:
            group = self._groups.get(number)
            if group is not None and group.under is peer:
                self._wake(group)
        for rest in bundle.rested:
            self._follow(peer, rest)

    def _follow(self, peer: Peer, rest: Rest) -> None:
        group = self._groups.get(rest.group)
        if group is None:
            peer.refuse(rest.group)
            return
        group.catch_up(self.now)
        if group.node.rest_as_follower(peer.id, rest.term, rest.index):
            if group.under is not peer:
                self._leave_rest(group)
                group.under = peer
            group.due_at = NEVER
        else:
            self._wake(group)
            peer.refuse(rest.group)

    # -- waking -------------------------------------------------------------------------------

    def _wake(self, group: Group) -> None:
        """Let a node's time pass again, a follower's as its leader's hub was heard."""
        if not group.node.resting:
            return
        group.catch_up(self.now)
        under = group.under
        group.node.wake(0 if under is None else under.silent_ticks(self.now))
        self._touch(group)

    def _leave_rest(self, group: Group) -> None:
        """Tell those it rested with."""
        if group.led_to is not None:
            for peer in group.led_to:
                peer.led.remove(group.number)
            group.led_to = None
        if group.under is not None:
            group.under.refuse(group.number)
            group.under = None

    def _on_refused(self, peer: Peer, refused: Iterable[Rest]) -> None:
        for rest in refused:
            if peer.led.resting.get(rest.group) == rest:
                self._wake(self._groups[rest.group])

    def _wake_led(self, peer: Peer) -> None:
        """The peer lets none of the groups rest that this hub leads."""
        for number in peer.led.resting:
            self._wake(self._groups[number])
        peer.led.forget()

    def _forget_followed(self, peer: Peer) -> None:
        """Wake what rests under the peer."""
        for number in peer.followed.resting:
            group = self._groups.get(number)
            if group is not None and group.under is peer:
                self._wake(group)
                group.under = None
        peer.forget_followed()

    def _lose_contact(self, peer: Peer) -> None:
        """Wake the groups that are left without a majority."""
        peer.was_in_contact = False
        for number in peer.led.resting:
            group = self._groups[number]
            if group.node.resting and not self._has_majority(group.node):
                self._wake(group)
