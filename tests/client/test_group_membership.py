"""A member of a group whose coordinator answers what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bascule.client.consumers import coordinator, membership
from bascule.client.consumers.coordinator import CoordinatorLink
from bascule.client.consumers.membership import GroupMembership, MemberSettings
from bascule.errors import Broken
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.heartbeat import HeartbeatRequest, HeartbeatResponse
from bascule.wire.messages.group.join_group import JoinGroupRequest, JoinGroupResponse
from bascule.wire.messages.group.sync_group import SyncGroupResponse

SETTINGS = MemberSettings("billing", "flights", ("range",), 45.0, 3.0, 300.0, None)


def member(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any]
) -> tuple[GroupMembership, list[Any]]:
    """A member, and the requests that it sends: they get the answers in turn."""
    asked: list[Any] = []
    found = GroupMembership(
        "127.0.0.1:1", SETTINGS, timeout=1, on_notice=lambda _: None, poll_count=lambda: None
    )

    def request(message: Any, _: object, **__: object) -> Any:
        asked.append(message)
        return answers.pop(0)

    monkeypatch.setattr(found._joins, "request", request)
    return found, asked


def test_a_member_of_an_unknown_generation_joins_with_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator that lost the generation knows its members, and would wait for this one."""
    answers: list[Any] = [
        JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m1"),
        JoinGroupResponse(generation_id=2, leader="m0", member_id="m1", protocol_name="range"),
        SyncGroupResponse(error_code=ErrorCode.ILLEGAL_GENERATION),
    ]
    joining, asked = member(monkeypatch, answers)
    assert joining.join(()) is None
    answers.append(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    answers.append(JoinGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    with pytest.raises(Exception, match="instance"):
        joining.join(())
    joins = [each.member_id for each in asked if isinstance(each, JoinGroupRequest)]
    assert joins == ["", "m1", "m1", ""]


def test_a_leader_that_comes_back_watches_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "count_partitions", lambda *_: 4)
    answers = [
        JoinGroupResponse(
            generation_id=2, leader="m", member_id="m", protocol_name="range", skip_assignment=True
        ),
        SyncGroupResponse(),
    ]
    joining, asked = member(monkeypatch, answers)
    monkeypatch.setattr(joining, "_start_heartbeats", lambda: None)
    assert joining.join(()) == frozenset()
    assert asked[-1].assignments == []
    assert joining._counted == 4


class Waiting:
    """A connection to a coordinator that answers after `steps` waits, or ends then."""

    address = "127.0.0.1:9"

    def __init__(self, steps: int, answer: Any) -> None:
        self._steps = steps
        self._answer = answer

    def send(self, *_: object, **__: object) -> None:
        pass

    def wait_readable(self, seconds: float) -> bool:
        if not self._steps:
            return True
        self._steps -= 1
        threading.Event().wait(seconds)
        return False

    def receive(self) -> Any:
        if self._answer is None:
            raise Broken("the node has gone")
        return self._answer

    def close(self) -> None:
        pass


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[Waiting]], CoordinatorLink]]:
    def made(connections: list[Waiting]) -> CoordinatorLink:
        found = CoordinatorLink("127.0.0.1:1", "billing", timeout=0.2)
        monkeypatch.setattr(found, "_connect", lambda: connections.pop(0))
        monkeypatch.setattr(found, "_find_address", lambda: Waiting.address)
        return found

    monkeypatch.setattr(coordinator, "CHECK_S", 0.05)
    monkeypatch.setattr(coordinator, "BACKOFF_S_MIN", 0.01)
    return made


def test_a_coordinator_that_ends_while_a_join_waits_is_replaced(
    link: Callable[[list[Waiting]], CoordinatorLink],
) -> None:
    """However long the join has waited: there was a coordinator all the time."""
    answer = HeartbeatResponse()
    found = link([Waiting(10, None), Waiting(0, answer)])
    request = HeartbeatRequest("billing", 1, "m", None)
    asked = found.request(request, lambda each: (each.error_code,), answer_s=20)
    assert asked is answer


def test_without_a_coordinator_a_request_ends(
    link: Callable[[list[Waiting]], CoordinatorLink],
) -> None:
    found = link([Waiting(0, None) for _ in range(100)])
    request = HeartbeatRequest("billing", 1, "m", None)
    with pytest.raises(Broken, match="no coordinator for"):
        found.request(request, lambda each: (each.error_code,), answer_s=20)
