"""A stream that keeps the last record of each key, on a real node, as every reader sees it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

import bascule
from support.kafka_readers import READERS
from support.processes import Node, running_node, wait_for

KEYS = 300
TURNS = 6
Found = list[tuple[int, bytes | None, bytes | None]]
"""(offset, key, value) in the order in which they were read."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def publish(node: Node, subject: str) -> None:
    """Every key in every turn; in the last one every tenth is removed; and some without a key."""

    async def run() -> None:
        client = await nats.connect(node.addresses["nats"])
        js = client.jetstream(publish_async_max_pending=4_000)
        for turn in range(TURNS):
            sent = []
            for number in range(KEYS):
                headers = {"Bascule-Key": f"key-{number}"}
                if turn == TURNS - 1 and number % 10 == 0:
                    headers["KV-Operation"] = "DEL"
                sent.append(js.publish(subject, b"%d" % turn + b"." * 50, headers=headers))
            sent.append(js.publish(subject, b"no key %d" % turn))
            await asyncio.gather(*sent)
        # The active segment is left out: what follows moves everything before into closed ones.
        await asyncio.gather(*(js.publish(subject, os.urandom(900)) for _ in range(60)))
        await client.close()

    asyncio.run(run())


def expected(found: Found) -> None:
    """The last record of each key, and all without one, at the offsets they always had."""
    turn_records = KEYS + 1
    last = (TURNS - 1) * turn_records
    keyed = [row for row in found if row[1] is not None]
    assert len(keyed) == KEYS
    for number, (offset, key, value) in enumerate(sorted(keyed)):
        assert offset == last + number
        assert key == b"key-%d" % number
        is_removed = number % 10 == 0
        assert value == (None if is_removed else b"%d" % (TURNS - 1) + b"." * 50)
    bare = [row for row in found if row[1] is None]
    assert [offset for offset, _, _ in bare[:TURNS]] == [
        turn * turn_records + KEYS for turn in range(TURNS)
    ]
    assert len(bare) == TURNS + 60
    assert [offset for offset, _, _ in found] == sorted(offset for offset, _, _ in found)


def by_our_client(node: Node, name: str) -> Found:
    with bascule.connect_sync(node.addresses["http"]) as client:
        return [
            (message.offset, message.key, message.value)
            for message in client.read(name, start="earliest", end="latest")
        ]


def in_columns(node: Node, name: str) -> Found:
    with (
        bascule.connect_sync(node.addresses["http"]) as client,
        client.read_batches(name, start="earliest", end="latest") as batches,
    ):
        rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
    return [(row["offset"], row["key"], row["value"]) for row in rows]


def test_every_reader_sees_the_last_record_of_each_key(node: Node) -> None:
    names = {f"latest-{codec}": codec for codec in ("none", "lz4")}
    for name, codec in names.items():
        node.create(
            name, f"{name}.>", cleanup=["compact"], dirty_percent_min=0, dedupe_window_ms=0,
            compression=codec, segment_bytes_max=20_000,
        )  # fmt: skip
        publish(node, f"{name}.a")
        assert node.partition(name)["end_offset"] == TURNS * (KEYS + 1) + 60

    def compacted() -> bool | None:
        held = [len(by_our_client(node, name)) for name in names]
        return True if held == [KEYS + TURNS + 60] * len(names) else None

    wait_for(compacted, node.process, node.log)
    for name in names:
        for found in (by_our_client(node, name), in_columns(node, name)):
            expected(found)
        for read in READERS.values():
            seen = read(node.addresses["client"], name, KEYS + TURNS + 60)
            expected([(one.offset, one.key, one.value) for one in seen])


@pytest.mark.long
def test_a_compacted_stream_outlives_kill_9_and_compacts_on(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.create(
            "latest",
            "latest.>",
            cleanup=["compact"],
            dirty_percent_min=0,
            dedupe_window_ms=0,
            segment_bytes_max=20_000,
        )
        publish(node, "latest.a")
        for _ in range(3):
            node.stop(signal.SIGKILL)
            node.start()
        wait_for(
            lambda: len(by_our_client(node, "latest")) == KEYS + TURNS + 60 or None,
            node.process,
            node.log,
        )
        node.stop(signal.SIGKILL)
        node.start()
        expected(by_our_client(node, "latest"))
        # Without compaction the gaps stay readable, and what comes is kept.
        node.call("PATCH", "/v1/streams/latest", {"cleanup": ["delete"]})
        node.stop()
        node.start()
        expected(in_columns(node, "latest"))
