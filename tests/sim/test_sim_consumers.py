"""The simulated members of groups: what they hold, as they see it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.sim.cluster.consumers.consumer import CoordinatorMoved, SimConsumer
from bascule.sim.cluster.consumers.history import GroupHistory
from bascule.sim.cluster.consumers.newer import SimNewerConsumer
from bascule.sim.cluster.consumers.traits import draw_group_traits
from bascule.sim.cluster.plan import GroupPlan
from bascule.sim.cluster.world.loop import NS
from bascule.wire.messages.group.consumer_protocol import encode_assignment
from bascule.wire.messages.group.heartbeat import HeartbeatResponse
from bascule.wire.messages.group.join_group import JoinGroupResponse
from bascule.wire.messages.group.sync_group import SyncGroupResponse

PLAN = GroupPlan(name="g", stream="s", partitions=2, members=2)
WORLD = cast(
    Any,
    SimpleNamespace(
        loop=SimpleNamespace(now_ns=0),
        note=lambda *_: None,
        coordinator=(0, "10.0.0.1"),
        knows_groups=lambda _: True,
    ),
)


class LostConnection:
    """Answers what it is given, and then is lost."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def request(self, _: object) -> object:
        if not self.answers:
            raise CoordinatorMoved
        return self.answers.pop(0)

    def send(self, *_: object, **__: object) -> None:
        raise CoordinatorMoved


def history_of(broken: list[str], *, is_classic: bool) -> GroupHistory:
    return GroupHistory("g", lambda: 0, lambda *text: broken.extend(text), is_classic=is_classic)


def test_a_consumer_that_lost_its_coordinator_before_it_began_holds_nothing() -> None:
    """It has read no committed offsets, so it works on none of the partitions, and forgets them."""
    broken: list[str] = []
    history = history_of(broken, is_classic=False)
    consumer = SimNewerConsumer(WORLD, 0, PLAN, history)
    consumer.id, consumer.generation = "m", 1
    consumer._says_all = False
    with pytest.raises(CoordinatorMoved):
        consumer._take_over(cast(Any, LostConnection()), {0, 1}, 0)
    assert consumer.positions == {}
    assert consumer._says_all, "else the coordinator does not assign them again"
    history.on_owned("other", [1], 0)
    assert broken == []


def test_a_classic_consumer_that_lost_its_coordinator_before_it_began_holds_nothing() -> None:
    broken: list[str] = []
    history = history_of(broken, is_classic=True)
    consumer = SimConsumer(WORLD, 0, PLAN, history)
    joined = JoinGroupResponse(member_id="m", leader="other", generation_id=1)
    synced = SyncGroupResponse(assignment=encode_assignment({"s": [0, 1]}))
    with pytest.raises(CoordinatorMoved):
        consumer._join(cast(Any, LostConnection(joined, synced)))
    history.on_assigned("other", 2, "other", [1], joined_ns=0, asked_ns=0)
    assert broken == []


def test_an_answer_counts_from_when_it_was_asked_for() -> None:
    """A member that was stopped meanwhile reads it late, and the coordinator has forgotten it."""
    broken: list[str] = []
    now = [20 * NS]
    history = GroupHistory("g", lambda: now[0], lambda *text: broken.extend(text), is_classic=False)
    history.on_well("m", asked_ns=8 * NS)
    history.on_forgotten("m", "UNKNOWN_MEMBER_ID")
    assert broken == []
    history.on_well("m", asked_ns=19 * NS)
    history.on_forgotten("m", "UNKNOWN_MEMBER_ID")
    assert "members are remembered" in broken


@pytest.mark.parametrize("coordinator", ["10.0.0.1", "10.0.0.2"])
def test_a_deposed_coordinator_promises_nothing(coordinator: str) -> None:
    """Seed 5044: it was cut off and said that all is well more than a session after the next one
    had loaded the group. That one had not heard of the member since, and removed it."""
    broken: list[str] = []
    world = SimpleNamespace(**vars(WORLD))
    world.coordinator = (1, coordinator)
    history = history_of(broken, is_classic=True)
    consumer = SimConsumer(cast(Any, world), 0, PLAN, history)
    consumer.id, consumer.generation, consumer.positions = "m", 1, {}
    consumer._host = "10.0.0.1"
    consumer._handle_some = lambda _: True  # type: ignore[method-assign]
    consumer._step(cast(Any, LostConnection(HeartbeatResponse())))
    history.on_forgotten("m", "ILLEGAL_GENERATION")
    assert (broken != []) == (coordinator == "10.0.0.1")


def test_a_late_answer_takes_no_partition_from_its_next_owner() -> None:
    broken: list[str] = []
    now = [9 * NS]
    history = GroupHistory("g", lambda: now[0], lambda *text: broken.extend(text), is_classic=False)
    history.on_owned("next", [1], 9 * NS)
    now[0] = 20 * NS
    history.on_well("next", asked_ns=20 * NS)
    history.on_owned("m", [1], 8 * NS)
    commit = history.on_commit_sent("next", 1, 5)
    history.on_commit_acked(1, commit)
    assert broken == []
    history.on_owned("m", [1], 20 * NS)
    assert "one owner a partition" in broken


def test_a_static_member_in_whose_place_another_is_may_not_commit() -> None:
    broken: list[str] = []
    now = [20 * NS]
    history = GroupHistory("g", lambda: now[0], lambda *text: broken.extend(text), is_classic=True)
    history.on_assigned("old", 1, "old", [1], joined_ns=0, asked_ns=20 * NS)
    history.on_replaced("old")
    history.on_well("old", asked_ns=20 * NS)
    history.on_assigned("new", 1, "old", [1], joined_ns=0, asked_ns=20 * NS)
    history.on_forgotten("old", "FENCED_INSTANCE_ID")
    assert broken == []
    now[0] = 21 * NS
    history.on_commit_acked(1, history.on_commit_sent("new", 1, 5))
    assert broken == []
    history.on_commit_acked(1, history.on_commit_sent("old", 1, 4))
    assert "commits are fenced" in broken


def test_a_deletion_ends_offsets_and_is_refused_while_there_are_members() -> None:
    broken: list[str] = []
    now = [20 * NS]
    history = GroupHistory("g", lambda: now[0], lambda *text: broken.extend(text), is_classic=True)
    history.on_owned("m", [0], 20 * NS)
    history.on_commit_acked(0, history.on_commit_sent("m", 0, 5))
    refused = history.on_delete_sent()
    history.on_delete_refused(refused)
    now[0] = 21 * NS
    history.on_fetched(0, 5, 21 * NS)
    assert broken == []
    deletion = history.on_delete_sent()
    history.on_deleted(deletion)
    now[0] = 22 * NS
    history.on_fetched(0, -1, 22 * NS)
    assert broken == []
    history.on_fetched(0, 5, 22 * NS)
    assert "commits are kept" in broken
    history.on_well("m", asked_ns=now[0])
    now[0] += NS
    history.on_deleted(history.on_delete_sent())
    assert "groups with members are not deleted" in broken


def test_traits_of_groups_are_drawn_apart_and_may_be_chosen() -> None:
    groups = (PLAN,) * 2
    drawn = {draw_group_traits(seed, groups) for seed in range(50)}
    found = {(plan.is_static, plan.is_deleted) for plans in drawn for plan in plans}
    assert found == {(a, b) for a in (False, True) for b in (False, True)}
    for seed in range(5):
        assert draw_group_traits(seed, groups) == draw_group_traits(seed, groups)
        assert draw_group_traits(seed, groups, ["plain"]) == groups
        (plan, _) = draw_group_traits(seed, groups, ["static"])
        assert (plan.is_static, plan.is_deleted) == (True, False)
