"""What a leader reads of its log when a follower says that it gets damaged batches."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from bascule.controller.cluster.healing import accused as module
from bascule.controller.cluster.healing.accused import Accusation, Accusations
from bascule.host.real import RealRandom
from bascule.peer.replica_fetch import FETCH_BYTES_MAX
from bascule.publish.headers import HashKey
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.roles.commitment import PartitionRole
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig
from support.deciding_controller import DecidingController
from support.stored_batches import append, open_log

BATCHES, BATCH_BYTES = 60, 1_000
OFFSET = 20
"""Where the follower gets damaged batches."""


async def accuse(segment_bytes: int, damaged: int) -> tuple[bytes, list[str]]:
    """What a leader answers whose batch at `damaged` is damaged, and the damage that it found."""
    files = SimFiles(RealRandom(1))
    store = open_log(files, LogConfig(segment_bytes_max=segment_bytes, index_interval_bytes=1_500))
    for _ in range(BATCHES):
        append(store, size=BATCH_BYTES)
    store.sync()
    piece = store.plan_read(damaged, bytes_max=1, end=store.end)
    assert piece is not None
    files.open(piece.file.path).write_at(piece.position + BATCH_BYTES // 2, b"\xff")

    deciding = DecidingController()
    deciding.register(1, 2, 3)
    deciding.create("s", replicas=3)
    partitions, found = Partitions(), list[str]()
    partitions.bind(asyncio.get_running_loop())
    partitions.on_damaged = lambda _, error: found.append(str(error))
    partition = Partition(
        deciding.image.streams["s"], 0, log=store, failure=None, clock=SimClock(1_000),
        on_changed=partitions.notify_watchers, hash_key=HashKey(bytes(16)),
    )  # fmt: skip
    partitions.add((partition,))
    partition.commitment.role = PartitionRole.LEADER
    accusations = Accusations(1, partitions, cast(Any, None))
    body = Accusation(partition.definition.id, 0, 1, OFFSET)
    answer = await accusations.answer(msgspec.msgpack.encode(body))
    is_told = asyncio.Event()
    asyncio.get_running_loop().call_soon(is_told.set)  # after those who were told of damage
    await is_told.wait()
    return answer, found


@pytest.mark.parametrize("segment_bytes", [2_500, 10_000, 1 << 20])
@pytest.mark.parametrize("damaged", [OFFSET, OFFSET + 1, OFFSET + 25, BATCHES - 1])
def test_a_leader_finds_the_damage_behind_the_offset_that_a_follower_cannot_pass(
    damaged: int, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response has up to 16 MiB, of several segments, and is appended as a whole or not at
    all."""
    monkeypatch.setattr("bascule.storage.partition_log.VERIFY_BYTES", 2_000)
    answer, found = asyncio.run(accuse(segment_bytes, damaged))
    assert b"expected the CRC of the batch" in answer
    assert found == [answer.decode()]


def test_a_leader_reads_no_more_than_a_response_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.storage.partition_log.VERIFY_BYTES", 2_000)
    monkeypatch.setattr(module, "CHECKED_BYTES", 8_000)
    for segment_bytes in (2_500, 1 << 20):
        assert asyncio.run(accuse(segment_bytes, OFFSET + 7))[1]
        answer, found = asyncio.run(accuse(segment_bytes, OFFSET + 16))
        assert answer == b"nothing is wrong on the disk of the leader"
        assert not found


def test_a_leader_reads_from_the_segment_on_whose_batches_a_follower_gets_damaged() -> None:
    assert asyncio.run(accuse(1 << 20, 0))[1]
    answer, found = asyncio.run(accuse(2_500, 0))
    assert answer == b"nothing is wrong on the disk of the leader"
    assert not found


def test_what_a_leader_reads_covers_a_response() -> None:
    assert FETCH_BYTES_MAX + LogConfig().index_interval_bytes <= module.CHECKED_BYTES
