"""What a command shows while partitions move."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from bascule.cli.cluster import waiting
from bascule.cli.cluster.waiting import Remaining, wait_moved

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
