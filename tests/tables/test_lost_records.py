"""A log that loses records while its table reads it, or is made anew."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from bascule.tables import Tables, table_replica
from bascule.tables.log_rows import apply_log_rows
from bascule.tables.watching import Begin, Caught
from bascule.wire.tables.patterns import KeyPattern
from support.tables_harness import TablesHarness


def test_a_loss_before_the_thread_reads_the_log_hides_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end that a table reads up to is older than the log that it reads."""
    harness = TablesHarness(tmp_path)
    epoch = harness.partition.leader_epoch
    harness.put((b"k", b"1"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(1)
        began, may_read = threading.Event(), threading.Event()

        def late(*given: Any, **more: Any) -> Any:
            began.set()
            assert may_read.wait(20)
            return apply_log_rows(*given, **more)

        monkeypatch.setattr(table_replica, "apply_log_rows", late)
        harness.put((b"a", b"lost"))
        waiting = asyncio.create_task(replica.wait_position(2, 1))
        assert await asyncio.to_thread(began.wait, 20)
        harness.lose_from(1, epoch=epoch + 1)
        assert harness.put((b"b", b"new")) == 2
        may_read.set()
        await waiting
        end = harness.put((b"c", b"later"))
        await replica.wait_position(end, 5)
        rows = await replica.scan(b"", None, 99, bytes_max=1 << 20)
        assert {row.key for row in rows} == {b"k", b"b", b"c"}

    harness.run(test)


def test_a_watcher_is_told_no_wrong_position_while_its_table_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the removal of the file and `TableWatches.on_lost`."""
    harness = TablesHarness(tmp_path)
    epoch = harness.partition.leader_epoch
    harness.put((b"k", b"1"))
    end = harness.put((b"a", b"lost"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(end)
        removed, may_go_on = threading.Event(), threading.Event()
        remove = replica._remove_file

        def slow() -> None:
            remove()
            removed.set()
            assert may_go_on.wait(20)

        monkeypatch.setattr(replica, "_remove_file", slow)
        rows = {}
        async with aclosing(replica.watches.watch(KeyPattern(b">"), Begin.STATE)) as steps:
            async for step in steps:
                if isinstance(step, Caught):
                    break
                if isinstance(step, list):
                    rows |= {each.key: each.value for each in step}
            harness.lose_from(1, epoch=epoch + 1)
            assert harness.put((b"b", b"new")) == end
            waiting = asyncio.ensure_future(anext(steps))
            assert await asyncio.to_thread(removed.wait, 20)
            replica.watches.wake()
            await asyncio.wait([waiting], timeout=0.05)
            may_go_on.set()
            told = await waiting
        await replica.wait_position(end, 5)
        if isinstance(told, Caught):
            assert b"a" in rows
            assert not await replica.reaches(told.position, 0), told

    harness.run(test)
