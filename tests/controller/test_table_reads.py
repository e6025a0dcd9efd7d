"""Reads of tables at a node that takes itself for the leader, and may be none any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest

from bascule.controller.cluster.tables.operations import ReadKeys
from bascule.controller.cluster.tables.read_batches import TableReadBatches
from bascule.controller.cluster.tables.reads import TableReads
from bascule.errors import Indeterminate, NotLeader, OffsetOutOfRange, PartitionFailed
from bascule.model import Cleanup, KeyFrom, PartitionState, StreamConfig, StreamDefinition
from bascule.table_results import TableEntry, TableValues
from bascule.wire.tables.read_batches import KeyRead
from support.virtual_time import run_virtually as run

CONFIG: Final = StreamConfig(
    "$KV.t.>", cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT, table=True
)
END: Final = 5
"""Of the log of node 1, and of its table."""
NEWER: Final = TableValues(9, [TableEntry(b"k", 8, 0, b"newer")])


class Cluster:
    """Node 1 takes itself for the leader. `leader` is the one that the metadata say, once node 1
    has asked for them; 0: nobody answers."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.known = 1
        self.definition = StreamDefinition("t", b"i" * 16, 0, CONFIG)
        log = SimpleNamespace(end=SimpleNamespace(offset=END))
        self.partition = partition = SimpleNamespace(
            definition=self.definition, is_leader=True, log=log, start_offset=0, failure=None
        )
        replica = SimpleNamespace(position=END, complete_position=END)
        views = SimpleNamespace(definition=lambda _: self.definition, states=self.states)
        self.reads = TableReads(
            1,
            cast("Any", SimpleNamespace(stream=lambda _: (partition,))),
            cast("Any", SimpleNamespace(replica=lambda *_: replica)),
            cast("Any", views),
            cast("Any", self),
            cast("Any", self),
        )

    def states(self, id: bytes) -> list[PartitionState]:
        return [PartitionState((1, 2), (1, 2), self.known, 0, 0)]

    async def position(self, partition: object) -> int:
        """As `LeaderConfirmation`."""
        if not self.leader:
            raise NotLeader(None, 0)
        self.known = self.leader
        if self.leader != 1:
            raise NotLeader(self.leader, 1)
        return END

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        assert (node, kind) == (2, "tables")
        self.asked_at_least = msgspec.msgpack.decode(body, type=ReadKeys).at_least
        return msgspec.msgpack.encode(NEWER)


def test_a_position_beyond_the_log_of_the_leader_is_out_of_range() -> None:
    with pytest.raises(OffsetOutOfRange):
        run(Cluster(1).reads.get_many("t", [b"k"], at_least=9))


def test_a_position_beyond_the_log_of_a_deposed_leader_is_asked_of_the_next_one() -> None:
    """A leader that was cut off does not have what its successor has acknowledged."""
    cluster = Cluster(2)
    assert run(cluster.reads.get_many("t", [b"k"], at_least=9)) == NEWER
    assert cluster.asked_at_least == 9


def test_a_replica_that_has_stopped_is_not_read_where_there_is_another_one() -> None:
    cluster = Cluster(2)
    cluster.partition.failure = PartitionFailed("t", 0, "damaged")
    assert run(cluster.reads.get_many("t", [b"k"])) == NEWER


def test_a_replica_that_has_stopped_answers_no_batch_of_reads_at_once() -> None:
    replica = SimpleNamespace(
        complete_position=END,
        ended=None,
        read_now=lambda _, *, bytes_max: (END, {}) if bytes_max else None,
    )
    tables: Any = SimpleNamespace(replica=lambda _, __: replica)
    batches = TableReadBatches(Cluster(2).reads, tables)
    reads = [KeyRead("t", [b"k"], 0, linearizable=False)]
    assert batches.read_now(reads) == [TableValues(END, [])]
    replica.ended = PartitionFailed("t", 0, "damaged")
    assert batches.read_now(reads) is None


def test_a_position_beyond_the_log_of_who_may_lead_no_more_is_indeterminate() -> None:
    with pytest.raises(Indeterminate, match="another node may lead"):
        run(Cluster(0).reads.get_many("t", [b"k"], at_least=9))
