"""Committed offsets over a real log: commits, removals, repairs, resets, compaction, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bascule.errors import (
    GroupHasMembers,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionFailed,
    UnknownPartition,
    UnknownStream,
)
from bascule.groups import CommittedOffsetStore, committed_offsets
from bascule.groups.offset_records import REPAIRS_HEADER
from bascule.host.real import RealFiles
from bascule.model import PartitionState
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.internal_publisher import InternalRecord
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.roles.commitment import LogFlags
from bascule.storage.partition_log import LogConfig
from bascule.wire.offsets import OFFSETS_STREAM, Commit, OffsetKey, commit_subject, encode_commit
from support.keyed_logs import close_segment, compact
from support.served_stream import (
    TIMESTAMP,
    DirectPublisher,
    ManualClock,
    append,
    make_offset_store,
    make_records,
    open_stream,
)

KEY = OffsetKey("billing", "flights", 0)


class OffsetsHarness:
    """A stream of 30 records, the stream `_offsets`, and a publisher to it."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.partitions = Partitions()
        self.flights = open_stream(directory, self.partitions, clock=self.clock)
        for batch in range(3):
            append(self.flights, make_records(10 * batch, 10))
            self.clock.wall_ms += 1_000
        self.log = open_stream(directory, self.partitions, OFFSETS_STREAM, clock=self.clock)
        self.publisher = DirectPublisher(self.partitions)

    async def put(
        self,
        value: bytes | None,
        key: OffsetKey = KEY,
        *,
        subject: str | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> int:
        """Publish a record to `_offsets`, as any NATS client may."""
        name = subject or commit_subject(key)
        record = InternalRecord(name, commit_subject(key).encode(), value, headers)
        return await self.publisher.publish(OFFSETS_STREAM, 0, [record])

    async def wait_until(self, reached: Callable[[], bool], offsets: CommittedOffsetStore) -> None:
        """Wait until `reached` holds, checking after each append to `_offsets`."""
        while not reached():
            await self.moved.wait()
            self.moved.clear()
            await offsets.wait_caught_up()

    def run(self, test: Callable[[CommittedOffsetStore], Awaitable[None]]) -> CommittedOffsetStore:
        """Run `test` with a started store; return the closed store."""
        offsets = make_offset_store(self.partitions)

        async def run_test() -> None:
            self.partitions.bind(asyncio.get_running_loop())
            self.moved = asyncio.Event()
            self.log.watchers.add(self.moved.set)
            offsets.start()
            await offsets.wait_caught_up()
            try:
                await test(offsets)
            finally:
                await offsets.close()

        asyncio.run(run_test())
        return offsets


@pytest.fixture
def harness(tmp_path: Path) -> OffsetsHarness:
    return OffsetsHarness(tmp_path)


def test_a_commit_is_visible_once_acknowledged_and_after_a_restart(harness: OffsetsHarness) -> None:
    async def commit(offsets: CommittedOffsetStore) -> None:
        assert offsets.committed("billing", "flights", 0) is None
        await offsets.commit([(KEY, Commit(offset=5, leader_epoch=2, metadata="x"))])
        assert offsets.committed("billing", "flights", 0) == 5
        await offsets.commit(
            [(KEY, Commit(offset=9)), (KEY._replace(consumer="b.c"), Commit(offset=1))]
        )

    harness.run(commit)

    async def look(offsets: CommittedOffsetStore) -> None:
        assert offsets.committed("billing", "flights", 0) == 9
        assert offsets.committed("b.c", "flights", 0) == 1
        first, second = offsets.entries()
        assert (first.consumer, second.consumer) == ("b.c", "billing")
        assert second.committed_ms == TIMESTAMP
        assert (second.start_offset, second.high_watermark, second.lag) == (0, 30, 21)
        assert offsets.entries(consumer="b.c") == [first]
        assert offsets.entries(stream="other") == []

    counts = harness.run(look).counts
    assert (counts.commits, counts.held) == (3, 2)


def test_while_a_group_has_members_only_its_coordinator_commits(harness: OffsetsHarness) -> None:
    other, gone = KEY._replace(partition=3), KEY._replace(stream="gone")

    async def test(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=5))])
        await offsets.store_group("billing", b"members")
        await harness.put(encode_commit(Commit(offset=7)))
        await harness.put(None)
        await harness.put(encode_commit(Commit(offset=7)), other)
        with pytest.raises(GroupHasMembers, match="billing"):
            await offsets.commit([(KEY, Commit(offset=8))])
        with pytest.raises(GroupHasMembers, match="billing"):
            await offsets.remove(consumer="billing", stream=None)
        await harness.wait_until(lambda: offsets.counts.repairs >= 2, offsets)
        assert committed(offsets) == {KEY: 5}
        assert offsets.counts.fenced == 3
        await offsets.wait_read(
            await offsets.store_checked([(KEY, Commit(offset=9)), (gone, Commit(offset=9))]), 2
        )
        await offsets.remove_deleted("gone", None)
        assert committed(offsets) == {KEY: 9}

    harness.run(test)
    # After a compaction the state of the group may stand behind what was ignored before.
    offsets = harness.run(settled)
    assert committed(offsets) == {KEY: 9}
    assert offsets.group_states == {"billing": b"members"}

    async def leave(offsets: CommittedOffsetStore) -> None:
        await offsets.store_group("billing", None)
        await harness.put(encode_commit(Commit(offset=7)), other)
        await offsets.wait_caught_up()
        assert committed(offsets) == {KEY: 9, other: 7}
        await offsets.remove(consumer="billing", stream=None)

    assert harness.run(leave).group_states == {}


async def settled(offsets: CommittedOffsetStore) -> None:
    await offsets.wait_caught_up()


def test_any_publisher_may_commit_and_remove(harness: OffsetsHarness) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        await harness.put(b'{"offset": 12}')
        await offsets.wait_caught_up()
        (entry,) = offsets.entries()
        assert (entry.offset, entry.committed_ms) == (12, harness.clock.wall_ms)
        await harness.put(None)
        await offsets.wait_caught_up()
        assert offsets.entries() == []

    counts = harness.run(test).counts
    assert (counts.commits, counts.removals, counts.held) == (1, 1, 0)


def test_a_malformed_commit_is_counted_and_the_valid_one_is_repaired(
    harness: OffsetsHarness,
) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        await harness.put(b'{"offset": 12}')
        await harness.put(b"12")
        await offsets.wait_caught_up()
        assert offsets.committed("billing", "flights", 0) == 12
        await harness.wait_until(lambda: offsets.counts.commits == 2, offsets)
        await harness.put(b'{"offset": 1}', subject="_bascule.offsets.somebody.else.0")
        await offsets.wait_caught_up()

    counts = harness.run(test).counts
    assert (counts.malformed, counts.repairs) == (2, 1)
    # The last record of the key is valid again, so compaction keeps the commit.
    last = stored(harness)[2]
    assert last.value is not None
    assert last.value.startswith(b'{"offset":12,')
    assert dict(last.headers)[REPAIRS_HEADER] == b"1"


def test_a_restarted_node_repairs_a_replaced_commit(harness: OffsetsHarness) -> None:
    async def replace_commit() -> None:
        harness.partitions.bind(asyncio.get_running_loop())
        await harness.put(b'{"offset": 12}')
        await harness.put(b"rubbish")

    asyncio.run(replace_commit())

    async def test(offsets: CommittedOffsetStore) -> None:
        await harness.wait_until(lambda: offsets.counts.repairs > 0, offsets)
        await offsets.wait_caught_up()
        assert offsets.committed("billing", "flights", 0) == 12

    harness.run(test)


def test_a_stale_repair_does_not_move_a_consumer_back(harness: OffsetsHarness) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        await harness.put(b'{"offset": 12}')
        await harness.put(b"rubbish")
        await harness.put(b'{"offset": 20}')
        # The repair of a node that had read only the first two records.
        await harness.put(b'{"offset": 12}', headers=((REPAIRS_HEADER, b"1"),))
        await offsets.wait_caught_up()
        assert offsets.committed("billing", "flights", 0) == 20
        await harness.wait_until(lambda: offsets.counts.repairs > 0, offsets)
        await offsets.wait_caught_up()

    harness.run(test)
    values = [record.value for record in stored(harness)]
    assert values[-1] is not None
    assert values[-1].startswith(b'{"offset":20,')


def test_a_stale_repair_does_not_bring_back_a_removed_commit(harness: OffsetsHarness) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        await harness.put(b'{"offset": 12}')
        await harness.put(b"rubbish")
        await harness.put(None)
        # The repair of a node that had read only the first two records.
        await harness.put(b'{"offset": 12}', headers=((REPAIRS_HEADER, b"1"),))
        await offsets.wait_caught_up()
        assert committed(offsets) == {}
        await harness.wait_until(lambda: offsets.counts.repairs > 0, offsets)
        await offsets.wait_caught_up()

    harness.run(test)
    assert stored(harness)[-1].value is None
    assert committed(harness.run(settled)) == {}


def test_a_repair_may_follow_an_earlier_removal(harness: OffsetsHarness) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        await harness.put(None)
        await harness.put(b'{"offset": 12}')
        await harness.put(b"rubbish")
        await harness.wait_until(lambda: offsets.counts.repairs > 0, offsets)
        await offsets.wait_caught_up()
        assert committed(offsets) == {KEY: 12}

    harness.run(test)


def test_a_commit_that_waits_when_its_stream_is_deleted_is_removed(
    harness: OffsetsHarness,
) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        waiting = offsets.store_checked([(KEY, Commit(offset=5))])
        (gone,) = harness.partitions.remove(harness.flights.definition)
        assert gone.log is not None
        gone.log.close()
        await offsets.remove_deleted("flights", None)
        assert waiting.done()
        assert offsets.keys("billing") == []

    harness.run(test)
    assert stored(harness)[-1].value is None


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["commit", "commit", "commit", "remove", "rubbish", "compact"]),
    ),
    max_size=60,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS)
def test_compaction_keeps_committed_offsets(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[int, str]]
) -> None:
    harness = OffsetsHarness(tmp_path_factory.mktemp("harness"))
    log, model = harness.log.log, dict[tuple[str, str, int], int]()
    assert log is not None
    log.configure(LogConfig(gaps_allowed=True))

    async def test(offsets: CommittedOffsetStore) -> None:
        repairs = 0
        for offset, (consumer, what) in enumerate([*actions, (0, "compact")]):
            harness.clock.wall_ms += 1_000
            key = KEY._replace(consumer=f"consumer {consumer}")
            if what == "commit":
                await harness.put(b'{"offset": %d}' % offset, key)
                model[key] = offset
            elif what == "remove":
                await harness.put(None, key)
                model.pop(key, None)
            elif what == "rubbish":
                await harness.put(b"{}", key)
                repairs += key in model
                await harness.wait_until(partial(are_repaired, offsets, repairs), offsets)
            else:
                close_segment(log)
                # A week later compaction removes the tombstones too.
                harness.clock.wall_ms += 7 * 86_400_000
                compact(RealFiles(), log, now_ms=harness.clock.wall_ms, retention_ms=1_000)
        await offsets.wait_caught_up()
        assert committed(offsets) == model

    harness.run(test)

    async def look(offsets: CommittedOffsetStore) -> None:
        assert committed(offsets) == model

    harness.run(look)
    log.close()


def are_repaired(offsets: CommittedOffsetStore, repairs: int) -> bool:
    return offsets.counts.repairs == repairs


def committed(offsets: CommittedOffsetStore) -> dict[tuple[str, str, int], int]:
    return {(e.consumer, e.stream, e.partition): e.offset for e in offsets.entries()}


def test_a_recreated_stream_has_no_commits(harness: OffsetsHarness, tmp_path: Path) -> None:
    async def commit(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=5))])

    harness.run(commit)
    (gone,) = harness.partitions.remove(harness.partitions.stream("flights")[0].definition)
    assert gone.log is not None
    gone.log.close()
    again = open_stream(tmp_path / "again", harness.partitions, clock=harness.clock)
    object.__setattr__(again.definition, "id", b"another stream's")

    async def look(offsets: CommittedOffsetStore) -> None:
        assert offsets.committed("billing", "flights", 0) is None
        assert offsets.entries() == []

    harness.run(look)


def test_the_deletion_of_a_stream_removes_no_commits_for_the_next_one(
    harness: OffsetsHarness, tmp_path: Path
) -> None:
    """They may come before those of the deleted stream are removed."""
    late = KEY._replace(consumer="late")

    async def test(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=5)), (late, Commit(offset=5))])
        (gone,) = harness.partitions.remove(harness.flights.definition)
        assert gone.log is not None
        gone.log.close()
        again = open_stream(tmp_path / "again", harness.partitions, clock=harness.clock)
        object.__setattr__(again.definition, "id", b"another stream's")
        await offsets.commit([(KEY, Commit(offset=3))])
        await offsets.remove_deleted("flights", again.definition)
        assert offsets.keys("late") == []
        assert committed(offsets) == {tuple(KEY): 3}

    harness.run(test)


def test_a_stream_created_while_the_clock_was_ahead_has_its_commits(
    harness: OffsetsHarness,
) -> None:
    (flights,) = harness.partitions.stream("flights")
    object.__setattr__(flights.definition, "created_ms", harness.clock.wall_ms + 1_000_000)

    async def commit(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=5))])
        assert offsets.committed("billing", "flights", 0) == 5

    harness.run(commit)


def test_a_commit_without_a_stream_id_counts_from_the_creation_on(
    harness: OffsetsHarness,
) -> None:
    """As commits over NATS are, and those of release 0.1.0."""
    (flights,) = harness.partitions.stream("flights")

    async def commit(offsets: CommittedOffsetStore) -> None:
        subject = commit_subject(KEY)
        record = InternalRecord(subject, subject.encode(), encode_commit(Commit(offset=5)))
        await offsets._publisher.publish(OFFSETS_STREAM, 0, [record])
        await offsets.wait_caught_up()
        assert offsets.committed("billing", "flights", 0) == 5
        object.__setattr__(flights.definition, "created_ms", harness.clock.wall_ms + 1_000_000)
        assert offsets.committed("billing", "flights", 0) is None

    harness.run(commit)


@pytest.mark.parametrize(
    ("to", "at_ms", "found"),
    [
        ("earliest", 0, 0),
        ("latest", 0, 30),
        (17, 0, 17),
        ("time", TIMESTAMP + 500, 10),
        ("time", TIMESTAMP + 50_000, 30),
    ],
)
def test_a_position_is_an_offset(
    harness: OffsetsHarness, to: int | str, at_ms: int, found: int
) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        assert await offsets.resolve("flights", 0, to, at_ms=at_ms) == found

    harness.run(test)


def test_a_position_out_of_range_is_refused(harness: OffsetsHarness) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        with pytest.raises(OffsetOutOfRange):
            await offsets.resolve("flights", 0, 31, at_ms=0)
        with pytest.raises(UnknownPartition):
            await offsets.resolve("flights", 1, "latest", at_ms=0)
        with pytest.raises(UnknownStream):
            await offsets.resolve("trains", 0, "latest", at_ms=0)

    harness.run(test)


def test_remove(harness: OffsetsHarness) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        keys = [
            OffsetKey(consumer, stream, partition)
            for consumer in "ab"
            for stream in "st"
            for partition in (0, 1)
        ]
        await offsets.commit([(key, Commit(offset=1)) for key in keys])
        assert await offsets.remove(consumer="a", stream="s", partition=1) == [("a", "s", 1)]
        assert await offsets.remove(consumer="a", stream="s", partition=1) == []
        await offsets.remove_deleted("t", None)
        assert [e[:2] for e in map(key_of, offsets.entries())] == [
            ("a", "s"),
            ("b", "s"),
            ("b", "s"),
        ]

    harness.run(test)


def key_of(entry: object) -> tuple[str, str, int]:
    return (entry.consumer, entry.stream, entry.partition)  # type: ignore[attr-defined]


def test_commits_beyond_the_limit_are_refused_and_those_over_nats_ignored(
    harness: OffsetsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_offsets, "COMMITS_MAX", 1)
    other, third = KEY._replace(partition=1), KEY._replace(partition=2)

    async def test(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=1))])
        with pytest.raises(LimitExceeded, match="is 1, asked for 2"):
            await offsets.commit([(KEY, Commit(offset=9)), (other, Commit(offset=9))])
        await offsets.commit([(KEY, Commit(offset=2))])
        await harness.put(encode_commit(Commit(offset=1)), third)
        await offsets.wait_caught_up()
        assert committed(offsets) == {KEY: 2}
        assert offsets.counts.malformed == 1

    harness.run(test)


def test_no_acknowledged_commit_is_ignored(
    harness: OffsetsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are accepted before the first one is in memory, which holds one."""
    monkeypatch.setattr(committed_offsets, "COMMITS_MAX", 1)
    other = KEY._replace(partition=1)

    async def test(offsets: CommittedOffsetStore) -> None:
        stored = [offsets.store_checked([(key, Commit(offset=1))]) for key in (KEY, other)]
        for each in stored:
            await offsets.wait_read(await each, 1)
        assert committed(offsets) == {KEY: 1, other: 1}

    harness.run(test)
    assert committed(harness.run(settled)) == {KEY: 1, other: 1}


def test_a_failed_offsets_stream_raises(harness: OffsetsHarness) -> None:
    async def test(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=1))])
        harness.log.fail("bad sector")
        for refused in (offsets.wait_caught_up(), offsets.commit([(KEY, Commit(offset=2))])):
            with pytest.raises(PartitionFailed, match="bad sector"):
                await refused
        # Retention uses the last offset that was read.
        assert offsets.committed("billing", "flights", 0) == 1

    harness.run(test)


def test_a_missing_offsets_stream_raises(tmp_path: Path) -> None:
    async def test() -> None:
        offsets = make_offset_store(Partitions())
        offsets.start()
        assert offsets.committed("billing", "flights", 0) is None
        with pytest.raises(PartitionFailed):
            await offsets.wait_caught_up()
        await offsets.close()

    asyncio.run(test())


def test_commits_that_an_unclean_election_removed_are_forgotten(harness: OffsetsHarness) -> None:
    other, gone = KEY._replace(consumer="other"), KEY._replace(consumer="gone")

    async def commit(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=1))])
        end = harness.log.high_watermark.offset
        await offsets.store_group("gone", b"members")
        await offsets.wait_read(
            await offsets.store_checked([(KEY, Commit(offset=5)), (gone, Commit(offset=5))]), 2
        )
        assert offsets.committed(*KEY) == 5
        # Another leader lacks all but the first commit, and has others in their place. The loop
        # hears of it after the next line.
        follow_another_leader(harness.log, end, [(other, 7), (KEY, 2), (other, 8), (KEY, 3)])
        assert not offsets.has_read_all, "a coordinator would load what is gone"
        await offsets.wait_caught_up()
        assert offsets.has_read_all
        assert committed(offsets) == {tuple(KEY): 3, tuple(other): 8}
        assert offsets.group_states == {}
        assert offsets.consumers() == ["billing", "other"]
        assert offsets.counts.held == 2

    harness.run(commit)


def follow_another_leader(
    partition: Partition, end: int, commits: list[tuple[OffsetKey, int]]
) -> None:
    """Follow the leader of an unclean election, whose log has these commits from `end` on."""
    epoch = partition.leader_epoch + 1
    state = PartitionState((7, 8), (8,), 8, epoch, 0, unclean_epoch=epoch)
    partition.set_role(state, 7, lag_ns_max=0)
    partition.truncate_replicated(end)
    for base, (key, offset) in enumerate(commits, end):
        subject = commit_subject(key).encode()
        record = Record(
            base, TIMESTAMP, subject, encode_commit(Commit(offset=offset)), (("subject", subject),)
        )
        batch = build_batch([record], base_offset=base, leader_epoch=epoch)
        partition.append_replicated(memoryview(batch), LogFlags(False, False))
    partition.on_leader_watermark(end + len(commits), partition.leader_epoch)


def stored(harness: OffsetsHarness) -> list[Record]:
    from support.stored_batches import read_records

    assert harness.log.log is not None
    return read_records(harness.log.log)
