"""The set of hibernating groups, its copy at a peer, and the connection between them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.raft.multi.bundle import Bundle, Hibernation
from bascule.raft.multi.hibernation import FollowedHibernations, LedHibernations
from bascule.raft.multi.peer import Peer, PeerContinuity

GROUPS = st.integers(1, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), GROUPS),
        st.tuples(st.just("remove"), GROUPS),
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("send again"), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.integers(0, 50)),
        st.tuples(st.just("confirm"), st.integers(0, 50)),
        st.tuples(st.just("refuse"), GROUPS),
        st.tuples(st.just("forget"), st.just(0)),
    ),
    max_size=60,
)


class Link:
    """The original, the copy, and all changes and confirmations that were ever sent: any of them
    may
    arrive at any time, as often as it likes, or never."""

    def __init__(self) -> None:
        self.led = LedHibernations()
        self.followed = FollowedHibernations()
        self.session = 0
        self.changes: list[
            tuple[int, tuple[int, int, tuple[Hibernation, ...], tuple[int, ...]]]
        ] = []
        self.confirmations: list[tuple[int, int]] = []
        self.index = 0

    def add(self, group: int) -> None:
        self.index += 1
        self.led.add(Hibernation(group, 1, self.index))

    def remove(self, group: int) -> None:
        self.led.remove(group)

    def send(self, most: int) -> None:
        self.changes.append((self.session, self.led.take_changes(most)))

    def send_again(self, most: int) -> None:
        self.led.resend_unconfirmed()
        self.send(most)

    def deliver(self, number: int) -> None:
        if self.changes:
            session, changes = self.changes[number % len(self.changes)]
            if session == self.session:
                self.followed.take(*changes)
            self.confirmations.append((self.session, self.followed.version))

    def confirm(self, number: int) -> None:
        if self.confirmations:
            session, version = self.confirmations[number % len(self.confirmations)]
            if session == self.session:
                self.led.confirm(version)

    def refuse(self, group: int) -> None:
        self.followed.refuse(group)

    def forget(self, _: int) -> None:
        self.session += 1
        self.led.reset()
        self.followed.reset()


@settings(max_examples=300)
@given(STEPS)
def test_the_copy_follows_the_original_despite_losses(steps: list[tuple[str, int]]) -> None:
    link = Link()
    for name, argument in steps:
        getattr(link, name.replace(" ", "_"))(argument)
        assert link.followed.refused.items() <= link.followed.groups.items()
        assert link.led.confirmed <= link.followed.version <= link.led.version
        if link.followed.version == link.led.version:
            assert link.followed.groups == link.led.groups
    for _ in range(10):
        link.send_again(3)
        link.deliver(len(link.changes) - 1)
        link.confirm(len(link.confirmations) - 1)
    assert link.followed.groups == link.led.groups
    assert not link.led.has_changes
    assert not link.led.has_unsent


def test_changes_are_sent_once_unless_a_resend_is_due() -> None:
    led = LedHibernations()
    one, two = Hibernation(1, 3, 10), Hibernation(2, 3, 20)
    led.add(one)
    assert led.take_changes(9) == (0, 1, (one,), ())
    led.add(two)
    assert led.take_changes(9) == (1, 2, (two,), ())
    assert led.take_changes(9) == (2, 2, (), ())
    led.remove(1)
    led.resend_unconfirmed()
    assert led.take_changes(9) == (0, 3, (two,), (1,))
    led.confirm(2)
    led.resend_unconfirmed()
    assert led.take_changes(9) == (2, 3, (), (1,))
    led.confirm(3)
    assert not led.has_changes


def test_many_changes_are_taken_in_parts() -> None:
    led, followed = LedHibernations(), FollowedHibernations()
    rests = [Hibernation(group, 1, 1) for group in range(1, 8)]
    for rest in rests:
        led.add(rest)
    pieces = []
    while led.has_unsent:
        pieces.append(led.take_changes(3))
    assert [(base, version) for base, version, _, _ in pieces] == [(0, 3), (3, 6), (6, 7)]
    assert not followed.take(*pieces[1]), "a piece is missing before it"
    assert all(followed.take(*piece) for piece in pieces)
    assert list(followed.groups.values()) == rests


def test_removing_an_unknown_group_is_no_change() -> None:
    led = LedHibernations()
    led.remove(5)
    assert (led.version, led.has_changes) == (0, False)


def test_a_refusal_applies_to_one_hibernation() -> None:
    followed = FollowedHibernations()
    followed.take(0, 1, (Hibernation(1, 1, 5),), ())
    assert followed.refuse(1)
    assert not followed.refuse(1), "that is no news"
    assert not followed.refuse(2), "nobody offered it"
    followed.take(1, 2, (Hibernation(1, 1, 6),), ())
    assert not followed.refused
    assert followed.refuse(1)
    followed.take(2, 3, (), (1,))
    assert not followed.refused
    assert not followed.refuse(1)


def beat(**changes: object) -> Bundle:
    """A bundle from node 2, incarnation 22, to node 1, incarnation 11."""
    fields = {
        "source": 2, "target": 1, "incarnation": 22, "heard_incarnation": 11, "clock": 50,
        "echo": 95, "session": 1, "heard_session": 1, "held": 0,
    }  # fmt: skip
    return Bundle(**{**fields, **changes})  # type: ignore[arg-type]


def link() -> Peer:
    """The peer as seen by node 1 at its tick 100."""
    peer = Peer(2, (1, 11), heartbeat_ticks=2, election_ticks=10)
    assert peer.on_heartbeat(beat(), 100) is PeerContinuity.RESTARTED
    return peer


@pytest.mark.parametrize(
    "open_question",
    [
        {"heard_incarnation": 0, "heard_session": 0},
        {"heard_incarnation": 10},
        {"heard_session": 0},
        {"base": 3, "version": 4, "woken": (7,)},
    ],
    ids=["never heard", "of an earlier life", "of an earlier session", "not confirmed"],
)
def test_a_bundle_that_needs_a_reply_gets_one(open_question: dict[str, object]) -> None:
    peer = link()
    assert peer.due_at(100) is None, "they share nothing"
    peer.on_heartbeat(beat(clock=51, **open_question), 101)
    assert peer.due_at(101) == 101
    (answer,) = peer.take_bundles(101)
    assert (answer.heard_incarnation, answer.session, answer.echo) == (22, 1, 51)
    assert peer.due_at(101) is None
    peer.on_heartbeat(beat(clock=51, **open_question), 101)
    assert peer.due_at(101) == 103, "not more often than beats"


def test_a_peer_without_shared_groups_gets_no_reply() -> None:
    peer = link()
    for clock in range(51, 60):
        assert peer.on_heartbeat(beat(clock=clock), 101) is PeerContinuity.CONTINUED
        assert peer.take_bundles(101) == []


def test_contact_needs_a_reply_to_this_incarnation() -> None:
    peer = link()
    assert peer.is_in_contact(104)
    assert not peer.is_in_contact(105), "10 ticks after what was answered left"
    peer.on_heartbeat(beat(clock=51, echo=104, heard_incarnation=9), 105)
    assert not peer.is_in_contact(105)
    peer.on_heartbeat(beat(clock=52, echo=999), 105)
    assert not peer.is_in_contact(105), "it cannot have heard the future"
    peer.on_heartbeat(beat(clock=53, echo=104), 105)
    assert peer.is_in_contact(105)
    assert (
        peer.on_heartbeat(beat(incarnation=23, echo=104, heard_incarnation=11), 105)
        is PeerContinuity.RESTARTED
    )


def test_a_newer_session_differs_from_an_older_one() -> None:
    peer = link()
    assert peer.on_heartbeat(beat(session=3), 100) is PeerContinuity.RESET
    assert peer.on_heartbeat(beat(session=3), 100) is PeerContinuity.CONTINUED
    assert peer.on_heartbeat(beat(session=2), 100) is PeerContinuity.CONTINUED
    assert not peer.is_about_led(beat(session=2))
    assert peer.is_about_led(beat(session=3))
