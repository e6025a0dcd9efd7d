"""Any history of consumers of both protocols keeps the promises, and the history finds mistakes.

Requests and answers are lost and repeated, consumers die, are slow, and come back; batches are not
stored, coordinators move, streams grow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.groups.classic import ClassicGroup
from bascule.groups.consumer import ConsumerGroup, heartbeats, journal, member, roster
from bascule.groups.consumer import reconcile as reconciling
from bascule.groups.consumer.member import ConsumerMember, MemberState
from bascule.wire.error_codes import ErrorCode
from support.consumer_groups import (
    SESSION_MS,
    ClassicConsumer,
    Consumer,
    FakeTopics,
    GroupHost,
    Owners,
)

CONSUMERS = 5
STATIC = 1
"""The one with an instance id."""
CLASSIC = 2
"""The last ones speak the classic protocol at first, in a mixed history."""

ACTIONS = (
    ["beat"] * 10
    + ["all"] * 4
    + ["send"] * 4
    + ["receive"] * 3
    + ["apply"] * 3
    + ["time"] * 3
    + ["lose", "repeat", "twice", "die", "leave", "hold", "hold", "stored", "fail"]
    + ["restart", "roll", "away", "away", "grow", "subscribe", "expression", "long"]
)
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, CONSUMERS - 1)), max_size=150)


class History:
    """Consumers of one group. If it `is_mixed`, some speak the classic protocol, and who leaves
    comes back with the other one."""

    def __init__(self, *, is_mixed: bool = False) -> None:
        self.topics = FakeTopics(flights=7, hotels=4)
        self.host = GroupHost(self.topics)
        self.made = 0
        self.is_mixed = is_mixed
        self.classic = {CONSUMERS - 1 - n for n in range(CLASSIC)} if is_mixed else set()
        self.consumers = [self.new(n) for n in range(CONSUMERS)]
        self.owners = Owners(self.host, self.consumers)

    def new(self, number: int) -> Any:
        self.made += 1
        name = f"{number}-{self.made}"
        if number in self.classic:
            return ClassicConsumer(self.host, name)
        return Consumer(self.host, name, instance_id="static" if number == STATIC else None)

    def step(self, action: str, number: int) -> None:
        consumer, host = self.consumers[number], self.host
        match action:
            case "all":
                for each in self.consumers:
                    each.beat()
                    self.owners.check()
            case "time":
                host.pass_time(2_000)
            case "long":
                host.pass_time(SESSION_MS)
            case "hold":
                host.holds_stores = True
            case "stored" if host.held:
                host.finish_store()
            case "fail" if host.held:
                host.finish_store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            case "restart":
                host.restart()
            case "grow" if len(self.topics.partitions("flights")) < 20:
                self.topics.grow("flights", len(self.topics.partitions("flights")) + 2)
            case "die":
                self.consumers[number] = self.new(number)
            case "away" if isinstance(consumer, Consumer) and consumer.instance_id is not None:
                # It is closed, and another process begins in its place.
                consumer.leave(for_a_while=True)
                self.consumers[number] = self.new(number)
            case "leave":
                consumer.leave()
                if self.is_mixed:
                    self.classic ^= {number}
                    self.consumers[number] = self.new(number)
            case "roll" if self.is_mixed:
                # Each goes over to the protocol of the first one.
                for n in range(CONSUMERS):
                    self.consumers[n].leave()
                    self.classic = self.classic | {n} if 0 in self.classic else self.classic - {n}
                    self.consumers[n] = self.new(n)
                    self.owners.check()
                    for each in self.consumers:
                        each.beat()
            case "beat":
                consumer.beat()
            case _ if isinstance(consumer, Consumer):
                self._consumer_step(action, consumer)
        self.owners.check()

    def _consumer_step(self, action: str, consumer: Consumer) -> None:
        match action:
            case "send":
                consumer.send()
            case "receive":
                consumer.receive()
            case "apply":
                consumer.apply()
            case "lose":
                consumer.lose()
            case "repeat" if consumer.ticket is None:
                # The request comes twice, and the answer to the second one is taken.
                request = consumer.request()
                self.host.send(request)
                consumer.ticket = self.host.send(request)
            case "twice" if consumer.ticket is None:
                # The answer to a heartbeat is lost, and another heartbeat follows.
                consumer.send()
                consumer.lose()
                consumer.send()
            case "subscribe":
                both = len(consumer.topics) == 2
                consumer.topics = ("flights",) if both else ("flights", "hotels")
                consumer.regex = ""
            case "expression":
                consumer.topics, consumer.regex = (), "flights|hot.*"

    def settle(self) -> None:
        self.owners.settle(beats=200)
        if self.is_mixed:
            return
        self._check_balance()
        self._check_stays()

    def _check_balance(self) -> None:
        """No single move would bring two consumers closer together."""
        for a in self.consumers:
            for b in self.consumers:
                if len(a.owned) - len(b.owned) > 1:
                    names = self.owners._names(b)
                    movable = a.owned & self.topics.partitions(*names)
                    assert not movable, (a.name, len(a.owned), b.name, len(b.owned))

    def _check_stays(self) -> None:
        """Nothing changes any more, also not with the next coordinator."""
        before = [(each.epoch, each.assignments, each.owned) for each in self.consumers]
        self.host.restart()
        for _ in range(3):
            for each in self.consumers:
                each.says_all = True
                each.beat()
            self.host.pass_time(1_000)
        assert before == [(each.epoch, each.assignments, each.owned) for each in self.consumers]


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_any_history_keeps_the_promises(steps: list[tuple[str, int]]) -> None:
    history = History()
    for action, number in steps:
        history.step(action, number)
    history.settle()


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_any_history_of_both_protocols_keeps_the_promises(steps: list[tuple[str, int]]) -> None:
    history = History(is_mixed=True)
    for action, number in steps:
        history.step(action, number)
    history.settle()


def test_little_moves_when_a_consumer_comes_or_goes() -> None:
    history = History()
    history.settle()
    before = [each.owned for each in history.consumers]
    comes = Consumer(history.host, "comes")
    history.consumers.append(comes)
    history.owners.settle()
    for consumer, had in zip(history.consumers, before, strict=False):
        assert consumer.owned <= had, "nothing moves between those that stay"
    before = [each.owned for each in history.consumers]
    history.consumers.remove(comes)
    comes.leave()
    history.owners.settle()
    for consumer, had in zip(history.consumers, before, strict=False):
        assert consumer.owned >= had


def test_the_mixed_histories_convert_groups_in_both_directions() -> None:
    dice, up, down = random.Random(7), 0, 0
    history = History(is_mixed=True)
    for _ in range(600):
        before = type(history.host.group)
        history.step(dice.choice(ACTIONS), dice.randrange(CONSUMERS))
        after = type(history.host.group)
        up += (before, after) == (ClassicGroup, ConsumerGroup)
        down += (before, after) == (ConsumerGroup, ClassicGroup)
    assert min(up, down) >= 3


# -- mistakes that the histories find -----------------------------------------------------------


def nobody_waits_for_a_revocation(patch: pytest.MonkeyPatch) -> None:
    """Partitions are free as soon as they are taken away."""
    right = reconciling.reconcile

    def reconcile(member: ConsumerMember, epoch: int, owned: Any, is_free: Any) -> bool:
        return right(member, epoch, frozenset(), is_free)

    patch.setattr(roster, "reconcile", reconcile)


def everything_is_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roster._IsFree, "__call__", lambda *_: True)


def a_restart_forgets_what_is_revoked(patch: pytest.MonkeyPatch) -> None:
    right = roster.decode_member

    def decode_member(*args: Any) -> Any:
        found, incarnation = right(*args)
        found.revoking = frozenset()
        return found, incarnation

    patch.setattr(roster, "decode_member", decode_member)


def answers_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """They tell what may not be stored."""
    right = journal.Journal.answer

    def answer(self: Any, ticket: int, told: Any) -> bool:
        if not right(self, ticket, told):
            return False
        self.forget(ticket)
        self.tell(ticket, told)
        return True

    patch.setattr(journal.Journal, "answer", answer)


def a_failed_batch_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = journal.Journal.on_stored

    def on_stored(self: Any, number: int, error: ErrorCode) -> None:
        right(self, number, error)
        if error:
            self._changed.clear()

    patch.setattr(journal.Journal, "on_stored", on_stored)


def unreleased_members_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A member does not get what becomes free later."""
    right = reconciling.reconcile

    def reconcile(member: ConsumerMember, *args: Any) -> bool:
        if member.state is MemberState.UNRELEASED:
            return False
        return right(member, *args)

    patch.setattr(roster, "reconcile", reconcile)


def a_late_join_releases(patch: pytest.MonkeyPatch) -> None:
    """A join of a member that is there says that it owns nothing."""
    right = heartbeats.Heartbeats._live

    def live(self: Any, request: Any, found: Any, now_ms: int) -> Any:
        if found is not None and request.epoch == 0 and not found.is_away:
            self._roster._free(found, found.assigned | found.revoking)
            found.assigned = found.revoking = frozenset()
        return right(self, request, found, now_ms)

    patch.setattr(heartbeats.Heartbeats, "_live", live)


def streams_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roster.Roster, "has_new_topics", property(lambda _: False))


def nobody_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member.ConsumerMember, "deadline_ms", lambda *_: 1 << 60)


def classic_members_keep_their_share(patch: pytest.MonkeyPatch) -> None:
    """Nobody tells them to join again."""
    from bascule.groups.consumer.classic_members import ClassicMembers

    patch.setattr(
        ClassicMembers,
        "on_heartbeat",
        lambda self, member_id, instance_id, generation, _: self._member_error(
            member_id, instance_id, generation
        ),
    )


MISTAKES: list[tuple[Callable[[pytest.MonkeyPatch], None], bool]] = [
    (nobody_waits_for_a_revocation, False),
    (everything_is_free, False),
    (a_restart_forgets_what_is_revoked, False),
    (answers_do_not_wait, False),
    (a_failed_batch_is_forgotten, False),
    (unreleased_members_are_forgotten, False),
    (a_late_join_releases, False),
    (streams_do_not_grow, False),
    (nobody_expires, False),
    (classic_members_keep_their_share, True),
]


def seeded_histories(is_mixed: bool) -> Iterator[None]:
    for seed in range(400):
        dice = random.Random(seed)
        history = History(is_mixed=is_mixed)
        for _ in range(dice.randrange(150)):
            history.step(dice.choice(ACTIONS), dice.randrange(CONSUMERS))
        history.settle()
        yield


@pytest.mark.parametrize(
    ("mistake", "is_mixed"), [pytest.param(*each, id=each[0].__name__) for each in MISTAKES]
)
def test_the_histories_find_mistakes(
    monkeypatch: pytest.MonkeyPatch,
    mistake: Callable[[pytest.MonkeyPatch], None],
    is_mixed: bool,
) -> None:
    mistake(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        for _ in seeded_histories(is_mixed):
            pass
