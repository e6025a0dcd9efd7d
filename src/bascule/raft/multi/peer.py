"""One hub's view of another: what it says to it, and when it was last sure of it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Final, TypeAlias

from bascule.raft.messages import AnyMessage, Append, ChunkReply, size_of
from bascule.raft.multi.bundle import Bundle, Rest
from bascule.raft.multi.hibernation import FollowedGroups, LedGroups
from bascule.raft.multi.report import LinkReport

BUNDLE_BYTES_MAX: Final = 4 << 20
"""Payload bytes after which a bundle is closed, so that one group's catching up delays the others
by the time of so much on the wire."""
CHANGES_MAX: Final = 4_096
"""Groups named in one bundle; at some 10 bytes each they fit a few packets."""
NEVER: Final = -(1 << 62)

Outbox: TypeAlias = list[tuple[int, AnyMessage]]


class Heard(Enum):
    """What a bundle says of its sender's memory."""

    SAME = "same"
    FORGOT = "forgot"
    """It has nothing of the groups that this hub leads and has at rest."""
    RESTARTED = "restarted"
    """The same, and none of its own groups rests either."""


class Peer:
    """The link to the hub of node `id`. All times are ticks of this hub."""

    __slots__ = (
        "_contact_ticks", "_election_ticks", "_heartbeat_ticks", "_is_refusal_new", "_owes", "_own",
        "_refused_at", "_sent_at", "_sent_changes_at", "_silent_ticks", "answered_at", "clock",
        "followed", "heard_at", "heard_session", "id", "incarnation", "led", "outbox", "session",
        "was_in_contact",
    )  # fmt: skip

    def __init__(
        self, node_id: int, own: tuple[int, int], *, heartbeat_ticks: int, election_ticks: int
    ) -> None:
        self.id = node_id
        self._own = own
        """(node id, incarnation) of this hub."""
        self._heartbeat_ticks = heartbeat_ticks
        self._election_ticks = election_ticks
        self._contact_ticks = max(election_ticks, 4 * heartbeat_ticks)
        """Two beats pass between a bundle and its answer in the worst case, and one may be lost."""
        self._silent_ticks = max(election_ticks - 1, heartbeat_ticks + 1)
        """A tick less than the least patience of a follower, so that none is late when it wakes."""
        self.outbox: Outbox = []
        self.led = LedGroups()
        self.followed = FollowedGroups()
        self.session = 1
        """Of `followed`; another one where this hub forgot what it had."""
        self.incarnation = 0
        self.heard_session = 0
        self.clock = 0
        """The peer's latest tick that was heard of."""
        self.heard_at = NEVER
        """When that was."""
        self.answered_at = NEVER
        """When this hub sent the latest bundle that the peer has answered."""
        self.was_in_contact = False
        self._owes = False
        self._sent_at = NEVER
        self._sent_changes_at = NEVER
        self._refused_at = NEVER
        self._is_refusal_new = False

    # -- listening ----------------------------------------------------------------------------

    def hear(self, bundle: Bundle, now: int) -> Heard:
        """Take the beat of a bundle, without what it says of groups."""
        heard = Heard.SAME
        if bundle.incarnation != self.incarnation:
            self.incarnation = bundle.incarnation
            self.heard_session = bundle.session
            self.clock, self.heard_at, self.answered_at = bundle.clock, now, NEVER
            heard = Heard.RESTARTED
        elif bundle.session > self.heard_session:
            self.heard_session = bundle.session
            heard = Heard.FORGOT
        if bundle.clock > self.clock:
            self.clock, self.heard_at = bundle.clock, now
        if not self._is_for_this_life(bundle):
            self._owes = True
            return heard
        if self.answered_at < bundle.echo <= now:
            self.answered_at = bundle.echo
            self.was_in_contact = self.is_in_contact(now)
        if bundle.heard_session != self.session or bundle.base < bundle.version:
            self._owes = True
        return heard

    def _is_for_this_life(self, bundle: Bundle) -> bool:
        return bundle.heard_incarnation == self._own[1]

    def is_about_led(self, bundle: Bundle) -> bool:
        """Whether `held` and `refused` are about what this hub leads now."""
        return self._is_for_this_life(bundle) and bundle.session == self.heard_session

    def is_about_followed(self, bundle: Bundle) -> bool:
        """Whether `rested` and `woken` follow what this hub has now."""
        return self._is_for_this_life(bundle) and bundle.heard_session == self.session

    def is_in_contact(self, now: int) -> bool:
        """Whether the peer lately answered: bundles pass both ways."""
        return now - self.answered_at < self._contact_ticks

    def is_silent(self, now: int) -> bool:
        """Whether groups that rest under this peer should have heard of it."""
        return now - self.heard_at >= self._silent_ticks

    def excuse(self, ticks: int) -> None:
        """This hub did not listen for so long."""
        self.heard_at += ticks
        self.answered_at += ticks

    def silent_ticks(self, now: int) -> int:
        return min(now - self.heard_at, self._election_ticks)

    def refuse(self, group: int) -> None:
        """`group`, which the peer leads, does not rest here."""
        if self.followed.refuse(group):
            self._is_refusal_new = True

    def forget_followed(self) -> None:
        """Have the peer wake all its groups that should rest here, when it is heard again."""
        if self.followed.version > 0:
            self.session += 1
        self.followed.forget()
        self._is_refusal_new = False

    def report(self, now: int) -> LinkReport:
        return LinkReport(
            peer=self.id,
            incarnation=self.incarnation,
            is_in_contact=self.is_in_contact(now),
            silent_ticks=None if self.heard_at < 0 else now - self.heard_at,
            led_at_rest=len(self.led.resting),
            followed_at_rest=len(self.followed.resting),
            refused=len(self.followed.refused),
        )

    # -- speaking -----------------------------------------------------------------------------

    def due_at(self, now: int) -> int | None:
        """The tick at which something is to be sent if nothing else happens; None: never."""
        contact = self.is_in_contact(now)
        is_refusal_due = self._is_refusal_new and self.followed.refused
        if self.outbox or (contact and (self.led.has_unsent or is_refusal_due)):
            return now
        if (
            self._owes
            or self.led.resting
            or self.followed.resting
            or (contact and self.led.has_changes)
        ):
            return max(now, self._sent_at + self._heartbeat_ticks)
        return None

    def deadlines(self, now: int) -> list[int]:
        """The ticks at which something is to be done about the peer if nothing else happens."""
        times = []
        if (due_at := self.due_at(now)) is not None:
            times.append(due_at)
        if self.followed.resting:
            times.append(self.heard_at + self._silent_ticks)
        if self.was_in_contact and self.led.resting:
            times.append(self.answered_at + self._contact_ticks)
        return times

    def take_bundles(self, now: int) -> list[Bundle]:
        """What is due now; one bundle, or more where they would become too large."""
        due_at = self.due_at(now)
        if due_at is None or due_at > now:
            return []
        contact = self.is_in_contact(now)
        if (
            contact
            and self.led.has_changes
            and now - self._sent_changes_at >= self._heartbeat_ticks
        ):
            self.led.send_again()
        *parts, last = _parts(self.outbox)
        bundles = [self._bundle(part, now, with_changes=False) for part in parts]
        bundles.append(self._bundle(last, now, with_changes=contact))
        while contact and self.led.has_unsent:
            bundles.append(self._bundle([], now, with_changes=True))
        self.outbox = []
        self._sent_at = now
        self._owes = False
        return bundles

    def _bundle(self, messages: Outbox, now: int, *, with_changes: bool) -> Bundle:
        """A peer that is out of contact is told of changes once it answers."""
        base = version = self.led.confirmed
        rested: tuple[Rest, ...] = ()
        woken: tuple[int, ...] = ()
        refused: tuple[Rest, ...] = ()
        if with_changes:
            if self.led.has_unsent:
                self._sent_changes_at = now
            base, version, rested, woken = self.led.take_changes(CHANGES_MAX)
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
            rested=rested,
            woken=woken,
            refused=refused,
            messages=tuple(messages),
        )

    def _take_refused(self, now: int) -> tuple[Rest, ...]:
        """Refusals that are new or were not heeded for the time of a heartbeat."""
        refused = self.followed.refused
        is_due = self._is_refusal_new or now - self._refused_at >= self._heartbeat_ticks
        self._is_refusal_new = False
        if not refused or not is_due:
            return ()
        self._refused_at = now
        return tuple(islice(refused.values(), CHANGES_MAX))


def _parts(outbox: Outbox) -> Iterator[Outbox]:
    """The messages in their order, in lists of bounded size; one list where there are none."""
    start = size = 0
    for end, (_, message) in enumerate(outbox, 1):
        if type(message) is Append:
            size += sum(map(size_of, message.entries))
        elif type(message) is ChunkReply and message.data is not None:
            size += len(message.data)
        if size >= BUNDLE_BYTES_MAX and end < len(outbox):
            yield outbox[start:end]
            start, size = end, 0
    yield outbox[start:]
