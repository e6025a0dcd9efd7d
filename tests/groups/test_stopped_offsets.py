"""The stream of committed offsets has stopped on the node that leads it, or has led it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bascule.errors import NotLeader, PartitionFailed
from bascule.groups import CommittedOffsetStore
from bascule.groups.offset_records import stop_of
from bascule.model import NO_LEADER, PartitionState
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.offsets import OFFSETS_STREAM, Commit, OffsetKey
from support.served_stream import NODE, make_offset_store, open_stream

KEY = OffsetKey("billing", "flights", 0)
OTHER = NODE.node_id + 1
BOTH = NODE.node_id, OTHER


def set_state(
    partition: Partition, isr: tuple[int, ...], leader: int, *, eligible: tuple[int, ...] = ()
) -> None:
    epoch = partition.leader_epoch + (leader != NODE.node_id)
    state = PartitionState(BOTH, isr, leader, epoch, 1, eligible=eligible)
    partition.set_role(state, NODE.node_id, lag_ns_max=1 << 60)


@asynccontextmanager
async def stopped(
    directory: Path, isr: tuple[int, ...], *, eligible: tuple[int, ...] = ()
) -> AsyncIterator[tuple[CommittedOffsetStore, Partition]]:
    """Of a node that leads with one commit, whose log has failed then."""
    partitions = Partitions()
    open_stream(directory, partitions)
    partition = open_stream(directory, partitions, OFFSETS_STREAM)
    partitions.bind(asyncio.get_running_loop())
    offsets = make_offset_store(partitions)
    offsets.start()
    await offsets.commit([(KEY, Commit(offset=1))])
    set_state(partition, isr, NODE.node_id, eligible=eligible)
    assert stop_of(partition) is None
    partition.fail("bad sector")
    yield offsets, partition
    await offsets.close()


@pytest.mark.parametrize(("isr", "eligible"), [(BOTH, ()), ((NODE.node_id,), (OTHER,))])
def test_another_replica_is_about_to_lead(
    tmp_path: Path, isr: tuple[int, ...], eligible: tuple[int, ...]
) -> None:
    async def test() -> None:
        async with stopped(tmp_path, isr, eligible=eligible) as (offsets, _):
            for refused in (offsets.wait_caught_up(), offsets.commit([(KEY, Commit(offset=2))])):
                with pytest.raises(NotLeader, match="no leader is known"):
                    await refused
            # A replica that begins anew uses it.
            assert await offsets.largest("flights", 0) == 1

    asyncio.run(test())


def test_another_replica_leads(tmp_path: Path) -> None:
    """It is the only one in sync: requests from before wait for the position to be read."""

    async def test() -> None:
        async with stopped(tmp_path, BOTH) as (_, partition):
            set_state(partition, (OTHER,), OTHER)
            stop = stop_of(partition)
            assert isinstance(stop, NotLeader)
            assert stop.leader == OTHER

    asyncio.run(test())


def test_nobody_else_can_lead(tmp_path: Path) -> None:
    async def test() -> None:
        async with stopped(tmp_path, (NODE.node_id,)) as (offsets, partition):
            with pytest.raises(PartitionFailed, match="bad sector"):
                await offsets.wait_caught_up()
            set_state(partition, (NODE.node_id,), NO_LEADER)
            assert isinstance(stop_of(partition), NotLeader)

    asyncio.run(test())
