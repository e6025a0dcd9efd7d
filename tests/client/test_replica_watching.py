"""Watchers of a copy of a table: they read the log of changes in its file."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest

import bascule
from bascule.client.tables.replica import recent_changes, watching
from bascule.client.tables.replica.local_replica import FILE_NAME
from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.client.tables.replica.rescue import begin_anew
from bascule.client.tables.replica.watching import CopyWatcher
from bascule.errors import ConfigError, InvalidPattern, LogFailed
from bascule.table_results import TableChange
from bascule.wire.tables.patterns import KeyPattern
from bascule.wire.tables.sync_pages import SyncPage
from support.table_copies import NOW, page, values, write

pytestmark = pytest.mark.tier2

Seen = tuple[bytes, int, bytes | None]
RESTART: Final = "restart"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ReplicaFile]:
    found = ReplicaFile(tmp_path / FILE_NAME, "t", "me")
    yield found
    found.close()


class Watching:
    """A watcher, and all that it has seen."""

    def __init__(self, file: ReplicaFile, pattern: bytes = b">", *, has_state: bool = True) -> None:
        self._file = file
        self._watcher = CopyWatcher(KeyPattern(pattern), has_state=has_state)
        self.position: int | None = None

    def step(self) -> list[Seen | str]:
        """What it sees next; nothing once it has seen all."""
        found = self._watcher.read(self._file)
        self.position = None if found is None else found.caught_up
        if found is None:
            return []
        seen: list[Seen | str] = [RESTART] if found.is_restart else []
        return seen + [(each.key, each.version, each.value) for each in found.changes]

    def all(self) -> list[Seen | str]:
        seen = self.step()
        while self.position is None:
            seen += self.step()
        return seen


def take(file: ReplicaFile, key: bytes, value: bytes | None, version: int) -> None:
    file.queue(write(key, value))
    pending = file.pending(10)[-1]
    file.settle(pending.number, pending.write, version, table=file.state().table)


def test_the_state_and_then_what_changes(file: ReplicaFile) -> None:
    watching, changes = Watching(file), Watching(file, has_state=False)
    assert (watching.step(), watching.position) == ([], None), "the copy has not all keys"
    file.apply(page((b"b", 1, b"1"), position=2, is_full=True, next_after=b"b"))
    assert watching.step() == []
    file.apply(page((b"c", 0, b"0"), position=2, is_full=True, after=b"b"))
    assert watching.all() == [(b"b", 1, b"1"), (b"c", 0, b"0")]
    assert (changes.all(), watching.position, changes.position) == ([], 2, 2)
    file.apply(page((b"a", 2, b"2"), (b"b", 3, None), position=4))
    for each in (watching, changes):
        assert (each.all(), each.position) == ([(b"a", 2, b"2"), (b"b", 3, None)], 4)
    file.apply(page(position=9))
    assert (watching.all(), watching.position) == ([], 9)


def test_only_the_keys_that_match(file: ReplicaFile) -> None:
    rows = [(key, n, b"v") for n, key in enumerate([b"a", b"u", b"u.1", b"u.1.x", b"u2", b"v"])]
    file.apply(page(*rows, position=6, is_full=True))
    for pattern, expected in ((b"u.*", [b"u.1"]), (b"u.>", [b"u.1", b"u.1.x"]), (b"u", [b"u"])):
        state, later = Watching(file, pattern), Watching(file, pattern, has_state=False)
        later.all()
        assert [each[0] for each in state.all()] == expected
        file.apply(page(*((key, n + 10, b"w") for key, n, _ in rows), position=20))
        for each in (state, later):
            assert [seen[0] for seen in each.all()] == expected


def test_a_slow_watcher_sees_the_newest_states(file: ReplicaFile) -> None:
    file.apply(page((b"a", 0, b"0"), (b"b", 1, b"1"), position=2, is_full=True))
    watching = Watching(file)
    watching.all()
    for version in range(2, 20, 2):
        file.apply(page((b"a", version, b"v"), (b"b", version + 1, None), position=version + 2))
    seen = watching.all()
    assert [each for each in seen if each[0] == b"a"] == [(b"a", 18, b"v")]
    assert seen[-1] == (b"b", 19, None)


def test_a_watcher_that_is_too_slow_is_shown_the_state(
    file: ReplicaFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_changes, "CHANGES_BYTES_MAX", 400)
    file.apply(page((b"a", 0, b"0"), (b"b", 1, b"1"), position=2, is_full=True))
    watching, quick = Watching(file), Watching(file)
    watching.all(), quick.all()
    for version in range(2, 20):
        file.apply(page((b"a", version, b"v"), position=version + 1))
        assert quick.all() == [(b"a", version, b"v")]
    assert watching.all() == [RESTART, (b"a", 19, b"v"), (b"b", 1, b"1")]
    connection = sqlite3.connect(file.path)
    assert connection.execute("select count(*) from changes").fetchone()[0] < 12
    connection.close()


def test_keys_that_change_while_the_state_is_shown(
    file: ReplicaFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ROWS_AT_ONCE", 3)
    rows = [(b"%d" % n, n, b"v") for n in range(6)]
    file.apply(page(*rows, position=6, is_full=True))
    watcher = Watching(file)
    assert watcher.step() == rows[:3]
    file.apply(page((b"1", 6, b"w"), (b"4", 7, b"w"), (b"5", 8, None), position=9))
    assert watcher.step() == [(b"1", 6, b"w")]
    assert watcher.all() == [rows[3], (b"4", 7, b"w")]
    assert watcher.all() == []


def test_large_values_come_one_after_the_other(
    file: ReplicaFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BYTES_AT_ONCE", 10)
    file.apply(page(position=0, is_full=True))
    watcher = Watching(file)
    watcher.all()
    rows = [(b"%d" % n, n, b"v" * 8) for n in range(4)]
    file.apply(page(*rows, position=4))
    assert [watcher.step() for _ in range(3)] == [rows[:2], rows[2:], []]
    again = Watching(file)
    assert [again.step() for _ in range(3)] == [rows[:2], rows[2:], []]
    assert again.position == 4


def test_what_is_written_here_is_seen_once_it_is_taken(file: ReplicaFile) -> None:
    file.apply(page((b"a", 0, b"0"), (b"b", 1, b"1"), position=2, is_full=True))
    watcher = Watching(file)
    watcher.all()
    file.queue(write(b"a", b"ours"))
    assert (watcher.all(), values(file)[b"a"]) == ([], b"ours")
    assert Watching(file).all() == [(b"a", 0, b"0"), (b"b", 1, b"1")]
    pending = file.pending(1)[0]
    file.settle(pending.number, pending.write, 5, table=file.state().table)
    assert watcher.all() == [(b"a", 5, b"ours")]
    take(file, b"b", None, 6)
    assert watcher.all() == [(b"b", 6, None)]
    file.apply(page((b"c", 3, b"3"), (b"b", 4, b"between"), position=5))
    assert watcher.all() == [(b"c", 3, b"3")], "what was before the removal is not seen behind it"
    assert b"b" not in values(file)
    file.apply(page((b"a", 5, b"ours"), (b"b", 6, None), (b"c", 7, None), position=8))
    assert watcher.all() == [(b"c", 7, None)]
    file.apply(page((b"b", 8, b"8"), position=9))
    assert watcher.all() == [(b"b", 8, b"8")]


def test_full_pages_show_the_state_again(file: ReplicaFile) -> None:
    file.apply(page((b"a", 0, b"0"), (b"b", 1, b"1"), position=2, is_full=True))
    watcher = Watching(file)
    watcher.all()
    file.apply(page((b"a", 0, b"0"), position=5, is_full=True, next_after=b"a", read_at=8))
    assert (watcher.step(), watcher.position) == ([], None)
    file.apply(page((b"c", 7, b"7"), position=5, is_full=True, after=b"a", read_at=8))
    assert watcher.all() == [RESTART, (b"a", 0, b"0"), (b"c", 7, b"7")]
    file.apply(page((b"d", 6, b"6"), (b"c", 7, b"7"), (b"a", 8, None), position=9))
    assert watcher.all() == [(b"d", 6, b"6"), (b"a", 8, None)], "each version once"


@pytest.mark.parametrize("what", ["another table", "a lost write"])
def test_a_table_with_another_history_shows_the_state_again(file: ReplicaFile, what: str) -> None:
    file.apply(page((b"a", 0, b"0"), (b"b", 1, b"1"), position=2, is_full=True))
    watcher = Watching(file)
    watcher.all()
    if what == "another table":
        file.apply(page((b"a", 0, b"new"), position=1, table=bytes(16)))
        assert watcher.all() == [RESTART, (b"a", 0, b"new")]
        return
    take(file, b"a", b"lost", 5)
    file.apply(page((b"c", 6, b"6"), position=7, read_at=7))
    assert watcher.all() == [
        RESTART, (b"a", 5, b"lost"), (b"b", 1, b"1"), (b"c", 6, b"6"),
    ]  # fmt: skip
    file.apply(page((b"b", 1, b"1"), position=2))
    file.apply(page((b"c", 6, b"6"), (b"a", 7, b"7"), position=8))
    assert watcher.all() == [(b"a", 7, b"7")]


def test_a_file_of_an_earlier_format_gets_a_log(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    file = ReplicaFile(path, "t", "me")
    file.apply(page((b"a", 0, b"0"), position=1, is_full=True))
    file.close()
    connection = sqlite3.connect(path)
    connection.execute("drop table changes")
    connection.execute("alter table pending drop column since")
    connection.execute("update state set format = 3")
    connection.commit()
    connection.close()
    file = ReplicaFile(path, "t", "me")
    watcher = Watching(file)
    assert watcher.all() == [(b"a", 0, b"0")]
    file.apply(page((b"a", 1, b"1"), position=2))
    assert watcher.all() == [(b"a", 1, b"1")]
    file.close()


@pytest.mark.parametrize("seed", range(30))
def test_each_version_once_and_the_newest_one_at_last(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages and writes of the copy in any order, watchers of any speed."""
    dice = random.Random(seed)
    monkeypatch.setattr(watching, "ROWS_AT_ONCE", dice.choice([1, 2, 5, 1_000]))
    monkeypatch.setattr(recent_changes, "CHANGES_BYTES_MAX", dice.choice([300, 2_000, 1 << 20]))
    file = ReplicaFile(tmp_path / FILE_NAME, "t", "me")
    file.apply(page(position=0, is_full=True))
    log: list[tuple[bytes, bytes | None]] = []
    watchers = [Watching(file) for _ in range(3)]
    known: list[dict[bytes, tuple[int, bytes | None]]] = [{} for _ in watchers]

    def follow(n: int, seen: list[Seen | str]) -> None:
        for each in seen:
            if isinstance(each, str):
                known[n] = {}
                continue
            key, version, value = each
            assert version > known[n].get(key, (-1, None))[0], "once, and in order"
            known[n][key] = version, value

    for _ in range(150):
        match dice.randrange(6):
            case 0 | 1:
                log.append((b"%d" % dice.randrange(6), dice.choice([None, b"%d" % len(log)])))
            case 2:
                key, value = b"%d" % dice.randrange(6), dice.choice([None, b"ours"])
                log.append((key, value))
                take(file, key, value, len(log) - 1)
            case 3:
                file.apply(page_of(log, file.state().position, dice))
            case _:
                n = dice.randrange(3)
                follow(n, watchers[n].step())
    while file.state().position < len(log):
        file.apply(page_of(log, file.state().position, dice))
    for n, watcher in enumerate(watchers):
        follow(n, watcher.all())
        newest = {key: (version, value) for version, (key, value) in enumerate(log)}
        found = {key: each for key, each in known[n].items() if each[1] is not None}
        assert found == {key: each for key, each in newest.items() if each[1] is not None}
    file.close()


def page_of(log: list[tuple[bytes, bytes | None]], since: int, dice: random.Random) -> SyncPage:
    """Of changes, or of all keys; some of it is still on the way."""
    read_at = len(log) if dice.random() < 0.5 else dice.randint(since, len(log))
    newest = {key: (n, value) for n, (key, value) in enumerate(log[:read_at])}
    if dice.random() < 0.1:
        rows = [(key, n, value) for key, (n, value) in newest.items() if value is not None]
        return page(*sorted(rows), position=dice.randint(since, read_at), is_full=True,
                    read_at=read_at)  # fmt: skip
    changed = sorted((n, key, value) for key, (n, value) in newest.items() if n >= since)
    some = changed[: dice.randint(1, 4)]
    position = read_at if some == changed else some[-1][0] + 1
    return page(*((key, n, value) for n, key, value in some), position=position, read_at=read_at)


def test_watching_without_a_cluster(tmp_path: Path) -> None:
    """Another process follows: it is the file that is watched."""

    async def test() -> None:
        other = ReplicaFile(tmp_path / FILE_NAME, "t", "me")
        await asyncio.to_thread(other.apply, page((b"a", 0, b"0"), position=1, is_full=True))
        async with bascule.open_replica("t", tmp_path, follow=False) as copy:
            currents: list[int] = []
            changes = copy.watch(start="state", on_current=currents.append)
            first = await anext(changes)
            assert (first.key, first.timestamp, first.position) == (b"a", NOW, "")
            await asyncio.to_thread(other.apply, page((b"a", 1, None), position=2))
            second = await anext(changes)
            assert (second.version, second.value, currents) == (1, None, [1])
            found = await copy.get_many(["a", "b"])
            assert (found.position, found.entries) == (2, {})
            with pytest.raises(ConfigError, match="start is now or state"):
                await anext(copy.watch(start="5-0"))  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="one of a pattern and `key`"):
                copy.watch("a.*", key="a")
            with pytest.raises(InvalidPattern):
                copy.watch("a.>.b")
            await asyncio.to_thread(other.close)
            await asyncio.to_thread(begin_anew, tmp_path / FILE_NAME, "t", "new")
            with pytest.raises(LogFailed, match="open it again"):
                await anext(changes)

    asyncio.run(test())


def test_watching_with_the_blocking_copy(tmp_path: Path) -> None:
    file = ReplicaFile(tmp_path / FILE_NAME, "t", "me")
    file.apply(page((b"a", 0, b"0"), (b"*", 1, b"1"), position=2, is_full=True))
    file.queue(write(b"c", b"ours"))
    with bascule.open_replica_sync("t", tmp_path, follow=False) as copy:
        assert [each.key for each in _some(copy.watch(start="state"), 2)] == [b"*", b"a"]
        assert [each.key for each in _some(copy.watch(key="*", start="state"), 1)] == [b"*"]
        found = copy.get_many(["a", "c", "x"])
        assert {key: each.value for key, each in found.entries.items()} == {
            b"a": b"0", b"c": b"ours",
        }  # fmt: skip
    file.close()


def _some(changes: Generator[TableChange, None, None], count: int) -> list[TableChange]:
    found = [next(changes) for _ in range(count)]
    changes.close()
    return found
