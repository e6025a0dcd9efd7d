"""The classic group protocol, request by request."""

from __future__ import annotations

import pytest

from bascule.groups.classic import ClassicGroup, GroupState
from bascule.groups.classic.snapshot import decode_snapshot, encode_snapshot
from bascule.wire.error_codes import ErrorCode
from support.classic_groups import RANGE, REBALANCE_MS, SESSION_MS, GroupDriver

NONE = ErrorCode.NONE
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def test_a_member_alone_leads_and_gets_its_assignment(driver: GroupDriver) -> None:
    joined = driver.joined(driver.join(new="a"))
    assert (joined.error, joined.generation, joined.leader, joined.member_id) == (NONE, 1, "a", "a")
    assert (joined.protocol_type, joined.protocol) == ("consumer", "range")
    assert [(m.member_id, m.metadata) for m in joined.members] == [("a", b"flights")]
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    synced = driver.synced(driver.sync("a", 1))
    assert (synced.error, synced.assignment, synced.protocol) == (NONE, b"a", "range")
    assert driver.group.state is GroupState.STABLE
    assert driver.stored is not None
    assert driver.stored.generation == 1


def test_a_second_member_makes_the_first_join_again(driver: GroupDriver) -> None:
    driver.stable("a")
    second = driver.join(new="b")
    assert second not in driver.answers
    assert driver.heartbeat("a", 1) == REBALANCE
    assert driver.synced(driver.sync("a", 1)).error == REBALANCE
    first = driver.join("a")
    assert driver.joined(first).generation == driver.joined(second).generation == 2
    assert driver.joined(first).leader == driver.joined(second).leader == "a"
    assert [m.member_id for m in driver.joined(first).members] == ["a", "b"]
    assert driver.joined(second).members == ()
    waiting = driver.sync("b", 2)
    assert waiting not in driver.answers
    assert driver.heartbeat("b", 2) == NONE
    assert driver.synced(driver.sync("a", 2)).assignment == b"a"
    assert driver.synced(waiting).assignment == b"b"


def test_a_new_member_is_given_an_id_first(driver: GroupDriver) -> None:
    given = driver.joined(driver.join(new="a", version=4))
    assert (given.error, given.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "a")
    assert driver.group.state is GroupState.EMPTY
    assert not driver.group.is_forgettable
    assert driver.heartbeat("a", 0) == UNKNOWN
    assert driver.joined(driver.join("a", version=4)).generation == 1


def test_an_id_that_is_not_used_is_forgotten(driver: GroupDriver) -> None:
    driver.join(new="a", version=4)
    driver.pass_time(SESSION_MS)
    assert driver.group.is_forgettable
    assert driver.joined(driver.join("a", version=4)).error == UNKNOWN


def test_a_rebalance_waits_for_ids_that_were_given(driver: GroupDriver) -> None:
    """Otherwise each member that starts would cause a rebalance of its own."""
    driver.stable("a")
    driver.join(new="b", version=4)
    driver.join(new="c", version=4)
    assert driver.heartbeat("a", 1) == NONE
    joins = [driver.join("b", version=4), driver.join("a")]
    assert not driver.answers.keys() & set(joins)
    joins.append(driver.join("c", version=4))
    assert {driver.joined(each).generation for each in joins} == {2}


def test_ids_that_are_never_used_cost_bounded_memory() -> None:
    driver = GroupDriver(members_max=5)
    for n in range(100):
        driver.join(new=f"m{n}", version=4)
    assert driver.joined(driver.join("m94", version=4)).error == UNKNOWN
    # The younger ones still wait to be used.
    driver.leave(*((f"m{n}", None) for n in range(95, 99)))
    assert driver.joined(driver.join("m99", version=4)).error == NONE


def test_members_that_die_while_they_wait_are_removed_at_once(driver: GroupDriver) -> None:
    driver.stable("a")
    for n in range(100):
        driver.disconnect(driver.join(new=f"b{n}"))
        assert list(driver.group.members) == ["a"]
    joined = driver.joined(driver.join("a"))
    assert (joined.error, joined.generation) == (NONE, 2)


def test_a_join_whose_connection_is_gone_is_taken_back(driver: GroupDriver) -> None:
    driver.stable("a", "b")
    driver.join(new="c")
    gone = driver.join("a")
    driver.disconnect(gone)
    waiting = driver.join("b")
    assert waiting not in driver.answers
    again = driver.join("a")
    assert driver.joined(again).error == driver.joined(waiting).error == NONE
    assert gone not in driver.answers


def test_a_member_that_does_not_join_again_is_left_out(driver: GroupDriver) -> None:
    generation = driver.stable("a", "b")
    waiting = driver.join("b", protocols=(("range", b"other"),))
    for _ in range(REBALANCE_MS // 5_000):
        assert driver.heartbeat("a", generation) == REBALANCE
        driver.pass_time(5_000)
    joined = driver.joined(waiting)
    assert (joined.leader, [m.member_id for m in joined.members]) == ("b", ["b"])
    assert driver.heartbeat("a", generation) == UNKNOWN


def test_a_silent_member_is_removed(driver: GroupDriver) -> None:
    generation = driver.stable("a", "b")
    driver.pass_time(SESSION_MS - 1)
    assert driver.heartbeat("b", generation) == NONE
    driver.pass_time(1)
    assert driver.heartbeat("a", generation) == UNKNOWN
    assert driver.heartbeat("b", generation) == REBALANCE
    assert driver.joined(driver.join("b")).generation == generation + 1


def test_a_leader_that_brings_nothing_is_removed(driver: GroupDriver) -> None:
    joins = [driver.join(new="a")]
    joins.append(driver.join(new="b"))
    joins.append(driver.join("a"))
    waiting = driver.sync("b", 2)
    driver.pass_time(SESSION_MS)
    assert driver.synced(waiting).error == REBALANCE
    assert driver.joined(driver.join("b")).leader == "b"


def test_who_never_syncs_is_removed(driver: GroupDriver) -> None:
    driver.join(new="a")
    driver.join(new="b")
    driver.join("a")
    driver.sync("a", 2)
    assert driver.group.state is GroupState.STABLE
    for _ in range(REBALANCE_MS // 5_000):
        driver.heartbeat("a", 2)
        driver.heartbeat("b", 2)
        driver.pass_time(5_000)
    assert list(driver.group.members) == ["a"]


def test_the_first_rebalance_waits_for_more_members() -> None:
    driver = GroupDriver(initial_delay_ms=1_000)
    first = driver.join(new="a")
    driver.pass_time(999)
    second = driver.join(new="b")
    driver.pass_time(999)
    third = driver.join(new="c")
    driver.pass_time(1_001)
    assert first not in driver.answers
    driver.pass_time(1)
    assert {driver.joined(each).generation for each in (first, second, third)} == {1}


def test_the_first_rebalance_does_not_wait_for_ever() -> None:
    driver = GroupDriver(initial_delay_ms=1_000)
    first = driver.join(new="a", rebalance_timeout_ms=5_000)
    for _ in range(10):
        driver.join(rebalance_timeout_ms=5_000)
        driver.pass_time(500)
    assert driver.joined(first).generation == 1


def test_unchanged_members_are_told_the_present_generation(driver: GroupDriver) -> None:
    generation = driver.stable("a", "b")
    assert driver.joined(driver.join("b")).generation == generation
    assert driver.group.state is GroupState.STABLE
    driver.join("a")
    assert driver.group.state is GroupState.PREPARING_REBALANCE, "the leader asks for a rebalance"


def test_a_leader_that_missed_its_answer_is_told_again(driver: GroupDriver) -> None:
    driver.join(new="a")
    joined = driver.joined(driver.join("a"))
    assert (joined.generation, [m.member_id for m in joined.members]) == (1, ["a"])


def test_the_protocol_with_most_votes(driver: GroupDriver) -> None:
    def names(text: str) -> tuple[tuple[str, bytes], ...]:
        return tuple((name, name.encode()) for name in text.split())

    driver.join(new="a", protocols=names("range sticky only"))
    driver.join(new="b", protocols=names("sticky range"))
    driver.join(new="c", protocols=names("sticky range"))
    joined = driver.joined(driver.join("a", protocols=names("range sticky only")))
    assert joined.protocol == "sticky"
    assert [m.metadata for m in joined.members] == [b"sticky"] * 3
    for wrong in ({"protocols": names("only")}, {"protocol_type": "connect"}, {"protocols": ()}):
        refused = driver.joined(driver.join(**wrong))  # type: ignore[arg-type]
        assert refused.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_alone_may_change_its_protocols(driver: GroupDriver) -> None:
    driver.stable("a")
    joined = driver.joined(driver.join("a", protocols=(("sticky", b""),)))
    assert (joined.error, joined.protocol) == (NONE, "sticky")


def test_limits_of_a_group() -> None:
    driver = GroupDriver(members_max=2, bytes_max=300)
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.joined(driver.join(protocols=(("range", bytes(301)),))).error == full
    assert driver.joined(driver.join(protocols=(("", b""),) * 10)).error == full, "they have a size"
    driver.stable("a", "b")
    assert driver.joined(driver.join()).error == full
    driver.join("a")
    driver.join("b")
    large = driver.sync("a", driver.group.generation, assignments=[("b", bytes(300))])
    assert driver.synced(large).error == ErrorCode.UNKNOWN_SERVER_ERROR
    for session_ms in (0, 1, 5_999, 1_800_001):
        refused = driver.joined(driver.join(session_timeout_ms=session_ms))
        assert refused.error == ErrorCode.INVALID_SESSION_TIMEOUT


def test_generations_and_ids_are_fenced(driver: GroupDriver) -> None:
    generation = driver.stable("a", "b")
    for wrong in (generation - 1, generation + 1, -1):
        assert driver.heartbeat("a", wrong) == ErrorCode.ILLEGAL_GENERATION
        assert driver.commit("a", wrong) == ErrorCode.ILLEGAL_GENERATION
        assert driver.synced(driver.sync("a", wrong)).error == ErrorCode.ILLEGAL_GENERATION
    assert driver.heartbeat("nobody", generation) == UNKNOWN
    assert driver.joined(driver.join("nobody")).error == UNKNOWN
    for protocol in ({"protocol": "sticky"}, {"protocol_type": "connect"}):
        refused = driver.synced(driver.sync("a", generation, **protocol))
        assert refused.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_commits(driver: GroupDriver) -> None:
    assert driver.commit("", -1) == NONE
    assert driver.commit("whoever", -1) == NONE, "without members an id means nothing"
    assert driver.commit("whoever", 1) == ErrorCode.ILLEGAL_GENERATION
    generation = driver.stable("a", "b")
    assert driver.commit("", -1) == UNKNOWN
    assert driver.commit("a", generation) == NONE
    driver.join("a")
    assert driver.commit("b", generation) == NONE, "it commits before it joins again"
    driver.join("b")
    assert driver.commit("b", generation + 1) == REBALANCE


def test_members_leave(driver: GroupDriver) -> None:
    driver.stable("a", "b", "c")
    waiting = driver.join("a")
    driver.join(new="d", version=4)
    left = driver.leave(("b", None), ("nobody", None), ("c", None), ("d", None))
    assert left == [NONE, UNKNOWN, NONE, NONE]
    assert [m.member_id for m in driver.joined(waiting).members] == ["a"]
    assert driver.leave(("a", None)) == [NONE]
    assert driver.group.state is GroupState.EMPTY
    assert driver.group.is_forgettable
    assert driver.stored is None


def test_the_answer_of_a_sync_waits_for_the_store(driver: GroupDriver) -> None:
    driver.join(new="a")
    driver.holds_stores = True
    waiting = driver.sync("a", 1)
    driver.pass_time(REBALANCE_MS + SESSION_MS)
    assert waiting not in driver.answers
    driver.finish_store()
    assert driver.synced(waiting).assignment == b"a"


def test_a_state_that_is_not_stored_is_not_handed_out(driver: GroupDriver) -> None:
    driver.join(new="a")
    driver.holds_stores = True
    waiting = driver.sync("a", 1)
    driver.finish_store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert driver.synced(waiting).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat("a", 1) == REBALANCE


def test_a_removal_that_is_not_stored_is_tried_again(driver: GroupDriver) -> None:
    """Otherwise the record stays, and commits of others are refused for ever."""
    driver.stable("a")
    driver.holds_stores = True
    driver.leave(("a", None))
    assert not driver.group.is_forgettable
    for _ in range(3):
        driver.finish_store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert not driver.held, "what failed at once would fail at once again"
        driver.pass_time(1_000)
        assert [each.snapshot for each in driver.held] == [None]
    assert driver.stored is not None
    driver.finish_store()
    assert driver.stored is None
    assert driver.group.is_forgettable
    assert driver.group.next_deadline_ms() is None


@pytest.mark.parametrize("error", [NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_member_comes_while_the_group_is_removed(driver: GroupDriver, error: ErrorCode) -> None:
    driver.stable("a")
    driver.holds_stores = True
    driver.leave(("a", None))
    generation = driver.joined(driver.join(new="b")).generation
    waiting = driver.sync("b", generation)
    driver.finish_store(error)
    assert not driver.group.is_forgettable
    driver.finish_store()
    driver.pass_time(2_000)
    assert driver.synced(waiting).error == NONE
    assert driver.heartbeat("b", generation) == NONE
    assert driver.stored is not None
    assert [each.member_id for each in driver.stored.members] == ["b"]
    assert not driver.held


def test_a_store_of_a_generation_that_is_over_changes_nothing(driver: GroupDriver) -> None:
    driver.join(new="a")
    driver.holds_stores = True
    waiting = driver.sync("a", 1)
    driver.join(new="b")
    assert driver.synced(waiting).error == REBALANCE
    driver.finish_store()
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_joins_while_its_sync_waits_is_answered_twice(driver: GroupDriver) -> None:
    """As on another connection, where nobody has noticed the end of the first one."""
    driver.join(new="a")
    driver.join(new="b")
    driver.join("a")
    waiting = driver.sync("b", 2)
    again = driver.join("b", protocols=(("range", b"other"),))
    driver.join("a")
    assert driver.synced(waiting).error == REBALANCE
    assert driver.joined(again).generation == 3


# Static members


def static(driver: GroupDriver, *names: str) -> int:
    """Members with the instance ids that their names begin with."""
    tickets = [driver.join(new=name, instance_id=name[0]) for name in names]
    while not all(ticket in driver.answers for ticket in tickets):
        for member in list(driver.group.members.values()):
            if member.join_ticket is None:
                driver.join(member.member_id, instance_id=member.instance_id)
    for name in names:
        driver.sync(name, driver.group.generation, name[0])
    return driver.group.generation


def test_a_static_member_comes_back_without_a_rebalance(driver: GroupDriver) -> None:
    generation = static(driver, "a1", "b1")
    driver.holds_stores = True
    back = driver.join(new="b2", instance_id="b")
    assert back not in driver.answers
    driver.finish_store()
    joined = driver.joined(back)
    assert (joined.generation, joined.member_id, joined.leader) == (generation, "b2", "a1")
    assert driver.synced(driver.sync("b2", generation, "b")).assignment == b"b1"
    assert driver.heartbeat("a1", generation, "a") == NONE
    assert driver.stored is not None
    assert {m.member_id for m in driver.stored.members} == {"a1", "b2"}


def test_the_old_process_of_a_static_member_is_fenced(driver: GroupDriver) -> None:
    generation = static(driver, "a1", "b1")
    driver.join(new="b2", instance_id="b")
    assert driver.heartbeat("b1", generation, "b") == FENCED
    assert driver.commit("b1", generation, "b") == FENCED
    assert driver.synced(driver.sync("b1", generation, "b")).error == FENCED
    assert driver.joined(driver.join("b1", instance_id="b")).error == FENCED
    assert driver.leave(("b1", "b")) == [FENCED]
    assert driver.heartbeat("b2", generation, "c") == UNKNOWN


def test_a_waiting_static_member_is_fenced_by_the_next(driver: GroupDriver) -> None:
    static(driver, "a1", "b1")
    driver.join(new="c1", instance_id="c")
    first = driver.join(new="b2", instance_id="b")
    second = driver.join(new="b3", instance_id="b")
    assert driver.joined(first).error == FENCED
    driver.join("a1", instance_id="a")
    assert driver.joined(second).error == NONE


def test_one_that_waits_for_its_store_is_fenced_by_the_next(driver: GroupDriver) -> None:
    static(driver, "a1", "b1")
    driver.holds_stores = True
    first = driver.join(new="b2", instance_id="b")
    second = driver.join(new="b3", instance_id="b")
    assert driver.joined(first).error == FENCED
    driver.finish_store()
    driver.finish_store()
    assert driver.joined(second).error == NONE


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_that_comes_back_assigns_nothing(driver: GroupDriver, version: int) -> None:
    static(driver, "a1", "b1")
    joined = driver.joined(driver.join(new="a2", instance_id="a", version=version))
    if version >= 9:
        assert (joined.leader, joined.skip_assignment, len(joined.members)) == ("a2", True, 2)
    else:
        assert (joined.leader, joined.skip_assignment, joined.members) == ("a1", False, ())
    synced = driver.synced(driver.sync("a2", joined.generation, "a"))
    assert synced.assignment == b"a1"


def test_a_static_member_that_is_away_keeps_its_place_for_its_session(driver: GroupDriver) -> None:
    static(driver, "a1", "b1")
    driver.join("a1", instance_id="a", protocols=(("range", b"more"),), rebalance_timeout_ms=2_000)
    driver.group.members["b1"].rebalance_timeout_ms = 2_000
    driver.group.on_time(driver.now_ms + 60_000 + 1)
    driver.carry_out()
    assert list(driver.group.members) == ["a1"], "its session ended before the rebalance"


def test_a_static_member_leaves_by_its_instance_id(driver: GroupDriver) -> None:
    static(driver, "a1", "b1")
    assert driver.leave(("", "b"), ("", "nobody")) == [NONE, UNKNOWN]
    assert list(driver.group.members) == ["a1"]


# What is stored


def test_a_stored_group_goes_on_with_new_sessions(driver: GroupDriver) -> None:
    generation = driver.stable("a", "b")
    static_join = driver.join(new="c1", instance_id="c")
    driver.join("a")
    driver.join("b")
    for name in ("a", "b"):
        driver.sync(name, generation + 1)
    driver.sync("c1", generation + 1, "c")
    assert driver.joined(static_join).error == NONE
    assert driver.stored is not None
    snapshot = decode_snapshot(encode_snapshot(driver.stored))
    assert snapshot == driver.stored

    driver.now_ms += 1_000_000
    driver.group = ClassicGroup.restore(snapshot, driver.limits, driver.now_ms)
    assert driver.group.state is GroupState.STABLE
    driver.pass_time(SESSION_MS - 1)
    for name, instance in (("a", None), ("b", None), ("c1", "c")):
        assert driver.heartbeat(name, generation + 1, instance) == NONE
        assert driver.commit(name, generation + 1, instance) == NONE
        again = driver.joined(driver.join(name, instance_id=instance)) if name != "a" else None
        assert again is None or again.generation == generation + 1
        synced = driver.synced(driver.sync(name, generation + 1, instance))
        assert synced.assignment == name.encode()
    driver.pass_time(SESSION_MS)
    assert driver.group.is_forgettable
    assert driver.stored is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"format":2,"generation":1,"protocol_type":"","protocol":"","leader":"","members":[]}',
        b'{"format":1,"generation":1,"protocol_type":"","protocol":"","leader":"x","members":[]}',
    ],
)
def test_damaged_states_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        decode_snapshot(value)


def test_waiting_requests_are_answered_when_the_group_moves(driver: GroupDriver) -> None:
    driver.stable("a", "b")
    waiting = [driver.join("a"), driver.join(new="c", protocols=RANGE)]
    driver.group.unload(ErrorCode.NOT_COORDINATOR)
    driver.carry_out()
    assert {driver.joined(each).error for each in waiting} == {ErrorCode.NOT_COORDINATOR}
    assert driver.group.state is GroupState.DEAD
    assert driver.group.next_deadline_ms() is None
