"""`watch_table`: where a watcher goes on after its connection has broken."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import httpx

from bascule.client.admin.table_events import TableEvent
from bascule.client.tables.watch import watch_table
from bascule.table_results import TableChange
from support.virtual_time import run_virtually as run

RESTART = TableEvent("restart", "", {})


def seen(key: str, version: int, *, id: str = "") -> TableEvent:
    data = {"key": key, "version": version, "timestamp": 0, "value": "v"}
    return TableEvent("set", id, data)


def position(offset: int, id: str) -> TableEvent:
    return TableEvent("position", id, {"position": offset})


class Nodes:
    """Each connection sends some events, and breaks."""

    def __init__(self, *connections: list[TableEvent]) -> None:
        self._connections = list(connections)
        self.asked: list[tuple[str, str]] = []
        """`start` and `Last-Event-ID` of each connection."""

    async def table_events(
        self, table: str, *, pattern: bytes, start: str, last_id: str
    ) -> AsyncGenerator[TableEvent, None]:
        self.asked.append((start, last_id))
        for event in self._connections.pop(0):
            yield event
        raise httpx.ReadError("the connection is gone")

    def next_server(self) -> None:
        pass


def watched(nodes: Nodes, start: str, changes: int) -> tuple[list[str | TableChange], int]:
    """So many changes, with `restart` between, and the number of calls of `on_current`."""
    found: list[Any] = []
    currents: list[int] = []

    async def watch() -> None:
        steps = watch_table(
            lambda: cast("Any", nodes), "t", b">", start=start, timeout=60,
            on_current=currents.append, on_restart=lambda: found.append("restart"),
        )  # fmt: skip
        async for change in steps:
            found.append(change.key.decode())
            if len([each for each in found if each != "restart"]) == changes:
                break
        await steps.aclose()

    run(watch())
    return found, len(currents)


def test_a_watcher_goes_on_behind_the_last_change() -> None:
    nodes = Nodes([position(4, "4-0-x"), seen("a", 5, id="6-0-x")], [seen("b", 6, id="7-0-x")])
    assert watched(nodes, "now", 2) == (["a", "b"], 1)
    assert nodes.asked == [("now", ""), ("now", "6-0-x")]


def test_a_state_that_was_not_shown_to_its_end_is_shown_again() -> None:
    """Else `on_current` would say that all of it was seen, and keys that follow be taken for
    removed."""
    nodes = Nodes(
        [seen("a", 5, id="6-0-x")],
        [RESTART, seen("a", 5)],
        [RESTART, seen("a", 5), seen("b", 2), position(6, "6-1-x"), seen("c", 6, id="7-1-x")],
    )
    found, currents = watched(nodes, "now", 5)
    assert found == ["a", "restart", "a", "restart", "a", "b", "c"]
    assert currents == 1
    assert nodes.asked == [("now", ""), ("now", "6-0-x"), ("state", "")]
