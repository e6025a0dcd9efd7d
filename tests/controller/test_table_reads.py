"""Reads of tables at a node that takes itself for the leader, and may be none any more."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest

from bascule.controller.cluster.tables.operations import ReadKeys, ReadOperation
from bascule.controller.cluster.tables.read_batches import TableReadBatches
from bascule.controller.cluster.tables.reads import TableReads
from bascule.errors import (
    BasculeError,
    Indeterminate,
    LogFailed,
    NotLeader,
    OffsetOutOfRange,
    PartitionFailed,
)
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


class FakeReplica:
    """That of node 1: as the real one where it has nothing to wait for, or has failed."""

    def __init__(self) -> None:
        self.position = self.complete_position = END
        self.ended: PartitionFailed | None = None
        self.error: BasculeError | None = None
        """Of who waits."""

    async def wait_position(self, offset: int, seconds: float) -> None:
        assert self.error is not None
        raise self.error

    def read_now(
        self, keys: Sequence[bytes], *, bytes_max: int
    ) -> tuple[int, dict[bytes, TableEntry]]:
        return self.position, {}


class Cluster:
    """Node 1 takes itself for the leader. `leader` is the one that the metadata say, once node 1
    has asked for them; 0: nobody answers."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.known = 1
        self.end = END
        """Of what is committed."""
        self.replicas = 1, 2
        self.definition = StreamDefinition("t", b"i" * 16, 0, CONFIG)
        log = SimpleNamespace(end=SimpleNamespace(offset=END))
        self.partition = partition = SimpleNamespace(
            definition=self.definition, is_leader=True, log=log, start_offset=0, failure=None
        )
        self.replica = replica = FakeReplica()
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
        return [PartitionState(self.replicas, self.replicas, self.known, 0, 0)]

    async def position(self, partition: object) -> int:
        """As `LeaderConfirmation`."""
        if not self.leader:
            raise NotLeader(None, 0)
        self.known = self.leader
        if self.leader != 1:
            raise NotLeader(self.leader, 1)
        return self.end

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        assert (node, kind) == (2, "tables")
        asked = msgspec.msgpack.decode(body, type=ReadOperation)
        assert isinstance(asked, ReadKeys)
        self.asked_at_least, self.asked = asked.at_least, asked
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


DISK_FULL: Final = PartitionFailed("t", 0, "its table does not follow: the disk is full")


@pytest.mark.parametrize("at_least", [0, END])
def test_a_table_that_does_not_follow_is_not_read_where_there_is_another_one(
    at_least: int,
) -> None:
    """It answered with old values, the leader's as well as another one's."""
    for leader in (1, 2):
        cluster = Cluster(leader)
        cluster.known = leader
        cluster.replica.ended = DISK_FULL
        assert run(cluster.reads.get_many("t", [b"k"], at_least=at_least)) == NEWER
        assert cluster.reads.counts.elsewhere == 1


def test_another_node_is_told_to_ask_elsewhere_where_the_table_does_not_follow() -> None:
    cluster = Cluster(1)
    body = msgspec.msgpack.encode(ReadKeys("t", [b"k"]))
    found = msgspec.msgpack.decode(run(cluster.reads.answer(body)), type=TableValues)
    assert found == TableValues(END, [])
    cluster.replica.ended = DISK_FULL
    with pytest.raises(PartitionFailed):
        run(cluster.reads.answer(body))


def test_the_only_table_is_read_though_it_does_not_follow() -> None:
    """But not for what it does not have."""
    cluster = Cluster(1)
    cluster.replicas = (1,)
    cluster.replica.ended = cluster.replica.error = DISK_FULL
    assert run(cluster.reads.get_many("t", [b"k"])) == TableValues(END, [])
    cluster.end = END + 1
    cluster.partition.log.end.offset = END + 1
    for asked in (ReadKeys("t", [b"k"], END + 1), ReadKeys("t", [b"k"], linearizable=True)):
        with pytest.raises(PartitionFailed):
            run(cluster.reads.answer(msgspec.msgpack.encode(asked)))


@pytest.mark.parametrize("error", [DISK_FULL, LogFailed("0.db", "disk I/O error")])
def test_a_session_of_a_table_that_has_just_failed_is_read_elsewhere(error: BasculeError) -> None:
    cluster = Cluster(2)
    cluster.known = 2
    cluster.partition.is_leader = False
    cluster.replica.error = error
    assert run(cluster.reads.get_many("t", [b"k"], at_least=END + 1)) == NEWER
    assert cluster.asked_at_least == END + 1


@pytest.mark.parametrize("error", [DISK_FULL, Indeterminate("behind")])
def test_a_leader_whose_table_fails_has_another_replica_answer_linearizable_reads(
    error: BasculeError,
) -> None:
    """That one has to have what is committed once this node is confirmed to lead."""
    cluster = Cluster(1)
    cluster.end, cluster.replica.error = END + 2, error
    assert run(cluster.reads.get_many("t", [b"k"], linearizable=True)) == NEWER
    assert cluster.asked == ReadKeys("t", [b"k"], at_least=END + 2, linearizable=False)


def test_a_position_beyond_the_log_of_who_may_lead_no_more_is_indeterminate() -> None:
    with pytest.raises(Indeterminate, match="another node may lead"):
        run(Cluster(0).reads.get_many("t", [b"k"], at_least=9))
