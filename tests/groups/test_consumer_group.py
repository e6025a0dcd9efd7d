"""The consumer group protocol (KIP-848), request by request."""

from __future__ import annotations

from typing import Any

import pytest

from bascule.groups.consumer import ConsumerGroupState, MemberHeartbeat, TopicPartition
from bascule.groups.consumer.regexes import regex_error
from bascule.wire.error_codes import ErrorCode
from support.consumer_groups import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    FakeTopics,
    GroupHost,
    Owners,
)

NONE = ErrorCode.NONE


@pytest.fixture
def topics() -> FakeTopics:
    return FakeTopics(flights=6, hotels=4)


@pytest.fixture
def host(topics: FakeTopics) -> GroupHost:
    return GroupHost(topics)


def settled(host: GroupHost, *names: str) -> list[Consumer]:
    """Consumers that share the partitions of flights."""
    consumers = [Consumer(host, name) for name in names]
    Owners(host, consumers).settle()
    return consumers


def test_a_member_alone_gets_everything_at_once(host: GroupHost, topics: FakeTopics) -> None:
    answer = host.join("a", "flights", "hotels")
    assert (answer.error, answer.member_id, answer.epoch) == (NONE, "a", 1)
    assert answer.assigned == topics.partitions("flights", "hotels")
    assert answer.interval_ms == 500, "others may follow"
    host.pass_time(5_000)
    assert host.heartbeat("a", 1).interval_ms == 5_000
    assert host.consumer.state is ConsumerGroupState.STABLE


def test_a_heartbeat_without_news_says_nothing_and_stores_nothing(host: GroupHost) -> None:
    host.join("a", "flights")
    stored = dict(host.stored)
    host.stored.clear()
    answer = host.heartbeat("a", 1)
    assert (answer.error, answer.epoch, answer.assigned) == (NONE, 1, None)
    assert not host.stored
    assert stored


def test_a_heartbeat_without_news_looks_at_one_member(
    host: GroupHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers = settled(host, *(f"m{n}" for n in range(50)))
    for each in consumers:
        each.beat()

    class OneByOne(dict):  # type: ignore[type-arg]
        """Looks things up, and refuses to go through all of them."""

        def __iter__(self) -> Any:
            raise AssertionError("a heartbeat went through the members")

        values = items = keys = __iter__  # type: ignore[assignment]

    roster = host.consumer.roster
    monkeypatch.setattr(roster, "members", OneByOne(roster.members))
    for each in consumers:
        request = each.request()
        assert request.owned is None
        answer = host.consumer.on_member_heartbeat(request, host.ticket(), host.now_ms)
        assert answer is not None
        assert answer.error is NONE


def test_a_member_that_says_all_is_told_all(host: GroupHost, topics: FakeTopics) -> None:
    host.join("a", "flights")
    mine = topics.partitions("flights")
    answer = host.heartbeat("a", 1, rebalance_timeout_ms=1, topics=("flights",), owned=mine)
    assert answer.assigned == mine


def test_a_second_member_waits_until_the_first_has_given_up(
    host: GroupHost, topics: FakeTopics
) -> None:
    host.join("a", "flights")
    mine = topics.partitions("flights")
    second = host.join("b", "flights")
    assert (second.epoch, second.assigned) == (2, frozenset())
    assert second.interval_ms == 500, "it asks again soon"
    assert host.consumer.state is ConsumerGroupState.RECONCILING
    first = host.heartbeat("a", 1)
    assert first.assigned is not None
    assert (first.epoch, len(first.assigned)) == (1, 3), "it has to give up before its epoch rises"
    assert host.heartbeat("b", 2).assigned is None
    assert host.heartbeat("a", 1, owned=mine).epoch == 1, "it owns them still"
    assert host.heartbeat("b", 2).assigned is None
    assert host.heartbeat("a", 1, owned=first.assigned).epoch == 2
    assert host.heartbeat("b", 2).assigned == mine - first.assigned
    assert host.consumer.state is ConsumerGroupState.STABLE


def test_a_member_that_leaves_frees_its_partitions(host: GroupHost, topics: FakeTopics) -> None:
    a, b = settled(host, "a", "b")
    b.leave()
    a.beat()
    assert a.owned == topics.partitions("flights")


def test_a_silent_member_is_removed_after_its_session(host: GroupHost, topics: FakeTopics) -> None:
    a, _b = settled(host, "a", "b")
    host.pass_time(SESSION_MS - 1_001)
    a.beat()
    assert len(host.group.members) == 2
    host.pass_time(2_000)
    assert list(host.group.members) == ["a"]
    a.beat()
    assert a.owned == topics.partitions("flights")
    assert host.heartbeat("b", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_give_up_in_time_is_removed(host: GroupHost, topics: FakeTopics) -> None:
    host.join("a", "flights")
    host.join("b", "flights")
    host.heartbeat("a", 1)
    for _ in range(REBALANCE_MS // 1_000 + 1):
        host.heartbeat("b", host.group.members["b"].epoch)  # type: ignore[union-attr]
        if "a" in host.group.members:
            host.heartbeat("a", 1)
        host.pass_time(1_000)
    assert list(host.group.members) == ["b"]
    assert host.heartbeat("a", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("epoch", [2, 7])
def test_an_epoch_that_is_not_the_member_s_is_fenced(host: GroupHost, epoch: int) -> None:
    host.join("a", "flights")
    assert host.heartbeat("a", epoch).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_epoch_before_is_good_while_the_answer_may_be_lost(
    host: GroupHost, topics: FakeTopics
) -> None:
    a, b = settled(host, "a", "b")
    epoch = a.epoch
    b.leave()
    host.send(MemberHeartbeat("a", epoch))  # its answer is lost
    assert host.heartbeat("a", epoch).error is ErrorCode.FENCED_MEMBER_EPOCH
    everything = {"rebalance_timeout_ms": REBALANCE_MS, "topics": ("flights",)}
    answer = host.heartbeat("a", epoch, owned=a.owned, **everything)
    assert (answer.error, answer.epoch) == (NONE, epoch + 1)
    assert answer.assigned == topics.partitions("flights")
    foreign = frozenset({TopicPartition(b"?" * 16, 0)})
    answer = host.heartbeat("a", epoch, owned=foreign, **everything)
    assert answer.error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_join_that_is_repeated_is_told_the_same(host: GroupHost) -> None:
    first = host.join("a", "flights")
    assert host.join("a", "flights") == first


def test_a_late_copy_of_a_join_gives_nothing_up(host: GroupHost, topics: FakeTopics) -> None:
    host.join("a", "flights")
    host.join("b", "flights")
    answer = host.join("a", "flights")
    assert answer.assigned == topics.partitions("flights")
    assert host.heartbeat("b", 2).assigned is None


def test_commits_and_reads_of_offsets_are_fenced_by_the_epoch(host: GroupHost) -> None:
    host.join("a", "flights")
    group, now_ms = host.consumer, host.now_ms
    assert group.on_commit("a", None, 1, now_ms) is NONE
    assert group.on_commit("a", None, 2, now_ms) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.on_commit("a", None, 0, now_ms) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.on_commit("b", None, 1, now_ms) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.on_commit("", None, -1, now_ms) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.on_fetch("a", 1) is NONE
    assert group.on_fetch("a", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.on_fetch("b", 1) is ErrorCode.UNKNOWN_MEMBER_ID


JOIN = {"rebalance_timeout_ms": 1_000, "topics": ("flights",), "owned": frozenset()}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topics": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": frozenset({TopicPartition(b"x" * 16, 0)})}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "x" * 251}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"topics": None, "regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"topics": None, "regex": r"(a)\1"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"topics": None, "regex": "a" * 1_001}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"topics": None, "regex": "((.?){40}){20}x"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_what_is_refused(host: GroupHost, fields: dict[str, object], error: ErrorCode) -> None:
    request = {"member_id": "a", "epoch": 0, **JOIN, **fields}
    answer = host.heartbeat(**request)  # type: ignore[arg-type]
    assert answer.error is error
    assert answer.reason
    assert not host.group.members
    assert host.consumer.is_forgettable


def test_a_group_has_a_largest_size(topics: FakeTopics) -> None:
    host = GroupHost(topics, members_max=2)
    host.join("a", "flights")
    host.join("b", "flights")
    assert host.join("c", "flights").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    host = GroupHost(topics, bytes_max=1_000)
    assert host.join("a", *("x" * 100 + str(n) for n in range(10))).error is (
        ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    for large in ({"rack_id": "x" * 1_000}, {"instance_id": "x" * 1_000}):
        assert host.join("a", "flights", **large).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_of_a_full_group_may_say_again_what_it_has_said(topics: FakeTopics) -> None:
    """As clients do that have missed an answer, and after a change of the coordinator."""
    host = GroupHost(topics, bytes_max=1_000)
    names = ["flights", *("x" * 100 + str(n) for n in range(5))]
    joined = host.join("a", *names)
    assert joined.error is ErrorCode.NONE
    topics.grow("flights", 30)
    said = {"topics": tuple(names), "owned": joined.assigned, "rebalance_timeout_ms": 60_000}
    assert host.heartbeat("a", joined.epoch, **said).error is ErrorCode.NONE
    assert host.group.size_bytes > 1_000, "with the partitions that were added"
    again = host.heartbeat("a", joined.epoch + 1, **said)
    assert again.error is ErrorCode.NONE
    said["topics"] += ("y",)
    more = host.heartbeat("a", joined.epoch + 1, **said)
    assert more.error is ErrorCode.GROUP_MAX_SIZE_REACHED


# -- static members -----------------------------------------------------------------------------


def test_a_static_member_comes_back_to_its_partitions(host: GroupHost) -> None:
    a = Consumer(host, "a", instance_id="one")
    b = Consumer(host, "b", instance_id="two")
    Owners(host, [a, b]).settle()
    owned, epoch = b.owned, host.consumer.epoch
    b.leave(for_a_while=True)
    for _ in range(4):
        host.pass_time(10_000)
        a.beat()
    assert len(a.owned) == 3, "its partitions are kept for it"
    again = Consumer(host, "b again", instance_id="two")
    again.beat()
    assert (again.owned, again.epoch) == (owned, epoch)
    assert host.consumer.epoch == epoch, "no rebalance"
    answer = host.heartbeat("b", epoch, instance_id="two")
    assert answer.error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_removed(host: GroupHost, topics: FakeTopics) -> None:
    a = Consumer(host, "a", instance_id="one")
    b = Consumer(host, "b", instance_id="two")
    Owners(host, [a, b]).settle()
    b.leave(for_a_while=True)
    for _ in range(6):
        host.pass_time(10_000)
        a.beat()
    a.beat()
    assert a.owned == topics.partitions("flights")


def test_an_instance_id_has_one_member(host: GroupHost) -> None:
    host.join("a", "flights", instance_id="one")
    refused = host.join("b", "flights", instance_id="one")
    assert refused.error is ErrorCode.UNRELEASED_INSTANCE_ID
    unknown = host.heartbeat("a", 1, instance_id="two")
    assert unknown.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert host.heartbeat("a", -1, instance_id="one").epoch == -1
    assert host.join("b", "flights", instance_id="one").error is NONE


def test_an_operator_removes_a_static_member(host: GroupHost) -> None:
    host.join("a", "flights", instance_id="one")
    assert host.leave("", "one") is NONE
    assert not host.group.members


# -- streams ------------------------------------------------------------------------------------


def test_new_partitions_raise_the_epoch(host: GroupHost, topics: FakeTopics) -> None:
    (a,) = settled(host, "a")
    topics.grow("flights", 8)
    a.beat()
    assert (a.epoch, len(a.owned)) == (2, 8)


def test_a_change_of_other_streams_changes_nothing(host: GroupHost, topics: FakeTopics) -> None:
    (a,) = settled(host, "a")
    topics.grow("hotels", 8)
    topics.make("trains", 3)
    a.beat()
    assert a.epoch == 1


def test_a_stream_that_comes_later_is_assigned(host: GroupHost, topics: FakeTopics) -> None:
    (a,) = settled(host, "a")
    a.topics, a.says_all = ("flights", "trains"), True
    a.beat()
    assert len(a.owned) == 6
    topics.make("trains", 2)
    a.beat()
    assert len(a.owned) == 8


def test_a_stream_that_is_made_again_has_other_partitions(
    host: GroupHost, topics: FakeTopics
) -> None:
    (a,) = settled(host, "a")
    topics.delete("flights")
    a.beat()
    assert not a.owned
    topics.make("flights", 2)
    for _ in range(3):
        a.beat()
    assert a.owned == topics.partitions("flights")


def test_an_expression_follows_the_streams(host: GroupHost, topics: FakeTopics) -> None:
    longest = "|".join(f"a-stream-{number}" for number in range(75))
    assert regex_error(longest) is None
    answer = host.join("a", regex="fl.*|tr[a-z]+")
    assert answer.assigned == topics.partitions("flights")
    topics.make("trains", 2)
    topics.make("my-flights", 2)
    answer = host.heartbeat("a", 1)
    assert answer.assigned == topics.partitions("flights", "trains")


def test_members_choose_the_assignor(host: GroupHost, topics: FakeTopics) -> None:
    consumers = [Consumer(host, name, assignor="range") for name in "abc"]
    Owners(host, consumers).settle()
    assert host.consumer.protocol == "range"
    for each in consumers:
        numbers = sorted(partition for _, partition in each.owned)
        assert numbers == list(range(numbers[0], numbers[0] + 2))


# -- storing ------------------------------------------------------------------------------------


def test_nothing_is_told_before_it_is_stored(host: GroupHost) -> None:
    host.holds_stores = True
    ticket = host.send(MemberHeartbeat("a", 0, **JOIN))  # type: ignore[arg-type]
    again = host.send(MemberHeartbeat("a", 0, **JOIN))  # type: ignore[arg-type]
    assert not host.answers
    host.finish_store()
    assert host.answers[ticket].epoch == 1
    assert host.answers[again] == host.answers[ticket]


def test_what_comes_while_a_batch_is_stored_is_in_the_next_one(host: GroupHost) -> None:
    host.holds_stores = True
    for name in "abcdef":
        host.send(MemberHeartbeat(name, 0, **JOIN))  # type: ignore[arg-type]
    assert len(host.held) == 1, "one batch at a time"
    host.finish_store()
    assert len(host.answers) == 1
    assert len(host.held) == 1
    host.finish_store()
    assert len(host.answers) == 6
    assert not host.held


def test_a_batch_that_is_not_stored_is_tried_again(host: GroupHost) -> None:
    host.holds_stores = True
    ticket = host.send(MemberHeartbeat("a", 0, **JOIN))  # type: ignore[arg-type]
    host.finish_store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert host.answers[ticket].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not host.stored
    host.holds_stores = False
    assert host.join("a", "flights").epoch == 1
    assert set(host.stored) == {None, "a"}


def test_the_next_coordinator_knows_every_member(host: GroupHost) -> None:
    consumers = settled(host, "a", "b", "c")
    epochs = [each.epoch for each in consumers]
    assignments = [each.assignments for each in consumers]
    host.restart()
    for each in consumers:
        each.beat()
        each.says_all = True
        each.beat()
    assert [each.epoch for each in consumers] == epochs
    assert [each.assignments for each in consumers] == assignments


def test_a_group_without_members_leaves_no_record(host: GroupHost) -> None:
    for each in settled(host, "a", "b"):
        each.leave()
    assert host.stored == {}
    assert host.consumer.is_forgettable


def test_records_of_an_earlier_group_are_not_read(host: GroupHost) -> None:
    """A batch that removes members may be lost where the group is converted or forgotten."""
    settled(host, "a", "b")
    ghost = host.stored["b"]
    for name in "ab":
        host.heartbeat(name, -1)
    host.restart()
    host.join("c", "flights")
    host.stored["b"] = ghost
    host.restart()
    assert list(host.group.members) == ["c"]
