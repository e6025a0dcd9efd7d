"""Watchers of a replica's table: what they see, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from bascule.errors import Indeterminate, PartitionFailed
from bascule.tables import _hot as tables_hot
from bascule.tables.rows import Row, TablePosition
from bascule.tables.watching import (
    Begin,
    Caught,
    Change,
    ChangesPage,
    Restarted,
    Start,
    TableWatches,
    WatchPosition,
    WatchStep,
    watcher,
    watches,
)
from bascule.wire.tables.patterns import KeyPattern
from support.twins import Twin, load_twin
from support.virtual_time import elapse, run_virtually


@pytest.fixture(params=["compiled", "interpreted"], autouse=True)
def both_twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Twin:
    twin: Twin = request.param
    monkeypatch.setattr(watches, "_hot", load_twin("tables", twin))
    return twin


class Table:
    """A table in memory that applies its log when it is told; each read gives way to others."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, bytes | None]] = []
        self.rows: dict[bytes, Row] = {}
        self.position = 0
        self.oldest = 0
        """`changes` since before it are not known."""
        self.epoch = 1
        self.ended: PartitionFailed | None = None
        self.watches = TableWatches(self)
        self.pause: Callable[[], Awaitable[None]] = lambda: elapse(0)

    def put(self, *changes: tuple[bytes, bytes | None]) -> None:
        self.log += changes
        self.apply(len(changes))

    def apply(self, count: int) -> None:
        rows = [
            (key, self.position + n, 1_000, value, None)
            for n, (key, value) in enumerate(self.log[self.position :][:count])
        ]
        self.rows |= {row[0]: Row(*row) for row in rows}
        self.position += len(rows)
        self.watches.on_applied(rows)

    async def scan(
        self, first: bytes, end: bytes | None, limit: int, *, bytes_max: int
    ) -> list[Row]:
        found = [
            row
            for row in sorted(self.rows.values())
            if row.value is not None and first <= row.key and (end is None or row.key < end)
        ][:limit]
        await self.pause()
        return found

    async def changed_since(
        self, since: int, *, rows_max: int, bytes_max: int
    ) -> ChangesPage | None:
        if since < self.oldest:
            return None
        if since >= self.position:
            return ChangesPage([], since, TablePosition(since, self.epoch))
        rows = sorted(self.rows.values(), key=lambda row: row.version)
        rows = [row for row in rows if row.version >= since]
        page, is_last, position = rows[:rows_max], len(rows) <= rows_max, self.position
        await self.pause()
        read_at = TablePosition(position, self.epoch)
        return ChangesPage(page, position if is_last else page[-1].version + 1, read_at)

    def epoch_of(self, offset: int) -> int:
        return self.epoch

    def may_have_applied(self, position: WatchPosition) -> bool:
        return position.epoch == self.epoch and (
            position.seen is None or position.seen.offset <= self.position
        )


class Seen:
    """What a watcher has seen."""

    def __init__(self, steps: AsyncGenerator[WatchStep, None]) -> None:
        self._steps = steps
        self.versions: dict[bytes, list[int]] = {}
        self.values: dict[bytes, bytes] = {}
        self.restarts = 0
        self.position = WatchPosition(0, -1)

    async def read(self) -> WatchStep:
        step = await anext(self._steps)
        if isinstance(step, Restarted):
            self.restarts += 1
            self.values.clear()
        elif isinstance(step, Caught):
            self.position = step.position
        else:
            for change in step:
                self.see(change)
        return step

    def see(self, change: Change) -> None:
        self.versions.setdefault(change.key, []).append(change.version)
        if change.value is None:
            self.values.pop(change.key, None)
        else:
            self.values[change.key] = change.value

    async def read_until_caught(self) -> None:
        while not isinstance(await self.read(), Caught):
            pass

    async def close(self) -> None:
        await self._steps.aclose()


def test_a_key_is_watched_beside_the_pattern_that_looks_like_it() -> None:
    async def test() -> None:
        table = Table()
        table.put((b"a.*", b"1"), (b"a.b", b"1"))
        found = [
            Seen(table.watches.watch(pattern, Begin.STATE))
            for pattern in (
                KeyPattern(b"a.*"),
                KeyPattern.of_key(b"a.*"),
                KeyPattern(b"*.%2A"),
                KeyPattern.of_subject(b"*.%2A"),
            )
        ]
        for seen in found:
            await seen.read_until_caught()
        table.put((b"a.*", b"2"), (b"a.b", b"2"))
        for seen in (found[0], found[1], found[3]):
            await seen.read()
        both = {b"a.*": b"2", b"a.b": b"2"}
        assert [seen.values for seen in found] == [both, {b"a.*": b"2"}, {}, {b"a.*": b"2"}]
        for seen in found:
            await seen.close()

    run_virtually(test())


def test_a_watcher_sees_the_state_and_then_each_change() -> None:
    async def test() -> None:
        table = Table()
        table.put((b"a.1", b"1"), (b"b", b"1"), (b"a.2", b"1"), (b"a.2", None), (b"a.1", b"2"))
        seen = Seen(table.watches.watch(KeyPattern(b"a.*"), Begin.STATE))
        await seen.read_until_caught()
        assert (seen.restarts, seen.versions) == (1, {b"a.1": [4]})
        assert seen.position == WatchPosition(5, 1)
        table.put((b"a.3", b"1"), (b"b", b"2"), (b"a.1", None))
        await seen.read()
        assert seen.versions == {b"a.1": [4, 7], b"a.3": [5]}
        assert seen.values == {b"a.3": b"1"}
        await seen.close()
        assert table.watches.watchers == 0
        assert table.watches.counts.changes == 2

    run_virtually(test())


def test_a_watcher_that_begins_now_sees_only_what_follows() -> None:
    async def test() -> None:
        table = Table()
        table.put((b"a", b"1"))
        seen = Seen(table.watches.watch(KeyPattern(b"a")))
        await seen.read_until_caught()
        table.put((b"a", b"2"), (b"ab", b"1"))
        await seen.read()
        assert seen.versions == {b"a": [1]}
        await seen.close()

    run_virtually(test())


def test_a_watcher_goes_on_where_another_has_stopped() -> None:
    async def test() -> None:
        table = Table()
        table.put((b"a", b"1"), (b"b", b"1"), (b"a", None), (b"c", b"1"))
        seen = Seen(table.watches.watch(KeyPattern(b">"), WatchPosition(1, 1)))
        await seen.read_until_caught()
        assert (seen.restarts, seen.versions) == (0, {b"b": [1], b"a": [2], b"c": [3]})
        await seen.close()
        # Of records that the log has lost, and older than what is known.
        for start, oldest in ((WatchPosition(1, 0), 0), (WatchPosition(1, 1), 2)):
            table.oldest = oldest
            seen = Seen(table.watches.watch(KeyPattern(b">"), start))
            await seen.read_until_caught()
            assert (seen.restarts, seen.versions) == (1, {b"b": [1], b"c": [3]})
            await seen.close()

    run_virtually(test())


def test_a_position_says_what_it_may_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """`k` has changed within the first page and again behind it: its state comes with a later one.
    Who goes on from the first page needs a table with that later change."""
    monkeypatch.setattr(watches, "PAGE_ROWS", 2)

    async def test() -> None:
        table = Table()
        table.put((b"k", b"1"), (b"a", b"x"), (b"b", b"x"), (b"c", b"x"), (b"k", b"2"))
        steps = table.watches.watch(KeyPattern(b">"), WatchPosition(0, 1))
        found = []
        async for step in steps:
            if isinstance(step, Caught):
                assert step.position == WatchPosition(5, 1)
                break
            assert not isinstance(step, Restarted)
            found += step
        await steps.aclose()
        assert [(each.key, each.position) for each in found] == [
            (b"a", WatchPosition(2, 1, TablePosition(5, 1))),
            (b"b", WatchPosition(3, 1, TablePosition(5, 1))),
            (b"c", WatchPosition(4, 1, TablePosition(5, 1))),
            (b"k", WatchPosition(5, 1)),
        ]
        first = found[0].position
        for is_lost in (False, True):
            if is_lost:
                table.position = 4
            seen = Seen(table.watches.watch(KeyPattern(b">"), first))
            await seen.read()
            assert seen.restarts == is_lost
            await seen.close()

    run_virtually(test())


def test_an_idle_watcher_is_told_the_position() -> None:
    async def test() -> None:
        table = Table()
        seen = Seen(table.watches.watch(KeyPattern(b"a")))
        await seen.read_until_caught()
        table.put((b"b", b"1"))
        assert isinstance(await seen.read(), Caught)
        assert seen.position == WatchPosition(1, 1)
        await seen.close()

    run_virtually(test())


@pytest.mark.parametrize("start", [Begin.NOW, Begin.STATE, WatchPosition(1, 1)])
def test_watchers_end_with_the_replica(start: Start) -> None:
    """What is written from then on is at other nodes: a watcher would wait for ever."""

    async def test() -> None:
        table = Table()
        table.put((b"a", b"1"))
        before = Seen(table.watches.watch(KeyPattern(b">"), start))
        await before.read_until_caught()
        waiting = asyncio.create_task(before.read())
        await elapse(0)
        table.ended = PartitionFailed("t", 0, "its replica was removed")
        table.watches.wake()
        with pytest.raises(PartitionFailed, match="its replica was removed"):
            await waiting
        with pytest.raises(PartitionFailed, match="its replica was removed"):
            await Seen(table.watches.watch(KeyPattern(b">"), start)).read_until_caught()
        assert table.watches.watchers == 0

        table.ended = None
        again = Seen(table.watches.watch(KeyPattern(b">"), start))
        await again.read_until_caught()
        await again.close()

    run_virtually(test())


def test_a_slow_watcher_reads_the_newest_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "CHANGES_MAX", 3)

    async def test() -> None:
        table = Table()
        seen = Seen(table.watches.watch(KeyPattern(b">")))
        await seen.read_until_caught()
        for n in range(9):
            table.put((b"a", b"%d" % n))
        table.put((b"b", b"x"))
        await seen.read_until_caught()
        assert seen.versions == {b"a": [8], b"b": [9]}
        assert table.watches.counts.lagged == 1
        await seen.close()

    run_virtually(test())


def test_a_watcher_that_lags_is_told_no_position_of_a_table_that_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would go on behind changes that it has not seen, at another node."""
    monkeypatch.setattr(watcher, "CHANGES_MAX", 3)

    async def test() -> None:
        table = Table()
        seen = Seen(table.watches.watch(KeyPattern(b">")))
        await seen.read_until_caught()
        table.put((b"a", b"0"))
        await seen.read()
        for n in range(9):
            table.put((b"a", b"%d" % n))
        table.watches.close()
        table.position = 0
        with pytest.raises(Indeterminate, match="closed"):
            await seen.read_until_caught()
        assert seen.position.offset <= seen.versions[b"a"][-1] + 1

    run_virtually(test())


def test_a_sink_is_called_instead_of_yielding() -> None:
    async def test() -> None:
        table, taken, is_open = Table(), list[int](), True

        def take(change: Change) -> bool:
            if is_open:
                taken.append(change.version)
            return is_open

        seen = Seen(table.watches.watch(KeyPattern(b"a"), sink=take))
        await seen.read_until_caught()
        coming = asyncio.ensure_future(seen.read_until_caught())
        await elapse(0)
        table.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
        assert taken == [0, 2]
        is_open = False
        table.put((b"a", b"3"), (b"a", b"4"))
        await coming
        assert (taken, seen.versions) == ([0, 2], {b"a": [4]})
        is_open = True
        coming = asyncio.ensure_future(seen.read())
        await elapse(0)
        table.put((b"a", b"5"))
        assert taken == [0, 2, 5]
        coming.cancel()
        await elapse(0)
        await seen.close()

    run_virtually(test())


def test_the_queues_of_all_watchers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "ALL_BYTES_MAX", 1_000)

    async def test() -> None:
        table = Table()
        all_seen = [Seen(table.watches.watch(KeyPattern(b"a"))) for _ in range(10)]
        for seen in all_seen:
            await seen.read_until_caught()
        for n in range(5):
            table.put((b"a", b"%d" % n))
        for seen in all_seen:
            while seen.versions.get(b"a", [0])[-1] < 4:
                await seen.read()
        assert table.watches.counts.lagged >= 9
        for seen in all_seen:
            await seen.close()
        assert table.watches._queued.bytes == 0

    run_virtually(test())


def test_watchers_see_the_state_again_when_the_log_has_lost_records() -> None:
    async def test() -> None:
        table = Table()
        table.put((b"a", b"1"), (b"b", b"1"))
        seen = Seen(table.watches.watch(KeyPattern(b">"), Begin.STATE))
        await seen.read_until_caught()
        table.log[1:] = [(b"c", b"1")]
        table.rows, table.position, table.epoch = {}, 0, 2
        table.watches.on_lost()
        table.apply(2)
        while seen.values != {b"a": b"1", b"c": b"1"}:
            await seen.read()
        assert seen.restarts == 2
        await seen.close()

    run_virtually(test())


def test_a_table_that_begins_anew_while_a_state_is_shown_is_shown_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "PAGE_ROWS", 1)

    async def test() -> None:
        table = Table()
        table.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
        seen = Seen(table.watches.watch(KeyPattern(b">"), Begin.STATE))
        await seen.read()
        await seen.read()
        assert seen.versions == {b"a": [0]}
        table.rows, table.position = {}, 0
        table.watches.on_lost()
        await seen.read_until_caught()
        assert (seen.restarts, seen.position.offset) == (2, 0)
        table.apply(3)
        await seen.read()
        assert seen.values == {b"a": b"1", b"b": b"1", b"c": b"1"}
        await seen.close()

    run_virtually(test())


@pytest.mark.parametrize("seed", range(40))
def test_every_newest_state_is_seen_in_order_and_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "CHANGES_MAX", 4)
    monkeypatch.setattr(watches, "PAGE_ROWS", 3)
    chance = random.Random(seed)
    keys = [b"a.%d" % n for n in range(5)] + [b"b.%d" % n for n in range(3)]

    def write(table: Table) -> None:
        table.put(
            *[
                (chance.choice(keys), chance.choice([b"%d" % chance.randint(0, 99), None]))
                for _ in range(chance.randint(1, 3))
            ]
        )

    async def test() -> None:
        table = Table()
        for _ in range(chance.randint(0, 9)):
            write(table)

        async def pause() -> None:
            for _ in range(chance.randint(0, 2)):
                write(table)
            await elapse(0)

        table.pause = pause
        pattern = KeyPattern(chance.choice([b">", b"a.*", b"a.1"]))
        seen = Seen(table.watches.watch(pattern, Begin.STATE))
        for _ in range(60):
            if chance.random() < 0.4:
                write(table)
            elif chance.random() < 0.1:
                before, versions = seen.position, seen.versions
                await seen.close()
                seen = Seen(table.watches.watch(pattern, before))
                if before.offset:
                    for key, found in versions.items():
                        seen.versions[key] = [v for v in found if v < before.offset]
            else:
                await seen.read()
        table.pause = lambda: elapse(0)
        table.put((b"a.1", b"end"), (b"b.1", b"end"))
        while seen.position.offset < table.position:
            await seen.read()
        assert (
            seen.values.items()
            >= {
                (row.key, row.value)
                for row in table.rows.values()
                if pattern.matches(row.key) and row.value is not None
            }
            or seen.restarts == 0
        )
        for key, found in seen.versions.items():
            assert found == sorted(set(found)), key
            assert found[-1] == table.rows[key].version
        await seen.close()

    run_virtually(test())


def test_rows_are_matched_by_key_and_by_pattern() -> None:
    rows = [(b"a", 1, 2, b"x"), (b"b.c", 2, 2, None), (b"d", 3, 2, b"x")]
    patterns = [(KeyPattern(b"b.*").matches, "p"), (KeyPattern(b">").matches, "q")]
    assert watches._hot.match_rows(rows, {b"a": "l"}, patterns) == [
        (rows[0], ["l", "q"]),
        (rows[1], ["p", "q"]),
        (rows[2], ["q"]),
    ]
    assert tables_hot.match_rows(rows, {}, []) == []


class FollowersTable(Table):
    """It may have to come what a watcher has seen elsewhere."""

    def may_have_applied(self, position: WatchPosition) -> bool:
        return True


def test_a_watcher_of_a_table_that_is_behind_keeps_what_it_has_seen_elsewhere() -> None:
    """Else it would go on at a third one that has lost what was left to later changes."""

    async def test() -> None:
        table = FollowersTable()
        table.put((b"k", b"1"), (b"a", b"x"), (b"b", b"x"))
        elsewhere = TablePosition(9, 1)
        steps = table.watches.watch(KeyPattern(b">"), WatchPosition(1, 1, elsewhere))
        found = await anext(steps)
        assert isinstance(found, list)
        assert [each.position for each in found] == [
            WatchPosition(2, 1, elsewhere),
            WatchPosition(3, 1, elsewhere),
        ]
        await steps.aclose()

    run_virtually(test())


class ReturningTable(Table):
    """It goes back once it is asked for changes, as while it is made anew, and has not said so."""

    async def changed_since(
        self, since: int, *, rows_max: int, bytes_max: int
    ) -> ChangesPage | None:
        self.position = 3
        self.rows = {key: row for key, row in self.rows.items() if row.version < 3}
        return await super().changed_since(since, rows_max=rows_max, bytes_max=bytes_max)


def test_a_table_that_goes_back_behind_a_state_does_not_hide_what_that_had() -> None:
    """The state had records that may be lost: who goes on needs a table that has them."""

    async def test() -> None:
        table = ReturningTable()
        table.put((b"a", b"1"), (b"b", b"1"))

        async def write() -> None:
            table.pause = lambda: elapse(0)
            table.put((b"c", b"1"), (b"a", b"2"))

        table.pause = write
        steps = table.watches.watch(KeyPattern(b">"), Begin.STATE)
        assert isinstance(await anext(steps), Restarted)
        shown = await anext(steps)
        assert isinstance(shown, list)
        assert [each.key for each in shown] == [b"a", b"b"]
        changed = await anext(steps)
        assert isinstance(changed, list)
        assert [each.position for each in changed] == [WatchPosition(3, 1, TablePosition(4, 1))]
        await steps.aclose()

    run_virtually(test())
