"""What a sender does where replicas have no room. Nodes are in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.errors import DiskFull
from e2e.test_payload_peers import MIB, content, stored, whole, writer
from support.payload_nodes import PayloadNode, payload_nodes


def fill(
    node: PayloadNode, monkeypatch: pytest.MonkeyPatch, asked: Callable[[], None] = lambda: None
) -> None:
    """Leave no room on a node's disk; `asked` is called when it is asked for some."""

    def check_room(size: int = 0) -> None:
        asked()
        raise DiskFull(str(node.directory), 0)

    monkeypatch.setattr(node.store.payloads, "check_room", check_room)


def test_a_replica_that_comes_back_takes_what_another_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(2 * MIB)
    with payload_nodes(tmp_path, 2) as nodes:
        full, restarting = nodes[1], nodes[2]
        restarting.stop()
        fill(full, monkeypatch, lambda: restarting.is_running or restarting.start())
        asyncio.run(stored(data, writer(restarting.address, full.address)))
        assert whole(restarting) == data


def test_no_room_on_all_replicas_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a node without a replica is asked as well."""
    with payload_nodes(tmp_path, 3) as nodes:
        for number in (1, 2):
            nodes[number].alive = [nodes[1], nodes[2]]
            fill(nodes[number], monkeypatch)
        nodes[3].alive, nodes[3].has_replica = [nodes[1], nodes[2]], False
        for addresses in (
            [nodes[1].address, nodes[2].address],
            [nodes[3].address],
            [nodes[1].address, nodes[3].address],
        ):
            with pytest.raises(DiskFull):
                asyncio.run(stored(b"1", writer(*addresses, timeout=600)))


def test_no_room_is_said_at_last_where_other_replicas_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        fill(nodes[1], monkeypatch)
        nodes[2].stop()
        with pytest.raises(DiskFull):
            asyncio.run(stored(b"1", writer(nodes[1].address, nodes[2].address, timeout=0.5)))
