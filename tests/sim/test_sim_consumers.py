"""The simulated members of groups: what they hold, as they see it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.sim.cluster.consumers.consumer import CoordinatorMoved, SimConsumer
from bascule.sim.cluster.consumers.history import GroupHistory
from bascule.sim.cluster.consumers.newer import SimNewerConsumer
from bascule.sim.cluster.plan import GroupPlan
from bascule.wire.messages.group.consumer_protocol import encode_assignment
from bascule.wire.messages.group.join_group import JoinGroupResponse
from bascule.wire.messages.group.sync_group import SyncGroupResponse

PLAN = GroupPlan(name="g", stream="s", partitions=2, members=2)
WORLD = cast(Any, SimpleNamespace(loop=SimpleNamespace(now_ns=0), note=lambda *_: None))


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
        consumer._take_over(cast(Any, LostConnection()), {0, 1})
    assert consumer.positions == {}
    assert consumer._says_all, "else the coordinator does not assign them again"
    history.on_owned("other", [1])
    assert broken == []


def test_a_classic_consumer_that_lost_its_coordinator_before_it_began_holds_nothing() -> None:
    broken: list[str] = []
    history = history_of(broken, is_classic=True)
    consumer = SimConsumer(WORLD, 0, PLAN, history)
    joined = JoinGroupResponse(member_id="m", leader="other", generation_id=1)
    synced = SyncGroupResponse(assignment=encode_assignment({"s": [0, 1]}))
    with pytest.raises(CoordinatorMoved):
        consumer._join(cast(Any, LostConnection(joined, synced)))
    history.on_assigned("other", 2, "other", [1], 0)
    assert broken == []
