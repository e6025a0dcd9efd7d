"""The leader's side of replica fetches: one session at a time, driven by hand."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from bascule.errors import CorruptData
from bascule.model import PartitionState
from bascule.peer.record_slices import SEGMENTS_MAX
from bascule.replica.roles.commitment import Commitment
from bascule.replication.leader import UNKNOWN
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.partition_log import FileSlice, PartitionLog
from bascule.storage.scan import walk_headers
from bascule.storage.segment import FileSlices
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.peer.replica_fetch import (
    ForgottenPartition,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
)
from support.fetched_leader import STREAM, Leader, peer, report, run, turn, wanted_isrs
from support.replica_group import LAG_NS, message
from support.replicas import decode_acks


def test_records_are_sent_once_until_they_are_reported() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(b"in.0", 3)
        follower = peer(2)
        (first,) = await leader.fetch(follower, report())
        assert isinstance(first.records, FileSlice)
        assert (first.records.length, first.high_watermark) == (leader.log.end.position, 0)
        # Sent before the records arrived: it asks for the same offset.
        assert await leader.fetch(follower, report()) == []
        (news,) = await leader.fetch(follower, report(end=3))
        assert (news.records, news.high_watermark) == (b"", 3)
        assert decode_acks(leader.acks)["in.0"]["replicas"] == 2
        assert await leader.fetch(follower) == []
        leader.append(count=2)
        (second,) = await leader.fetch(follower, wait_ms=10_000)
        assert isinstance(second.records, FileSlice)

    run(scene)


def test_a_follower_at_removed_records_gets_what_comes_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is on its way to it, and it would never ask again."""

    async def scene(leader: Leader) -> None:
        leader.append(count=3)
        log, plan = leader.log, leader.log.plan_read
        removed_end = log.end.offset

        def planned(offset: int, **more: Any) -> FileSlice | None:
            """As of a log whose records below `removed_end` compaction has removed."""
            return plan(max(offset, removed_end), **more)

        monkeypatch.setattr(log, "plan_read", planned)
        follower = peer(2)
        (news,) = await leader.fetch(follower, report())
        assert news.records == b""
        assert await leader.fetch(follower) == []
        leader.append(count=1)
        (found,) = await leader.fetch(follower, wait_ms=10_000)
        assert isinstance(found.records, FileSlice)
        assert found.records.length > 0

    run(scene)


def test_one_response_has_records_of_many_segments() -> None:
    """With one segment in each, a follower of small segments stayed behind its publishers."""

    async def scene(leader: Leader) -> None:
        for _ in range(6 * SEGMENTS_MAX):
            leader.append(count=2)
        log = leader.log
        assert len(log.segments_info()) > SEGMENTS_MAX
        follower, at, responses = peer(2), 0, 0
        await leader.fetch(follower, report(), max_bytes=1)
        while at < log.end.offset:
            (found,) = await leader.fetch(follower, report(responses + 2, at, last_epoch=5))
            assert isinstance(found.records, FileSlices)
            slices = found.records.slices
            assert len(slices) <= SEGMENTS_MAX
            assert {each.length for each in slices[1:-1]} <= {
                each.bytes for each in log.segments_info()
            }
            offsets = [
                header.base_offset
                for each in slices
                for _, header in walk_headers(
                    each.file, start=each.position, end=each.position + each.length
                )
            ]
            assert offsets == list(range(at, offsets[-1] + 1, 2))
            at, responses = offsets[-1] + 2, responses + 1
        assert responses == 2

    run(scene)


def test_records_of_further_segments_are_within_the_limit() -> None:
    async def scene(leader: Leader) -> None:
        for _ in range(20):
            leader.append(count=2)
        one = leader.log.segments_info()[0].bytes
        for attempt, limit in enumerate((one, one + 1, 2 * one - 1, 2 * one, 5 * one + 7), 1):
            (found,) = await leader.fetch(peer(2), report(attempt), max_bytes=limit)
            assert isinstance(found.records, FileSlice | FileSlices)
            assert limit - one < found.records.length <= limit

    run(scene)


def test_a_segment_that_cannot_be_read_ends_a_response() -> None:
    async def scene(leader: Leader) -> None:
        for _ in range(20):
            leader.append(count=2)
        plan = leader.log.plan_read

        def refuse(offset: int, **more: Any) -> FileSlice | None:
            if offset >= leader.log.segments_info()[2].base_offset:
                raise CorruptData(leader.log.directory, 0, "a batch", "damage")
            return plan(offset, **more)

        leader.log.plan_read = refuse  # type: ignore[method-assign]
        follower = peer(2)
        (found,) = await leader.fetch(follower, report())
        assert isinstance(found.records, FileSlices)
        assert len(found.records.slices) == 2
        end = leader.log.segments_info()[2].base_offset
        (found,) = await leader.fetch(follower, report(end=end, last_epoch=5))
        assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    run(scene)


@pytest.mark.parametrize("error", [OSError(5, "EIO"), CorruptData("s", 0, "a batch", "damage")])
def test_what_was_found_before_a_segment_that_cannot_be_read_is_sent(error: Exception) -> None:
    async def scene(leader: Leader) -> None:
        for _ in range(20):
            leader.append(count=2)
        plan, third = leader.log.plan_read, leader.log.segments_info()[2].base_offset

        def refuse(offset: int, **more: Any) -> FileSlice | None:
            if offset >= third:
                raise error
            return plan(offset, **more)

        leader.log.plan_read = refuse  # type: ignore[method-assign]
        (found,) = await leader.fetch(peer(2), report())
        assert isinstance(found.records, FileSlices)
        assert len(found.records.slices) == 2

    run(scene)


def test_no_segment_of_a_response_is_waited_for_on_the_event_loop() -> None:
    async def scene(leader: Leader) -> None:
        for _ in range(20):
            leader.append(count=2)
        plan, loop_thread = leader.log.plan_read, threading.get_ident()
        waited = []

        def note(offset: int, *, nowait: bool = False, **more: Any) -> FileSlice | None:
            if not nowait and threading.get_ident() == loop_thread:
                waited.append(offset)
            return plan(offset, nowait=nowait, **more)

        leader.log.plan_read = note  # type: ignore[method-assign]
        await leader.fetch(peer(2), report())
        assert waited == []

    run(scene)


@pytest.mark.parametrize("batches", [1, 20])
def test_the_partitions_of_a_response_share_its_limit(batches: int) -> None:
    """With records of one segment, or of several. What has no room comes with the next one."""

    async def scene(leader: Leader) -> None:
        other = leader.add_partition()
        for _ in range(batches):
            leader.append(count=2)
            other.append(message(b"", 2))
            other.sync()
        assert other.log is not None
        sizes = [sum(each.bytes for each in log.segments_info()) for log in (leader.log, other.log)]
        follower = peer(2)
        both = report(), report(partition=1)
        first = await leader.fetch(follower, *both, max_bytes=sizes[0])
        lengths = [each.records.length for each in first if each.records]  # type: ignore[union-attr]
        assert lengths == sizes[:1]
        assert leader.handler.counts.bytes == sizes[0]
        second = await leader.fetch(follower, max_bytes=sizes[1])
        assert [each.partition for each in second if each.records] == [1]
        assert leader.handler.counts.bytes == sum(sizes)

    run(scene)


def test_a_follower_without_room_for_a_batch_gets_one() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(count=3)
        leader.append(count=3)
        (found,) = await leader.fetch(peer(2), report(), max_bytes=0)
        assert isinstance(found.records, FileSlice)
        assert found.records.length > 0

    run(scene)


def test_a_replica_that_is_not_in_sync_gets_no_more_than_the_limit_allows() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(count=3)
        leader.catch_up_rate = 1_000
        outside, member = peer(3), peer(2)
        (held_back,) = await leader.fetch(outside, report())
        assert held_back.records == b"", "there is no token yet"
        (sent,) = await leader.fetch(member, report())
        assert isinstance(sent.records, FileSlice), "a member of the ISR has no limit"
        waiting = asyncio.ensure_future(leader.fetch(outside, wait_ms=10_000))
        await turn()
        assert not waiting.done()
        leader.clock.ms += 100
        (found,) = await waiting
        assert isinstance(found.records, FileSlice), "it is looked at again by itself"
        leader.append(count=3)
        leader.catch_up_rate = 0
        (rest,) = await leader.fetch(outside, report(end=3, last_epoch=5), wait_ms=10_000)
        assert isinstance(rest.records, FileSlice)

    run(scene)


def test_a_copy_does_not_begin_while_tombstones_are_removed() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(count=3)
        commitment, begins, goes_on = leader.partition.commitment, peer(3), peer(2)
        await leader.fetch(goes_on, report())
        assert not commitment.begin_removal(3), "node 2 copies them"
        await leader.fetch(goes_on, report(end=3))
        assert commitment.begin_removal(3)
        assert await leader.fetch(begins, report()) == []
        waiting = asyncio.ensure_future(leader.fetch(begins, wait_ms=10_000))
        await turn()
        assert not waiting.done()
        leader.append()
        (found,) = await leader.fetch(goes_on, wait_ms=10_000)
        assert isinstance(found.records, FileSlice), "one that has them goes on"
        commitment.end_removal()
        (found,) = await waiting
        assert isinstance(found.records, FileSlice)
        assert not commitment.begin_removal(3), "now node 3 copies them"
        assert commitment.begin_removal(0)

    run(scene)


def test_a_move_yields_to_replicas_in_sync_once_these_get_something() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(count=3)
        leader.state = PartitionState((1, 2, 3, 4), (1, 2, 3), 1, 5, 1, target=(1, 2, 4))
        leader.lead()
        added, member = peer(4), peer(2)
        (sent,) = await leader.fetch(added, report())
        assert isinstance(sent.records, FileSlice), "nobody else needs the disk"
        (sent,) = await leader.fetch(member, report())
        assert isinstance(sent.records, FileSlice)
        leader.append(count=3)
        held_back = await leader.fetch(added, report(end=3, last_epoch=5))
        assert held_back == [], "the bucket is empty at first"
        leader.clock.ms += 100
        (sent,) = await leader.fetch(added, wait_ms=10_000)
        assert isinstance(sent.records, FileSlice)

    run(scene)


def test_a_request_waits_for_news_and_ends_with_the_next_request() -> None:
    async def scene(leader: Leader) -> None:
        follower = peer(2)
        await leader.fetch(follower, report())
        waiting = asyncio.ensure_future(leader.fetch(follower, wait_ms=10_000))
        await turn()
        assert not waiting.done()
        leader.append()
        (found,) = await waiting
        assert isinstance(found.records, FileSlice)
        waiting = asyncio.ensure_future(leader.fetch(follower, wait_ms=10_000))
        await turn()
        follower._protocol.feed(b"\0")
        follower.notify_watchers()
        assert await waiting == []

    run(scene)


def test_an_older_leader_epoch_is_refused() -> None:
    async def scene(leader: Leader) -> None:
        (found,) = await leader.fetch(peer(2), report(epoch=4))
        assert (found.error_code, found.attempt) == (ErrorCode.FENCED_LEADER_EPOCH, 1)
        assert leader.partition.commitment.replication is not None
        assert leader.partition.commitment.replication.position(2) == -1

    run(scene)


def test_a_follower_that_is_ahead_of_its_leader_waits_for_it() -> None:
    async def scene(leader: Leader) -> None:
        leader.append()
        follower = peer(2)
        waiting = asyncio.ensure_future(leader.fetch(follower, report(epoch=6), wait_ms=10_000))
        await turn()
        assert not waiting.done()
        leader.lead(epoch=6)
        (found,) = await waiting
        assert (found.error_code, found.records is not None) == (0, True)

    run(scene)


def test_a_deposed_leader_refuses_who_still_fetches() -> None:
    async def scene(leader: Leader) -> None:
        follower = peer(2)
        await leader.fetch(follower, report())
        waiting = asyncio.ensure_future(leader.fetch(follower, wait_ms=10_000))
        await turn()
        leader.lead(epoch=6, leader=3)
        (found,) = await waiting
        assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH
        (found,) = await leader.fetch(follower, report(2, epoch=6))
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scene)


def test_old_incarnations_and_strangers_are_refused() -> None:
    async def scene(leader: Leader) -> None:
        leader.append()
        await leader.fetch(peer(2, node_epoch=7), report(end=1, last_epoch=5))
        (found,) = await leader.fetch(peer(2, node_epoch=6), report(end=1, last_epoch=5))
        assert found.error_code == ErrorCode.STALE_BROKER_EPOCH
        (found,) = await leader.fetch(peer(9), report())
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        unknown = ReplicaFetchPartition(b"x" * 16, 0, 1, 5)
        (found,) = await leader.fetch(peer(2, node_epoch=7), unknown)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert leader.handler.counts.stale == 1

    run(scene)


def test_a_diverging_log_does_not_count_before_it_is_truncated() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(count=4)
        leader.lead(epoch=8)
        leader.append(count=2)
        follower, replication = peer(2), leader.partition.commitment.replication
        assert replication is not None
        # Its tail is of epoch 6, which this leader does not know: 5 ends at 4.
        (found,) = await leader.fetch(follower, report(end=9, last_epoch=6, epoch=8))
        assert (found.diverging_epoch, found.diverging_end) == (5, 4)
        assert replication.position(2) == -1
        (found,) = await leader.fetch(follower, report(2, end=5, last_epoch=5, epoch=8))
        assert (found.diverging_epoch, found.diverging_end) == (5, 4)
        (found,) = await leader.fetch(follower, report(3, end=4, last_epoch=5, epoch=8))
        assert isinstance(found.records, FileSlice)
        assert replication.position(2) == 4
        # All records of epochs before the first one here are others'.
        (found,) = await leader.fetch(follower, report(4, end=3, last_epoch=2, epoch=8))
        assert (found.diverging_epoch, found.diverging_end) == (-1, 0)
        assert leader.handler.counts.truncations == 3

    run(scene)


def test_a_log_diverges_that_has_fewer_records_than_the_first_epoch_and_some_of_another() -> None:
    """Those of epoch 3 are in the place of some that the leader has of epoch 0."""

    async def scene(leader: Leader) -> None:
        leader.append(count=10)
        leader.lead(epoch=8)
        (found,) = await leader.fetch(peer(2), report(end=8, last_epoch=3, epoch=8))
        assert (found.diverging_epoch, found.diverging_end) == (0, 10)

    run(scene, epoch=0)


def test_an_epoch_that_begins_during_the_comparison_hides_no_divergence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log writer may append between two reads of the event loop: the follower's records behind
    the end of epoch 5 are not those that epoch 8 has there."""

    async def scene(leader: Leader) -> None:
        leader.append(count=4)
        leader.lead(epoch=8)
        original, appends = PartitionLog.epochs, [6]

        def epochs(log: PartitionLog) -> LeaderEpochs:
            found: LeaderEpochs = original.__get__(log)
            if appends:
                leader.append(count=appends.pop())
            return found

        monkeypatch.setattr(PartitionLog, "epochs", property(epochs))
        (found,) = await leader.fetch(peer(2), report(end=9, last_epoch=5, epoch=8))
        assert (leader.log.end.offset, appends) == (10, [])
        assert (found.diverging_epoch, found.diverging_end) == (5, 4)

    run(scene)


def test_an_offset_beyond_the_log_is_refused() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(count=4)
        (found,) = await leader.fetch(peer(2), report(end=9))
        assert (found.error_code, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)

    run(scene)


def test_records_that_retention_removed_are_never_skipped() -> None:
    """The follower would take them for records that compaction removed."""

    async def scene(leader: Leader) -> None:
        for _ in range(20):
            leader.append(count=3)
        follower = peer(2)
        (found,) = await leader.fetch(follower, report(), max_bytes=1)
        assert isinstance(found.records, FileSlice)
        await leader.fetch(follower, report(end=3, last_epoch=-1))
        leader.log.advance_start(31, high_watermark=60)
        (found,) = await leader.fetch(follower, report(end=6))
        assert found.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        (found,) = await leader.fetch(follower, report(2, end=6, last_epoch=5))
        assert (found.error_code, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 30)
        (found,) = await leader.fetch(follower, report(3, end=30))
        assert isinstance(found.records, FileSlices)
        first = found.records.slices[0].file.read_at(found.records.slices[0].position, 8)
        assert int.from_bytes(first, "big") == 30

    run(scene)


def test_a_follower_that_forgets_or_disconnects_is_not_known_any_more() -> None:
    async def scene(leader: Leader) -> None:
        follower, replication = peer(2), leader.partition.commitment.replication
        assert replication is not None
        await leader.fetch(follower, report())
        assert replication.position(2) == 0
        again = peer(2)
        await leader.fetch(again, report())
        follower.close()
        assert replication.position(2) == 0, "a later connection of the same process counts"
        request = ReplicaFetchRequest(0, 1, (), [ForgottenPartition(STREAM, 0)])
        await leader.handler.handle(request, again)
        assert replication.position(2) == -1
        assert not leader.partition.replica_watchers
        await leader.fetch(again, report(5))
        again.close()
        assert replication.position(2) == -1
        assert not leader.partition.replica_watchers

    run(scene)


def test_an_older_connection_that_speaks_late_takes_nothing_with_it() -> None:
    """Its request waited in the socket while the follower connected again."""

    async def scene(leader: Leader) -> None:
        older, newer = peer(2), peer(2)
        leader.append()
        await leader.fetch(newer, report(5))
        await leader.fetch(older, report(5))
        replication = leader.partition.commitment.replication
        assert replication is not None
        before = replication.position(2)
        assert before >= 0
        older.close()
        assert replication.position(2) == before

    run(scene)


def test_only_a_follower_that_is_heard_of_is_wanted_in_sync() -> None:
    async def scene(leader: Leader) -> None:
        assert wanted_isrs(leader.handler) == []
        leader.handler.watch(leader.partition)
        await leader.fetch(peer(2), report())
        third = peer(3, node_epoch=4)
        await leader.fetch(third, report())
        (wanted,) = wanted_isrs(leader.handler)
        assert (wanted.isr, wanted.node_epochs) == ((1, 2, 3), {2: 1, 3: 4})
        assert wanted.state == leader.state
        third.close()
        assert [w.isr for w in wanted_isrs(leader.handler)] == []

    run(scene)


def test_a_follower_that_catches_up_while_nothing_is_appended_is_wanted_in_sync() -> None:
    async def scene(leader: Leader) -> None:
        leader.handler.watch(leader.partition)
        await leader.fetch(peer(2), report())
        assert wanted_isrs(leader.handler) == []
        assert list(leader.handler.wanted_isrs()) == [], "there is nothing to look at"
        await leader.fetch(peer(3), report())
        assert [wanted.isr for wanted in wanted_isrs(leader.handler)] == [(1, 2, 3)]

    run(scene)


def test_an_isr_that_changes_during_a_look_at_its_partition_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log writer gives the partition its new role on another thread."""

    async def scene(leader: Leader) -> None:
        partition, second = leader.partition, peer(2)
        leader.handler.watch(partition)
        await leader.fetch(second, report())
        await leader.fetch(second, report())
        looks = 0

        def is_settled(commitment: Commitment) -> bool:
            nonlocal looks
            looks += 1
            if looks == 1:
                shrunk = replace(leader.state, isr=(1,), version=leader.state.version + 1)
                partition.set_role(shrunk, 1, lag_ns_max=LAG_NS)
                leader.handler.watch(partition)
            return True

        monkeypatch.setattr(Commitment, "is_settled", property(is_settled))
        assert wanted_isrs(leader.handler) == []
        assert looks == 1
        assert [wanted.isr for wanted in wanted_isrs(leader.handler)] == [(1, 2)]

    run(scene)


def test_what_was_reported_to_the_epoch_before_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A damaged replica has resigned, and the log writer begins the next epoch, which forgets it,
    between the look at the report and its count."""

    async def scene(leader: Leader) -> None:
        leader.append(count=3)
        partition = leader.partition
        on_fetch = partition.on_fetch

        def overtaken(*arguments: Any, **options: Any) -> bytes:
            monkeypatch.undo()
            leader.state = replace(leader.state, isr=(1, 3))
            leader.lead(6)
            return on_fetch(*arguments, **options)

        monkeypatch.setattr(partition, "on_fetch", overtaken)
        await leader.fetch(peer(2), report(end=3, last_epoch=5))
        replication = partition.commitment.replication
        assert replication is not None
        assert (replication.state.leader_epoch, replication.position(2)) == (6, UNKNOWN)
        assert wanted_isrs(leader.handler) == []

    run(scene)
