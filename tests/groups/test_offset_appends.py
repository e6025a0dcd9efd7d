"""Appends to `_offsets`: one batch under way, and what arrives meanwhile is the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from bascule.errors import Indeterminate, NotLeader, PartitionFailed, PublishRejected
from bascule.groups.offset_appends import (
    BATCH_BYTES_MAX,
    GATHER_SECONDS,
    GATHERED_MIN,
    RECORD_BYTES,
    STORE_SECONDS_MAX,
    WAITING_BYTES_MAX,
    OffsetAppends,
    OffsetRecord,
)
from bascule.groups.offset_records import OffsetChange, StoredCommit
from bascule.replica.internal_publisher import EncodableRecord, InternalPublisher, InternalRecord
from bascule.replica.partitions import Partitions
from bascule.wire.offsets import Commit, OffsetKey
from support.virtual_time import elapse, run_virtually

FULL = PublishRejected(503, 10_077, "maximum bytes exceeded")


class HeldPublisher(InternalPublisher):
    """Keeps the batches; the test says when each of them is stored."""

    def __init__(self) -> None:
        super().__init__(Partitions(), lambda _partition, _batches: None)
        self.batches: list[list[str]] = []
        self._under_way: list[asyncio.Future[int]] = []
        self._end = 100

    async def publish_encodable(
        self, stream: str, partition: int, records: Sequence[EncodableRecord]
    ) -> int:
        assert (stream, partition) == ("_offsets", 0)
        self.batches.append([_subject(headers) for _, _, headers in records])
        stored = asyncio.get_running_loop().create_future()
        self._under_way.append(stored)
        return await stored

    def store(self) -> None:
        """Store the batch under way. The first one is at offset 100."""
        self._under_way.pop().set_result(self._end)
        self._end += len(self.batches[-1])

    def fail(self, error: Exception) -> None:
        self._under_way.pop().set_exception(error)


def _subject(headers: bytes | tuple[tuple[str, bytes | None], ...]) -> str:
    (name, subject), *_ = headers
    assert (name, type(subject)) == ("subject", bytes)
    return subject.decode()


class Appends:
    """Appends over a publisher whose batches the test stores."""

    def __init__(self) -> None:
        self.publisher = HeldPublisher()
        self.committed: list[tuple[int, list[int | None]]] = []
        """For each batch its offset, and of each of its commits the offset of the record."""
        self.refusal: Exception | None = None
        self.epoch = 5
        """The leader epoch of the node."""
        self.appends = OffsetAppends(self.publisher, self._leader_epoch, self._on_committed)

    def start(self, *names: str, size: int = 10, is_accounted: bool = False) -> asyncio.Task[int]:
        """Append records of these names, of `size` bytes each."""
        records = [_record(name, size) for name in names]
        return asyncio.get_running_loop().create_task(self._append(records, is_accounted))

    async def _append(self, records: Sequence[OffsetRecord], is_accounted: bool) -> int:
        return await self.appends.append(records, is_accounted=is_accounted)

    async def store_a_large_batch(self) -> None:
        """Have one record stored, and a batch of many requests behind it."""
        self.start("first")
        await turns()
        for _ in range(GATHERED_MIN):
            self.start("a")
        self.publisher.store()
        await turns()
        self.publisher.store()

    def _leader_epoch(self) -> int:
        if self.refusal is not None:
            raise self.refusal
        return self.epoch

    def _on_committed(self, base: int, changes: list[OffsetChange | None]) -> None:
        offsets = [change and change.stored and change.stored.record_offset for change in changes]
        self.committed.append((base, offsets))


def _record(name: str, size: int) -> OffsetRecord:
    commit = StoredCommit(Commit(offset=1), 1_000, -1)
    change = OffsetChange(OffsetKey(name, "flights", 0), commit, is_checked=True)
    return OffsetRecord(InternalRecord(name, b"", bytes(size)), change)


def run(test: Coroutine[Any, Any, None]) -> None:
    run_virtually(test)


async def turns() -> None:
    """Let everything happen that waits for nothing else."""
    await elapse(0.001)


def test_what_arrives_while_a_batch_is_stored_is_the_next_batch() -> None:
    async def test() -> None:
        it = Appends()
        first = it.start("a")
        await turns()
        others = [it.start("b", "c"), it.start("d")]
        await turns()
        assert it.publisher.batches == [["a"]]
        it.publisher.store()
        assert await first == 100
        await turns()
        assert it.publisher.batches == [["a"], ["b", "c", "d"]]
        assert not any(each.done() for each in others)
        it.publisher.store()
        assert [await each for each in others] == [101, 103]
        assert it.committed == [(100, [100]), (101, [101, 102, 103])]

    run(test())


def test_behind_a_batch_of_many_requests_the_next_one_is_gathered() -> None:
    async def test() -> None:
        it = Appends()
        await it.store_a_large_batch()
        await elapse(0.000_1)
        assert [len(each) for each in it.publisher.batches] == [1, GATHERED_MIN]
        for _ in range(GATHERED_MIN * 3 // 4 - 1):
            it.start("b")
        await elapse(0.000_1)
        assert len(it.publisher.batches) == 2
        it.start("b")
        await elapse(0.000_1)
        assert it.publisher.batches[2:] == [["b"] * (GATHERED_MIN * 3 // 4)]
        await it.appends.close()

    run(test())


def test_a_batch_is_gathered_for_a_moment_at_most() -> None:
    async def test() -> None:
        it = Appends()
        loop = asyncio.get_running_loop()
        await it.store_a_large_batch()
        began = loop.time()
        it.start("b")
        while len(it.publisher.batches) < 3:
            await elapse(0.000_1)
        assert GATHER_SECONDS <= loop.time() - began < GATHER_SECONDS + 0.001
        # That batch was small: the next one begins at once.
        it.publisher.store()
        await turns()
        it.start("c")
        await elapse(0.000_1)
        assert it.publisher.batches[2:] == [["b"], ["c"]]
        await it.appends.close()

    run(test())


def test_a_batch_that_is_being_gathered_is_cancelled_with_the_others() -> None:
    async def test() -> None:
        it = Appends()
        await it.store_a_large_batch()
        waiting = it.start("b")
        await elapse(0.000_1)
        await it.appends.close()
        await elapse(1)
        assert waiting.cancelled()
        assert len(it.publisher.batches) == 2

    run(test())


def test_a_batch_has_so_many_bytes_unless_one_request_brings_more() -> None:
    async def test() -> None:
        it = Appends()
        it.start("first")
        await turns()
        size = BATCH_BYTES_MAX // 2
        for name in ("a", "b", "c"):
            it.start(name, size=size)
        it.start("more", size=BATCH_BYTES_MAX + 1)
        for _ in range(3):
            it.publisher.store()
            await turns()
        assert it.publisher.batches == [["first"], ["a", "b"], ["c"], ["more"]]
        await it.appends.close()

    run(test())


def test_what_waits_takes_bounded_memory() -> None:
    """Clients that leave no longer count for their listener, but what they committed waits on."""

    async def test() -> None:
        it = Appends()
        it.start("first")
        await turns()
        size, accepted = 1 << 20, 0
        with pytest.raises(PublishRejected, match="wait to be stored"):
            while accepted <= WAITING_BYTES_MAX // size:
                it.appends.append([_record("a", size)]).cancel()
                accepted += 1
        assert accepted == WAITING_BYTES_MAX // (size + RECORD_BYTES)
        accounted = it.start("members", size=size, is_accounted=True)
        it.publisher.store()
        await turns()
        staying = it.start("b", size=size)  # the first of those that waited is being stored
        for _ in range(accepted + 2):
            it.publisher.store()
            await turns()
        assert (await staying, await accounted) == (102 + accepted, 101 + accepted)
        alone = it.start("c", size=WAITING_BYTES_MAX)
        await turns()
        it.publisher.store()
        await alone

    run(test())


def test_what_is_refused_behind_a_batch_that_is_late_takes_no_memory() -> None:
    async def test() -> None:
        it = Appends()
        for _ in range(3):
            started = [it.start("a", size=WAITING_BYTES_MAX // 3) for _ in range(3)]
            await elapse(STORE_SECONDS_MAX + 1)
            assert isinstance(started[0].exception(), Indeterminate)
            for each in started[1:]:
                assert "before it are not stored" in str(each.exception())

    run(test())


def test_a_batch_that_is_refused_fails_alone() -> None:
    async def test() -> None:
        it = Appends()
        first = it.start("a")
        await turns()
        second = it.start("b")
        it.publisher.fail(FULL)
        with pytest.raises(PublishRejected, match="maximum bytes"):
            await first
        await turns()
        it.publisher.store()
        assert await second == 100
        assert it.committed == [(100, [100])]

    run(test())


def test_nothing_is_published_where_the_node_cannot_append() -> None:
    async def test() -> None:
        it = Appends()
        it.refusal = PartitionFailed("_offsets", 0, "it is not open")
        with pytest.raises(PartitionFailed):
            await it.start("a")
        assert it.publisher.batches == []
        it.refusal = None
        later = it.start("b")
        await turns()
        it.publisher.store()
        assert await later == 100

    run(test())


def test_what_waited_while_another_node_led_is_not_stored() -> None:
    """The other leader may have taken newer commits, which these would replace."""

    async def test() -> None:
        it = Appends()
        it.start("first")
        await turns()
        before = [it.start("a"), it.start("b")]
        await turns()
        it.epoch = 7  # node 2 has led epoch 6
        after = it.start("c")
        await turns()
        it.publisher.store()
        for each in before:
            with pytest.raises(NotLeader):
                await each
        await turns()
        assert it.publisher.batches == [["first"], ["c"]]
        it.publisher.store()
        assert await after == 101

    run(test())


def test_behind_a_batch_that_is_not_stored_in_time_nobody_waits_again() -> None:
    """Whether the batch is stored is not known; those behind it were never published."""

    async def test() -> None:
        it = Appends()
        first = it.start("a")
        await turns()
        behind = [it.start("b"), it.start("c")]
        await elapse(STORE_SECONDS_MAX)
        with pytest.raises(Indeterminate, match=r"not stored after 10\.0 s"):
            await first
        for each in behind:
            with pytest.raises(PublishRejected, match="before it are not stored"):
                await each
        assert it.publisher.batches == [["a"]]
        again = it.start("d")
        await turns()
        it.publisher.store()
        assert await again == 100

    run(test())


def test_one_that_gives_up_does_not_stop_the_batch_of_the_others() -> None:
    async def test() -> None:
        it = Appends()
        it.start("first")
        await turns()
        leaving, staying = it.start("a"), it.start("b")
        await turns()
        leaving.cancel()
        it.publisher.store()
        await turns()
        it.publisher.store()
        assert await staying == 102
        assert leaving.cancelled()

    run(test())


def test_a_bug_is_logged_and_nobody_waits_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        it = Appends()
        first = it.start("a")
        await turns()
        it.publisher.fail(RuntimeError("a bug"))
        with pytest.raises(Indeterminate, match="internal error"):
            await first

    run(test())
    assert "batch of commits failed" in caplog.text


def test_closed_appends_leave_nobody_waiting() -> None:
    async def test() -> None:
        it = Appends()
        first = it.start("a")
        await turns()
        second = it.start("b")
        await turns()
        await it.appends.close()
        await asyncio.wait([first, second])
        with pytest.raises(asyncio.CancelledError):
            await it.start("c")
        assert first.cancelled()
        assert second.cancelled()
        assert it.publisher.batches == [["a"]]

    run(test())
