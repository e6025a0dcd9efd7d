"""`watch_table`: where a watcher goes on after its connection has broken."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import httpx
import pytest

from bascule.client.admin.refusals import error_of
from bascule.client.admin.table_events import TableEvent, lines_of
from bascule.client.tables.watch import watch_table
from bascule.errors import Broken, NotATable
from bascule.table_results import TableChange
from bascule.wire.tables.patterns import KeyPattern
from support.virtual_time import elapse
from support.virtual_time import run_virtually as run

RESTART = TableEvent("restart", "", {})


def seen(key: str, version: int, *, id: str = "") -> TableEvent:
    data = {"key": key, "version": version, "timestamp": 0, "value": "v"}
    return TableEvent("set", id, data)


def position(offset: int, id: str) -> TableEvent:
    return TableEvent("position", id, {"position": offset})


class Nodes:
    """Each connection sends some events, and breaks; or a node refuses, with a code."""

    def __init__(self, *connections: list[TableEvent] | str) -> None:
        self._connections = list(connections)
        self.asked: list[tuple[str, str]] = []
        """`start` and `Last-Event-ID` of each connection."""

    async def table_events(
        self, table: str, *, pattern: KeyPattern, start: str, last_id: str
    ) -> AsyncGenerator[TableEvent, None]:
        self.asked.append((start, last_id))
        events = self._connections.pop(0)
        if isinstance(events, str):
            raise error_of({"error": {"code": events, "message": "no"}}, what="GET", name=table)
        for event in events:
            yield event
        raise httpx.ReadError("the connection is gone")

    asked_server = "http://a"

    def turn_from(self, server: str) -> None:
        assert server == self.asked_server


def watched(nodes: Nodes, start: str, changes: int) -> tuple[list[str | TableChange], int]:
    """So many changes, with `restart` between, and the number of calls of `on_current`."""
    found: list[Any] = []
    currents: list[int] = []

    async def watch() -> None:
        steps = watch_table(
            lambda: cast("Any", nodes), "t", KeyPattern(b">"), start=start, timeout=60,
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


@pytest.mark.parametrize(
    "code",
    ["partition_failed", "not_leader", "cannot_replicate", "indeterminate", "unavailable",
     "closing", "busy", "internal"],
)  # fmt: skip
def test_a_watcher_goes_on_at_another_node_than_one_that_refuses(code: str) -> None:
    nodes = Nodes(code, [seen("a", 5, id="6-0-x")], code, [seen("b", 6, id="7-0-x")])
    assert watched(nodes, "now", 2)[0] == ["a", "b"]


def test_a_watcher_ends_where_no_node_would_do_it() -> None:
    with pytest.raises(NotATable):
        watched(Nodes("not_a_table"), "now", 1)
    with pytest.raises(Broken, match="no node could be watched for 60 s"):
        watched(Nodes(*["partition_failed"] * 200), "now", 1)


def test_an_idle_connection_is_no_failure() -> None:
    """Only the time without a connection counts: a table may have no changes for hours."""

    class IdleNodes(Nodes):
        async def table_events(
            self, table: str, *, pattern: KeyPattern, start: str, last_id: str
        ) -> AsyncGenerator[TableEvent, None]:
            try:
                async for event in super().table_events(
                    table, pattern=pattern, start=start, last_id=last_id
                ):
                    yield event
            except httpx.ReadError:
                await elapse(3_600)
                raise

    nodes = IdleNodes([seen("a", 5, id="6-0-x")], [seen("b", 6, id="7-0-x")])
    assert watched(nodes, "now", 2)[0] == ["a", "b"]
    with pytest.raises(Broken, match="no node could be watched for 60 s"):
        watched(IdleNodes([seen("a", 5)], *["partition_failed"] * 200), "now", 2)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1_000])
def test_only_line_feeds_end_a_line_of_an_event(size: int) -> None:
    lines = [
        "event: set",
        'data: {"key": "a\u2028b\u2029\x85\x0b", "value": "\u00e9"}',
        "",
        "id: 1",
    ]
    data = "".join(f"{line}\n" for line in lines).encode()

    async def chunks() -> AsyncGenerator[bytes, None]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    async def read() -> list[str]:
        return [line async for line in lines_of(chunks())]

    assert run(read()) == lines
