"""Retention of a real node: limits, where readers begin, an archive that is waited for, kill -9."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.client import SyncClient
from bascule.errors import OffsetOutOfRange
from support.processes import Node, running_nats, running_node, wait_for


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("retention")
    with running_nats(directory / "nats") as nats, running_node(directory, nats=nats.url) as node:
        yield node


def until(node: Node, name: str, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The partition as it is once something is true of it."""

    def look() -> dict[str, Any] | None:
        now = node.partition(name)
        return now if true(now) else None

    found: dict[str, Any] = wait_for(look, node.process, node.log)
    return found


def fill(client: SyncClient, name: str, count: int) -> None:
    for first in range(0, count, 100):
        client.publish_many((f"{name}.x", b"message %d" % (first + n)) for n in range(100))


def test_readers_begin_where_the_log_does(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_stream("kept", "kept.>", retention_messages_max=400)
        fill(client, "kept", 3_000)
        found = until(node, "kept", lambda p: p["end_offset"] - p["start_offset"] < 600)
        assert found["end_offset"] == 3_000
        start = found["start_offset"]
        assert start <= 2_600
        held = [(message.offset, message.value) for message in client.read("kept")]
        assert held == [(n, b"message %d" % n) for n in range(start, 3_000)]
        with pytest.raises(OffsetOutOfRange) as caught:
            next(client.read("kept", start=start - 1))
        assert caught.value.start == start
    # Said right after it is done, so maybe after a reader sees it.
    said = "retention stream=kept"
    wait_for(lambda: said in node.log.read_text() or None, node.process, node.log)
    node.stop(signal.SIGKILL)
    node.start()
    assert node.partition("kept")["start_offset"] == start
    assert node.partition("kept")["end_offset"] == 3_000
    assert int(logs(node, "kept")[0].stem) == start


def test_what_has_expired_goes_though_nothing_follows_it(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_stream("brief", "brief.>", retention_ms_max=1_000)
        fill(client, "brief", 200)
        found = until(node, "brief", lambda p: p["start_offset"] == 200)
        assert (found["end_offset"], found["bytes"]) == (200, 0)
        fill(client, "brief", 100)
        assert node.partition("brief")["end_offset"] == 300


def test_an_archive_is_waited_for(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        for name, archive in (("awaited", "lake"), ("free", "")):
            client.create_stream(
                name, f"{name}.>", retention_messages_max=100, retention_after=archive
            )
            fill(client, name, 1_000)
        until(node, "free", lambda p: p["start_offset"] > 700)
        assert node.partition("awaited")["start_offset"] == 0
        client.reset_offsets("lake", "awaited", offset=500)
        found = until(node, "awaited", lambda p: p["start_offset"] > 0)
        assert found["start_offset"] <= 500


def logs(node: Node, name: str) -> list[Path]:
    return sorted((node.directory / "data/streams" / name / "0").glob("*.log"))
