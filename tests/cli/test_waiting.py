"""What a command shows while partitions move, and while a node leaves."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from rich.console import Console

from bascule.cli.cluster import waiting
from bascule.cli.cluster.operations import wait_drained, wait_left
from bascule.cli.cluster.waiting import STUCK_LOOKS, Remaining, wait_moved
from bascule.cli.streams import moves
from bascule.cli.streams.moves import wait_reassigned
from bascule.errors import BasculeError, Broken, UnknownNode
from bascule.model import PartitionInfo, StreamConfig, StreamDefinition, StreamInfo
from bascule.operation_results import LeftPartition, NodeDrain

if TYPE_CHECKING:
    from bascule.client import SyncClient

STEPS = [Remaining(3, 3 << 30), Remaining(2, 1 << 30), Remaining(0)]


def looks() -> Callable[[], Remaining]:
    left = iter(STEPS)
    return lambda: next(left)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which take no time."""
    found: list[float] = []
    monkeypatch.setattr(waiting.time, "sleep", found.append)
    return found


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(waiting, "err", screen)
    wait_moved(looks())
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "1 of 3 partitions, 1.0 GiB to copy" in shown
    assert len(slept) == 2


def test_a_file_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    written = Console(file=io.StringIO(), width=100)
    monkeypatch.setattr(waiting, "err", written)
    monkeypatch.setattr(waiting, "LINE_SECONDS", 0.0)
    wait_moved(looks())
    lines = written.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [
        "moved: 0 of 3 partitions, 3.0 GiB to copy",
        "moved: 1 of 3 partitions, 1.0 GiB to copy",
    ]


def test_what_has_moved_already_is_not_waited_for(slept: list[float]) -> None:
    wait_moved(lambda: Remaining(0))
    assert slept == []


class Removal:
    """A node that is being removed, as a client is told of it look by look."""

    def __init__(self, *said: NodeDrain | BasculeError) -> None:
        self._said = list(said)

    def node_drain(self, number: int) -> NodeDrain:
        found = self._said.pop(0)
        if isinstance(found, BasculeError):
            raise found
        return found


def left(*, pending: int = 0, stuck: int = 0) -> NodeDrain:
    why = LeftPartition("flights", 0, leads=False, why="too few nodes", is_pending=pending > 0)
    listed = (why,) if pending or stuck else ()
    return NodeDrain(
        2, is_drained=False, is_emptied=False, leaders=0, replicas=pending + stuck, left=listed,
        pending_count=pending, stuck_count=stuck,
    )  # fmt: skip


def wait_for_removal(*said: NodeDrain | BasculeError) -> NodeDrain | None:
    return wait_left(cast("SyncClient", Removal(*said)), 2)


def test_a_node_is_waited_for_until_the_cluster_does_not_know_it(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    written = Console(file=io.StringIO(), width=100)
    monkeypatch.setattr(waiting, "err", written)
    monkeypatch.setattr(waiting, "LINE_SECONDS", 0.0)
    said = (left(pending=2), left(pending=1, stuck=1), left(stuck=1), left(), UnknownNode(2))
    assert wait_for_removal(*said) is None
    lines = written.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [
        "moved: 0 of 2 partitions",
        "moved: 0 of 2 partitions",
        "moved: 1 of 2 partitions",
        "node 2 has no replicas any more, and leaves the cluster",
    ]


def test_what_does_not_leave_a_node_is_returned(slept: list[float]) -> None:
    found = wait_for_removal(left(pending=1), *([left(stuck=1)] * STUCK_LOOKS))
    assert found is not None
    assert found.left[0].why == "too few nodes"


def test_a_removal_that_somebody_takes_back_ends_the_wait(slept: list[float]) -> None:
    stays = replace(left(), is_leaving=False)
    assert wait_for_removal(left(pending=2), stays) == stays
    assert wait_for_removal(left(), stays) == stays, "also where it holds nothing by then"


@pytest.mark.parametrize("replicas", [False, True])
def test_a_drain_that_somebody_ends_is_not_waited_for(slept: list[float], replicas: bool) -> None:
    under_way = replace(left(pending=2), is_drained=True, is_emptied=True)
    ended = replace(left(pending=2), is_drained=False, is_emptied=False)
    client = cast("SyncClient", Removal(under_way, under_way, ended))
    assert wait_drained(client, 2, replicas=replicas) == ended


# -- streams that move -------------------------------------------------------------------------

MOVING = PartitionInfo(0, 0, 0, 0, 0, 3, 0, replicas=(1, 2, 3), isr=(1, 2), target=(1, 3))
WAITS = "its move waits for node 3, which is not alive"


class Moves:
    """A stream with one partition, as a client is told of it look by look; the last is repeated."""

    def __init__(self, *said: PartitionInfo | type[BaseException]) -> None:
        self._said = list(said)

    def stream(self, name: str) -> StreamInfo:
        found = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        if not isinstance(found, PartitionInfo):
            raise found
        config = StreamConfig(subject="flights.>", replicas=2)
        return StreamInfo(StreamDefinition(name, b"f" * 16, 0, config), (found,))


def wait_for_move(*said: PartitionInfo | type[BaseException]) -> list[str]:
    client = cast("SyncClient", Moves(*said))
    return wait_reassigned(client, "flights", {0: frozenset((1, 3))})[1]


def test_a_move_has_ended_where_the_replicas_are_those_that_were_asked_for(
    slept: list[float],
) -> None:
    there = replace(MOVING, replicas=(3, 1), isr=(1, 3), target=())
    assert wait_for_move(MOVING, MOVING, there) == []
    assert slept, "it was waited for"


def test_a_move_that_somebody_cancels_is_no_success(slept: list[float]) -> None:
    before = replace(MOVING, replicas=(1, 2), target=())
    assert wait_for_move(MOVING, MOVING, before) == [
        "partition 0: its move was cancelled or replaced; it is on nodes 1, 2"
    ]


def test_a_move_that_somebody_replaces_is_no_success(slept: list[float]) -> None:
    other = replace(MOVING, target=(2, 4))
    assert wait_for_move(MOVING, MOVING, other) == [
        "partition 0: its move was replaced by one to nodes 2, 4"
    ]


def test_a_node_that_has_not_heard_of_the_move_yet_is_asked_again(slept: list[float]) -> None:
    before = replace(MOVING, replicas=(1, 2), target=())
    there = replace(MOVING, replicas=(1, 3), isr=(1, 3), target=())
    assert wait_for_move(MOVING, before, before, MOVING, there) == []


def test_a_move_that_waits_for_a_node_that_is_not_alive_ends_the_wait(slept: list[float]) -> None:
    assert wait_for_move(MOVING, replace(MOVING, move_waits=WAITS)) == [f"partition 0: {WAITS}"]
    assert len(slept) >= STUCK_LOOKS - 1


def test_who_interrupts_the_wait_is_told_that_the_move_goes_on(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    written = Console(file=io.StringIO(), width=100)
    monkeypatch.setattr(moves, "err", written)
    with pytest.raises(KeyboardInterrupt):
        wait_for_move(MOVING, MOVING, KeyboardInterrupt)
    said = written.file.getvalue()  # type: ignore[attr-defined]
    assert said == ("the move goes on; `bascule stream reassign flights --cancel` takes it back\n")


def test_a_server_that_was_the_node_itself_is_named(slept: list[float]) -> None:
    with pytest.raises(Broken, match="ask another one"):
        wait_for_removal(left(), Broken("no Bascule node answers"))
