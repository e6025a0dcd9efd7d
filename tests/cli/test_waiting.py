"""What a command shows while partitions move, and while a node leaves."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest
from rich.console import Console

from bascule.cli.cluster import waiting
from bascule.cli.cluster.operations import STUCK_LOOKS, wait_left
from bascule.cli.cluster.waiting import Remaining, wait_moved
from bascule.errors import BasculeError, Broken, UnknownNode
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


def test_a_server_that_was_the_node_itself_is_named(slept: list[float]) -> None:
    with pytest.raises(Broken, match="ask another one"):
        wait_for_removal(left(), Broken("no Bascule node answers"))
