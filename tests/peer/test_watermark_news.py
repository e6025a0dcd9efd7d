"""When a follower hears of a new high watermark: with records, or by itself."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from bascule.peer import replica_session
from bascule.storage.partition_log import FileSlice
from bascule.wire.messages.peer.replica_fetch import (
    ReplicaFetchPartitionResponse,
    ReplicaFetchRequest,
)
from support.fetched_leader import Leader, peer, report, run, turn
from support.replica_group import message
from support.replicas import decode_acks


def test_a_new_watermark_waits_for_records_that_it_can_travel_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(leader: Leader) -> None:
        monkeypatch.setattr(replica_session, "NEWS_DELAY_SECONDS", 3600)
        leader.append(count=3)
        second, third = peer(2), peer(3)
        await leader.fetch(third, report(end=3, last_epoch=5))
        waiting = asyncio.ensure_future(leader.fetch(third, wait_ms=30_000))
        await turn()
        await leader.fetch(second, report(end=3, last_epoch=5))
        assert leader.partition.committed_offset == 3
        for _ in range(5):
            await turn()
        assert not waiting.done()
        leader.append()
        (found,) = await waiting
        assert isinstance(found.records, FileSlice)
        assert found.high_watermark == 3

    run(scene)


def test_a_new_watermark_is_told_at_once_where_no_records_followed_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(leader: Leader) -> None:
        second, third = peer(2), peer(3)

        async def commit() -> asyncio.Future[list[ReplicaFetchPartitionResponse]]:
            """Have a record committed; what node 3 hears then."""
            leader.append()
            await turn()
            for follower in (second, third):
                (sent,) = await leader.fetch(follower)
                assert isinstance(sent.records, FileSlice)
            end = leader.log.end.offset
            synced = report(end=end, last_epoch=5)
            waiting = asyncio.ensure_future(leader.fetch(third, synced, wait_ms=3_600_000))
            await turn()
            assert not waiting.done()
            await leader.fetch(second, synced)
            assert leader.partition.committed_offset == end
            return waiting

        await leader.fetch(second, report())
        await leader.fetch(third, report())
        await (await commit())  # after the usual delay, in which nothing came
        monkeypatch.setattr(replica_session, "NEWS_DELAY_SECONDS", 3600)
        waiting = await commit()
        for _ in range(5):
            await turn()
        assert waiting.done()
        (found,) = waiting.result()
        assert (found.records, found.high_watermark) == (b"", 2)
        # These records come soon behind what was told: so may the next ones.
        waiting = await commit()
        for _ in range(5):
            await turn()
        assert not waiting.done()
        waiting.cancel()

    run(scene)


def test_the_follower_that_commits_hears_of_it_with_the_next_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(leader: Leader) -> None:
        monkeypatch.setattr(replica_session, "NEWS_DELAY_SECONDS", 3600)
        leader.append(b"in.0", 3)
        follower = peer(2)
        await leader.fetch(follower, report())
        request = ReplicaFetchRequest(3_600_000, 1 << 20, (report(end=3),))
        answer = leader.handler.handle(request, follower)
        assert "in.0" in decode_acks(leader.acks), "no turn of the loop is before the ack"
        waiting = asyncio.ensure_future(answer)
        for _ in range(5):
            await turn()
        assert not waiting.done()
        leader.append()
        (found,) = (await waiting).partitions
        assert isinstance(found.records, FileSlice)
        assert found.high_watermark == 3

    run(scene)


def test_news_that_wait_in_vain_wait_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits for each change sends the next one because of it."""

    async def scene(leader: Leader) -> None:
        monkeypatch.setattr(replica_session, "NEWS_DELAY_SECONDS", 3600)
        follower = peer(2)
        await leader.fetch(follower, report())
        session = leader.handler._sessions[follower]
        waited = []
        for number in range(20):
            leader.append()
            await turn()
            await leader.fetch(follower)
            synced = report(end=leader.log.end.offset)
            news = asyncio.ensure_future(leader.fetch(follower, synced, wait_ms=3_600_000))
            for _ in range(5):
                await turn()
            if not news.done():
                waited.append(number)
                session._news_at = -inf
                session._tell_news()
            assert [each.high_watermark for each in await news] == [number + 1]
        assert waited == [0, 2, 6, 14]

    run(scene)


def test_a_sync_that_commits_nothing_wakes_nobody() -> None:
    async def scene(leader: Leader) -> None:
        await leader.fetch(peer(2), report())
        leader.partition.append(message(b"in.0", 1))
        await turn()
        woken: list[int] = []
        leader.partition.watchers.add(lambda: woken.append(leader.partition.committed_offset))
        leader.partition.sync()
        await turn()
        assert not woken
        await leader.fetch(peer(2), report(end=1, last_epoch=5))
        await turn()
        assert woken == [1]

    run(scene)


def test_a_new_watermark_is_told_soon_without_records() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(count=3)
        second, third = peer(2), peer(3)
        await leader.fetch(third, report(end=3, last_epoch=5))
        waiting = asyncio.ensure_future(leader.fetch(third, wait_ms=3_600_000))
        await turn()
        await leader.fetch(second, report(end=3, last_epoch=5))
        (found,) = await waiting
        assert (found.records, found.high_watermark) == (b"", 3)

    run(scene)


def test_a_follower_hears_what_all_replicas_have() -> None:
    async def scene(leader: Leader) -> None:
        leader.append(count=3)
        two, three = peer(2), peer(3)
        await leader.fetch(two, report())
        await leader.fetch(two, report(end=3))
        (news,) = await leader.fetch(three, report())
        known = news.version, news.high_watermark, news.replicated_offset
        assert known == (leader.state.version, 3, 0)
        await leader.fetch(three, report(end=3))
        leader.append()
        await turn()
        (news,) = await leader.fetch(two, report(end=3))
        assert (news.version, news.replicated_offset) == (leader.state.version, 3)
        (last,) = await leader.fetch(three, report(end=3))
        leader.lead()
        await turn()
        (news,) = await leader.fetch(three, report(end=4))
        assert last.version < news.version == leader.state.version, (
            "told also where nothing else is new"
        )

    run(scene)
