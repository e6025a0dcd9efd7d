"""The state that `MultiRaft` keeps for the process of one other node."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from bascule.raft.messages import AnyMessage, AppendRequest, ChunkReply, size_of
from bascule.raft.multi.bundle import Bundle, Hibernation
from bascule.raft.multi.hibernation import FollowedHibernations, LedHibernations

BUNDLE_BYTES_MAX: Final = 4 << 20
"""Payload bytes after which a bundle is closed. It bounds the delay of other groups' messages by a
group that catches up."""
CHANGES_MAX: Final = 4_096
"""Groups named in one bundle; at some 10 bytes each they fit a few packets."""
LONG_AGO: Final = -(1 << 62)
"""Less than every tick: the time of an event that never happened."""

Outbox: TypeAlias = list[tuple[int, AnyMessage]]


class PeerReport(msgspec.Struct, frozen=True):
    """The state of the connection to one other process."""

    peer: int
    incarnation: int
    """0: never heard."""
    is_in_contact: bool
    """Whether bundles have recently passed in both directions."""
    silent_ticks: int | None
    """Ticks since it was heard; None: never."""
    led_hibernating: int
    """Groups that hibernate with their leader here."""
    followed_hibernating: int
    """Groups that hibernate with their leader there, refused ones included."""
    refused: int
    """The ones among them that do not hibernate here."""


class PeerContinuity(Enum):
    """Whether a peer still has the state that it had at its previous bundle."""

    CONTINUED = "continued"
    RESET = "reset"
    """It lost its copy of the hibernating groups that this process leads."""
    RESTARTED = "restarted"
    """It also lost its own set: none of the groups that it leads hibernates."""


class Peer:
    """The process of node `id`. All times are ticks of this process."""

    __slots__ = (
        "_contact_ticks",
        "_election_ticks",
        "_heartbeat_ticks",
        "_is_refusal_new",
        "_own",
        "_refused_at",
        "_reply_due",
        "_sent_at",
        "_sent_changes_at",
        "_silent_ticks",
        "answered_at",
        "clock",
        "followed",
        "heard_at",
        "heard_session",
        "id",
        "incarnation",
        "led",
        "outbox",
        "session",
        "was_in_contact",
    )  # fmt: skip

    def __init__(
        self, node_id: int, own: tuple[int, int], *, heartbeat_ticks: int, election_ticks: int
    ) -> None:
        self.id = node_id
        self._own = own
        """(node id, incarnation) of this process."""
        self._heartbeat_ticks = heartbeat_ticks
        self._election_ticks = election_ticks
        self._contact_ticks = max(election_ticks, 4 * heartbeat_ticks)
        """At worst two heartbeats pass between a bundle and its reply, and one may be lost."""
        self._silent_ticks = max(election_ticks - 1, heartbeat_ticks + 1)
        """One tick less than the minimum election timeout, so that no follower wakes late."""
        self.outbox: Outbox = []
        self.led = LedHibernations()
        self.followed = FollowedHibernations()
        self.session = 1
        """Identifies the copy in `followed`; rises when that is reset."""
        self.incarnation = 0
        self.heard_session = 0
        self.clock = 0
        """The latest tick of the peer that arrived."""
        self.heard_at = LONG_AGO
        """The tick at which it arrived."""
        self.answered_at = LONG_AGO
        """The tick at which the latest bundle that the peer replied to was sent."""
        self.was_in_contact = False
        self._reply_due = False
        self._sent_at = LONG_AGO
        self._sent_changes_at = LONG_AGO
        self._refused_at = LONG_AGO
        self._is_refusal_new = False

    # -- receiving ----------------------------------------------------------------------------

    def on_heartbeat(self, bundle: Bundle, now: int) -> PeerContinuity:
        """Take the heartbeat of a bundle, without its changes and messages."""
        continuity = PeerContinuity.CONTINUED
        if bundle.incarnation != self.incarnation:
            self.incarnation = bundle.incarnation
            self.heard_session = bundle.session
            self.clock, self.heard_at, self.answered_at = bundle.clock, now, LONG_AGO
            continuity = PeerContinuity.RESTARTED
        elif bundle.session > self.heard_session:
            self.heard_session = bundle.session
            continuity = PeerContinuity.RESET
        if bundle.clock > self.clock:
            self.clock, self.heard_at = bundle.clock, now
        if not self._is_for_this_incarnation(bundle):
            self._reply_due = True
            return continuity
        if self.answered_at < bundle.echo <= now:
            self.answered_at = bundle.echo
            self.was_in_contact = self.is_in_contact(now)
        if bundle.heard_session != self.session or bundle.base < bundle.version:
            self._reply_due = True
        return continuity

    def _is_for_this_incarnation(self, bundle: Bundle) -> bool:
        return bundle.heard_incarnation == self._own[1]

    def is_about_led(self, bundle: Bundle) -> bool:
        """Whether `held` and `refused` refer to the present state of `led`."""
        return self._is_for_this_incarnation(bundle) and bundle.session == self.heard_session

    def is_about_followed(self, bundle: Bundle) -> bool:
        """Whether `hibernated` and `woken` refer to the present state of `followed`."""
        return self._is_for_this_incarnation(bundle) and bundle.heard_session == self.session

    def is_in_contact(self, now: int) -> bool:
        """Whether the peer replied recently, so that bundles pass in both directions."""
        return now - self.answered_at < self._contact_ticks

    def is_silent(self, now: int) -> bool:
        """Whether the groups that hibernate under this peer should have heard from it."""
        return now - self.heard_at >= self._silent_ticks

    def discount_stall(self, ticks: int) -> None:
        """This process stalled for this many ticks; they do not count as silence of the peer."""
        self.heard_at += ticks
        self.answered_at += ticks

    def silent_ticks(self, now: int) -> int:
        return min(now - self.heard_at, self._election_ticks)

    def refuse(self, group: int) -> None:
        """`group`, which the peer leads, does not hibernate here."""
        if self.followed.refuse(group):
            self._is_refusal_new = True

    def reset_followed(self) -> None:
        """Reset the copy. The peer wakes all its groups in it when it learns of the new session."""
        if self.followed.version > 0:
            self.session += 1
        self.followed.reset()
        self._is_refusal_new = False

    def report(self, now: int) -> PeerReport:
        return PeerReport(
            peer=self.id,
            incarnation=self.incarnation,
            is_in_contact=self.is_in_contact(now),
            silent_ticks=None if self.heard_at < 0 else now - self.heard_at,
            led_hibernating=len(self.led.groups),
            followed_hibernating=len(self.followed.groups),
            refused=len(self.followed.refused),
        )

    # -- sending ------------------------------------------------------------------------------

    def due_at(self, now: int) -> int | None:
        """The tick at which a bundle is due if nothing else happens; None: never."""
        # Asked of each peer at each tick and after each bundle, so it makes few calls.
        if self.outbox:
            return now
        led, followed = self.led, self.followed
        has_news = led.changes or (self._is_refusal_new and followed.refused)
        contact = has_news and self.is_in_contact(now)
        if contact and (led.has_unsent or (self._is_refusal_new and followed.refused)):
            return now
        if self._reply_due or led.groups or followed.groups or (contact and led.changes):
            return max(now, self._sent_at + self._heartbeat_ticks)
        return None

    def deadlines(self, now: int) -> list[int]:
        """The ticks at which something is due for the peer if nothing else happens."""
        times = []
        if (due_at := self.due_at(now)) is not None:
            times.append(due_at)
        if self.followed.groups:
            times.append(self.heard_at + self._silent_ticks)
        if self.was_in_contact and self.led.groups:
            times.append(self.answered_at + self._contact_ticks)
        return times

    def take_bundles(self, now: int) -> list[Bundle]:
        """The bundles that are due now; several where one would be too large."""
        due_at = self.due_at(now)
        if due_at is None or due_at > now:
            return []
        contact = self.is_in_contact(now)
        if contact and self.led.changes and now - self._sent_changes_at >= self._heartbeat_ticks:
            self.led.resend_unconfirmed()
        *parts, last = _parts(self.outbox)
        bundles = [self._bundle(part, now, with_changes=False) for part in parts]
        bundles.append(self._bundle(last, now, with_changes=contact))
        while contact and self.led.has_unsent:
            bundles.append(self._bundle([], now, with_changes=True))
        self.outbox = []
        self._sent_at = now
        self._reply_due = False
        return bundles

    def _bundle(self, messages: Outbox, now: int, *, with_changes: bool) -> Bundle:
        """Changes are not sent to a peer that is out of contact, until it replies."""
        base = version = self.led.confirmed
        hibernated: tuple[Hibernation, ...] = ()
        woken: tuple[int, ...] = ()
        refused: tuple[Hibernation, ...] = ()
        if with_changes:
            if self.led.has_unsent:
                self._sent_changes_at = now
            base, version, hibernated, woken = self.led.take_changes(CHANGES_MAX)
            refused = self._take_refused(now)
        return Bundle(
            source=self._own[0],
            target=self.id,
            incarnation=self._own[1],
            heard_incarnation=self.incarnation,
            clock=now,
            echo=self.clock,
            session=self.session,
            heard_session=self.heard_session,
            held=self.followed.version,
            base=base,
            version=version,
            hibernated=hibernated,
            woken=woken,
            refused=refused,
            messages=tuple(messages),
        )

    def _take_refused(self, now: int) -> tuple[Hibernation, ...]:
        """Refusals that are new, or that had no effect for a heartbeat interval."""
        refused = self.followed.refused
        is_due = self._is_refusal_new or now - self._refused_at >= self._heartbeat_ticks
        self._is_refusal_new = False
        if not refused or not is_due:
            return ()
        self._refused_at = now
        return tuple(islice(refused.values(), CHANGES_MAX))


def _parts(outbox: Outbox) -> Iterator[Outbox]:
    """The messages in their order, in lists of bounded size; one empty list if there are none."""
    start = size = 0
    for end, (_, message) in enumerate(outbox, 1):
        if type(message) is AppendRequest:
            size += sum(map(size_of, message.entries))
        elif type(message) is ChunkReply and message.data is not None:
            size += len(message.data)
        if size >= BUNDLE_BYTES_MAX and end < len(outbox):
            yield outbox[start:end]
            start, size = end, 0
    yield outbox[start:]
