"""Members of both protocols in one group, while clients are upgraded and back."""

from __future__ import annotations

from typing import NoReturn

import pytest

from bascule.groups.classic import ClassicGroup, JoinRequest
from bascule.groups.consumer import ConsumerGroup, MemberHeartbeat
from bascule.groups.consumer.member import ConsumerMember
from bascule.groups.consumer.messages import NOTHING
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_protocol import encode_assignment
from support.consumer_groups import ClassicConsumer, Consumer, FakeTopics, GroupHost, Owners


@pytest.fixture
def host() -> GroupHost:
    return GroupHost(FakeTopics(flights=6))


def settled_classic(host: GroupHost, *names: str) -> list[ClassicConsumer]:
    consumers = [ClassicConsumer(host, name) for name in names]
    Owners(host, consumers).settle()
    assert isinstance(host.group, ClassicGroup)
    return consumers


@pytest.mark.parametrize("cooperates", [False, True])
def test_a_group_is_upgraded_member_by_member_and_back(host: GroupHost, cooperates: bool) -> None:
    members: list[ClassicConsumer | Consumer] = [*settled_classic(host, "a", "b", "c")]
    owners = Owners(host, members)
    for number, name in enumerate(("A", "B", "C")):
        members[number].leave()
        members[number] = Consumer(host, name)
        owners.settle(beats=150)
        assert isinstance(host.group, ConsumerGroup)
        if cooperates:
            for each in members:
                if isinstance(each, ClassicConsumer):
                    each.cooperates = True
    assert all(each.classic is None for each in host.group.members.values())
    for number, name in enumerate("abc"):
        members[number].leave()
        members[number] = ClassicConsumer(host, name, cooperates=cooperates and number < 2)
        owners.settle(beats=150)
        assert isinstance(host.group, ConsumerGroup) == (number < 2)
    assert host.conversions == 2


def test_partitions_that_there_are_not_are_left_behind() -> None:
    """The leader of a classic group assigns what it likes."""
    topics = FakeTopics(flights=2)
    host = GroupHost(topics)
    (a,) = settled_classic(host, "a")
    odd = encode_assignment({"flights": [-1, 0, 1, 2, 1 << 30], "gone": [0]})
    assert isinstance(host.group, ClassicGroup)
    host.group.members[a.member_id].assignment = odd
    Consumer(host, "b").send()
    member = host.consumer.members[a.member_id]
    assert member.assigned | member.revoking == topics.partitions("flights")


def test_no_records_stay_of_members_that_leave_while_others_are_stored(host: GroupHost) -> None:
    """The group is classic again before their removal was stored."""
    a = ClassicConsumer(host, "a")
    b = Consumer(host, "b")
    Owners(host, [a, b]).settle()
    host.holds_stores = True
    host.send(MemberHeartbeat("c", 0, rebalance_timeout_ms=1, topics=("flights",), owned=NOTHING))
    for name in ("b", "c"):
        assert host.leave(name) is ErrorCode.NONE
    assert isinstance(host.group, ClassicGroup)
    host.holds_stores = False
    host.carry_out()
    assert list(host.stored) == [None]


def test_a_classic_member_does_not_become_larger_than_the_group_may_be() -> None:
    host = GroupHost(FakeTopics(flights=6), bytes_max=2_000)
    (a,) = settled_classic(host, "a")
    b = Consumer(host, "b")
    Owners(host, [a, b]).settle()

    def join(*more: tuple[str, bytes]) -> ErrorCode:
        protocols = (*host.consumer.members[a.member_id].classic.protocols, *more)
        request = JoinRequest(a.member_id, None, 45_000, 60_000, "consumer", protocols)
        error: ErrorCode = host.answers[host.classic_join(request)].error
        return error

    assert join() is ErrorCode.NONE
    assert join(("large", bytes(2_000))) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join(*[("", b"")] * 40) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_classic_member_goes_on_until_it_has_to_give_something_up(host: GroupHost) -> None:
    (a,) = settled_classic(host, "a")
    generation, joins = a.generation, a.joins
    b = Consumer(host, "b")
    b.send()
    b.receive()
    assert b.goal == frozenset()
    assert host.consumer.on_commit(a.member_id, None, generation, host.now_ms) is ErrorCode.NONE
    a.beat()
    assert (a.stage, a.joins) == ("outside", joins), "its heartbeat tells it to join"
    Owners(host, [a, b]).settle()
    assert (len(a.owned), len(b.owned)) == (3, 3)
    assert a.generation == b.epoch
    before = a.joins
    for _ in range(5):
        a.beat()
        b.beat()
    assert a.joins == before
    stale = host.consumer.on_commit(a.member_id, None, generation, host.now_ms)
    assert stale is ErrorCode.ILLEGAL_GENERATION


def test_the_next_coordinator_knows_members_of_both_protocols(host: GroupHost) -> None:
    (a,) = settled_classic(host, "a")
    b = Consumer(host, "b")
    Owners(host, [a, b]).settle()
    before = (a.joins, a.generation, b.epoch, b.assignments)
    host.restart()
    for _ in range(3):
        a.beat()
        b.beat()
    assert (a.joins, a.generation, b.epoch, b.assignments) == before


def test_a_cooperative_member_gives_up_only_what_it_must(host: GroupHost) -> None:
    a = ClassicConsumer(host, "a", cooperates=True)
    Owners(host, [a]).settle()
    owned = a.owned
    b = Consumer(host, "b")
    members = [a, b]
    for _ in range(10):
        for each in members:
            each.beat()
            Owners(host, members).check()
            assert a.owned <= owned, "what it keeps it has all the time"
            assert len(a.owned) >= 3
    assert len(b.owned) == 3


def test_other_protocols_do_not_mix(host: GroupHost) -> None:
    connect = JoinRequest("", None, 10_000, 10_000, "connect", (("a", b""),), new_member_id="w")
    ticket = host.classic_join(connect)
    ticket = (
        host.classic_join(
            JoinRequest("w", None, 10_000, 10_000, "connect", (("a", b""),), new_member_id="x")
        )
        if host.answers[ticket].error
        else ticket
    )
    assert isinstance(host.group, ClassicGroup)
    from bascule.groups.consumer import to_consumer_group

    assert to_consumer_group(host.group, host.limits, host.topics, "x", host.now_ms) is None
    host = GroupHost(FakeTopics(flights=6))
    host.join("b", "flights")
    ticket = host.ticket()
    host.group.on_join(connect, ticket, host.now_ms)
    host.carry_out()
    assert host.answers[ticket].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class Unlisted(dict[str, ConsumerMember]):
    """Members that nobody may go through."""

    def values(self) -> NoReturn:
        raise AssertionError("the cost depends on the number of members")

    items = __iter__ = values


def test_a_join_is_checked_without_a_look_at_all_members(host: GroupHost) -> None:
    settled_classic(host, *"abcde")
    Consumer(host, "f").send()
    roster = host.consumer.roster
    roster.members = Unlisted(roster.members)
    own = next(iter(host.consumer.members.keys()))
    for member_id, names, is_taken in (
        ("", ("other",), False),
        ("", ("range",), True),
        (own, ("other",), False),
        (own, ("other", "range"), True),
    ):
        request = JoinRequest(
            member_id, None, 10_000, 10_000, "consumer", tuple((name, b"") for name in names),
            new_member_id="n",
        )  # fmt: skip
        error, _ = host.consumer._classic._join_error(request)
        # What is taken fails later: its metadata are none.
        assert error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert roster.have_protocol(names, besides=roster.members.get(member_id)) == is_taken


def test_a_member_that_is_behind_is_remembered_when_the_group_is_converted(host: GroupHost) -> None:
    """It has not joined since a member of the other protocol came, which has left already."""
    a, b = settled_classic(host, "a", "b")
    c = Consumer(host, "c")
    c.beat()
    while a.generation == b.generation:
        a.beat()
        c.beat()

    def answers() -> tuple[ErrorCode, ErrorCode]:
        commit = host.group.on_commit(b.member_id, None, b.generation, host.now_ms)
        return host.classic_heartbeat(b.member_id, b.generation), commit

    known = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE)
    assert answers() == known
    c.leave()
    assert isinstance(host.group, ClassicGroup)
    assert host.group.generation == a.generation
    assert answers() == known
    d = Consumer(host, "d")
    d.beat()
    assert isinstance(host.group, ConsumerGroup)
    assert answers() == known
    d.leave()
    assert answers() == known
    before = b.generation
    Owners(host, [a, b]).settle()
    stale = host.group.on_heartbeat(b.member_id, None, before, host.now_ms)
    assert stale is ErrorCode.ILLEGAL_GENERATION


def test_what_a_member_has_not_given_up_stays_its_when_the_group_is_converted(
    host: GroupHost,
) -> None:
    a = ClassicConsumer(host, "a", cooperates=True)
    Owners(host, [a]).settle()
    b, c = Consumer(host, "b"), Consumer(host, "c")
    b.beat()
    a.beat()
    a.beat()
    assert a.stage == "joining", "it has been told nothing yet"
    assert host.consumer.members[a.member_id].revoking
    b.leave()
    assert isinstance(host.group, ClassicGroup)
    c.beat()
    assert isinstance(host.group, ConsumerGroup)
    assert (len(a.owned), c.owned) == (6, frozenset())
    Owners(host, [a, c]).settle()
