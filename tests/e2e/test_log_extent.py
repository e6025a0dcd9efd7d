"""The extent of a log, by which an archive, an audit and a replay plan, as a real node tells it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bascule.client import connect_sync
from bascule.errors import PartitionFailed
from bascule.pipeline.jobs.archive.endpoints import log_extent_of
from bascule.pipeline.jobs.replay.state import ReplayState, stored_since
from support.processes import running_node

IDS = [b"ab.0.7", b"ab.0.8", b"other", b"ab.1.3"]


def test_a_partition_that_cannot_tell_its_end_is_not_taken_for_empty(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        server = node.addresses["http"]
        node.create("flights", "flights")
        with connect_sync(server) as client:
            for id in IDS:
                client.publish("flights", b"x" * 100, headers={"Nats-Msg-Id": id.decode()})
            held = log_extent_of(server, "flights")
            assert held.partitions == {0: (0, 4)}
            assert held.bytes > 400
            assert held.id == client.stream("flights").definition.id.hex()
            with ThreadPoolExecutor(4) as threads:
                asked = [threads.submit(log_extent_of, server, "flights") for _ in range(20)]
            assert {each.result().id for each in asked} == {held.id}
            state = ReplayState(
                table="t", stream_id="ab", to="flights", to_id=held.id, next={}, to_ends={"0": 1}
            )
            assert stored_since(client, state, held) == {0: [8], 1: [3]}
    (path,) = (tmp_path / "data/streams/flights/0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    with running_node(tmp_path) as node, pytest.raises(PartitionFailed, match="flights"):
        log_extent_of(node.addresses["http"], "flights", retry_timeout_ms=1)
