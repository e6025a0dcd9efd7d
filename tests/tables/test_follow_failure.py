"""A table whose database cannot be written: who reads it is told, and it goes on with room."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from bascule.errors import LogFailed, PartitionFailed
from bascule.http.health import tables_health
from bascule.tables import Tables, follow_failure, table_replica
from bascule.tables.follow_failure import LASTING_SECONDS, FollowFailure
from bascule.tables.watching import Begin, Caught
from bascule.wire.tables.patterns import KeyPattern
from support.tables_harness import TablesHarness

FULL = LogFailed("0.db", "database or disk is full")


def test_a_failure_lasts_once_it_is_not_over_after_some_tries() -> None:
    failure = FollowFailure("t", 0)
    failure.note(FULL, now=10.0)
    failure.note(FULL, now=10.0 + LASTING_SECONDS / 2)
    assert failure.reason == str(FULL)
    assert failure.lasting is None
    failure.note(FULL, now=10.0 + LASTING_SECONDS)
    assert "disk is full" in str(failure.lasting)
    failure.end()
    assert (failure.reason, failure.lasting) == (None, None)
    failure.note(FULL, now=99.0)
    assert failure.lasting is None, "it is another one"


def test_who_waits_for_a_table_on_a_full_disk_is_told_and_it_goes_on_with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watchers and copies waited for what came to other nodes."""
    monkeypatch.setattr(table_replica, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(follow_failure, "LASTING_SECONDS", 0.0)
    harness = TablesHarness(tmp_path)
    end = harness.put((b"a", b"1"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(end)
        assert tables_health(tables.failures()).state == "ok"
        assert replica._file is not None
        writer = replica._file._writer
        pages = writer.execute("pragma page_count").fetchone()[0]
        writer.execute(f"pragma max_page_count = {pages}")
        steps = replica.watches.watch(KeyPattern(b">"), Begin.NOW)
        assert isinstance(await anext(steps), Caught)
        copy = asyncio.create_task(replica.wait_beyond(end, 60))
        await asyncio.wait([copy], timeout=0)  # it begins
        later = harness.put((b"b", b"x" * 50_000))
        async with asyncio.timeout(30):
            for waits in (anext(steps), copy, replica.wait_position(later, 60)):
                with pytest.raises(PartitionFailed, match="disk is full"):
                    await waits
        assert replica.ended is not None
        assert (tables.counts.held, tables.counts.stopped) == (1, 1)
        health = tables_health(tables.failures())
        assert health.state == "degraded"
        assert "disk is full" in health.reason
        assert set(await replica.get([b"a", b"b"])) == {b"a"}

        writer.execute("pragma max_page_count = 1000000")
        while replica.ended is not None:  # until the next try
            async with replica._advanced:
                await replica._advanced.wait()
        await replica.wait_position(later)
        assert tables.counts.stopped == 0
        async with aclosing(replica.watches.watch(KeyPattern(b">"), Begin.NOW)) as again:
            assert isinstance(await anext(again), Caught)

    harness.run(test)
