"""The file of a copy of a table: pages, and writes that were made on the copy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.client.tables.replica import replica_file
from bascule.client.tables.replica.conflicts import LocalWrite, RemoteState
from bascule.client.tables.replica.replica_file import (
    PendingWrite,
    ReplicaEntry,
    ReplicaFile,
    digest_of,
)
from bascule.errors import ConfigError, CorruptData, LogFailed, RemoteProtocolError
from bascule.wire.tables.sync_pages import SyncPage, SyncRow, checksum, decode_page, encode_page

pytestmark = pytest.mark.tier2

TABLE = bytes(range(16))
NOW = 1_700_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ReplicaFile]:
    found = ReplicaFile(tmp_path / "table.db", "t", "me")
    yield found
    found.close()


def page(
    *rows: tuple[bytes, int, bytes | None],
    position: int,
    is_full: bool = False,
    after: bytes = b"",
    next_after: bytes | None = None,
    oldest: int = 0,
    table: bytes = TABLE,
    keys: int = -1,
) -> SyncPage:
    return SyncPage(
        table=table, position=position, epoch=3, oldest=oldest, is_full=is_full, after=after,
        next_after=next_after, high_watermark=position, keys=keys,
        rows=[SyncRow(key, version, NOW, value, None) for key, version, value in rows],
    )  # fmt: skip


def values(file: ReplicaFile) -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in file.scan(b"", None, 100)}


def write(key: bytes, value: bytes | None, at: int = NOW) -> LocalWrite:
    return LocalWrite(key, value, at)


def only(file: ReplicaFile) -> PendingWrite:
    (found,) = file.pending(10)
    return found


def test_a_page_is_one_transaction_with_its_position(file: ReplicaFile, tmp_path: Path) -> None:
    assert not file.state().is_whole
    state = file.apply(page((b"a", 0, b"1"), (b"b", 1, b"2"), position=2, is_full=True, keys=2))
    assert (state.position, state.epoch, state.keys, state.is_whole) == (2, 3, 2, True)
    file.apply(page((b"a", 2, None), (b"c", 3, b"3"), position=4))
    assert values(file) == {b"b": b"2", b"c": b"3"}
    file.close()
    again = ReplicaFile(tmp_path / "table.db", "t", "other")
    assert again.replica_id == "me"
    assert again.state() == (TABLE, 4, 3, None, 0, 4, 2)
    assert values(again) == {b"b": b"2", b"c": b"3"}
    again.close()


def test_full_pages_replace_ranges(file: ReplicaFile) -> None:
    rows = [(key, n, b"old") for n, key in enumerate((b"a", b"b", b"c", b"d"))]
    file.apply(page(*rows, position=4, is_full=True))
    state = file.apply(page((b"b", 9, b"new"), position=9, is_full=True, next_after=b"b"))
    assert not state.is_whole
    assert values(file) == {b"b": b"new", b"c": b"old", b"d": b"old"}
    state = file.apply(page((b"d", 8, b"new"), position=9, is_full=True, after=b"b"))
    assert state.is_whole
    assert values(file) == {b"b": b"new", b"d": b"new"}


def test_purged_rows_go(file: ReplicaFile) -> None:
    file.apply(page((b"a", 0, b"1"), (b"b", 1, b"2"), position=2, is_full=True))
    file.apply(page(position=2, oldest=1))
    assert values(file) == {b"b": b"2"}


def test_another_table_of_the_name_takes_the_place(file: ReplicaFile) -> None:
    file.apply(page((b"a", 7, b"1"), position=8, is_full=True))
    file.queue(write(b"a", b"mine"))
    file.apply(page((b"b", 0, b"2"), position=1, is_full=True, next_after=b"b", table=bytes(16)))
    assert values(file) == {b"a": b"mine", b"b": b"2"}
    assert only(file).base is None


def test_what_was_written_here_is_read_here(file: ReplicaFile) -> None:
    rows = [(key, n, b"1") for n, key in enumerate((b"a", b"b", b"c"))]
    file.apply(page(*rows, position=3, is_full=True))
    file.queue(write(b"a", b"mine"))
    file.queue(write(b"b", None))
    file.queue(write(b"bb", b"new"))
    assert file.get(b"a") == ReplicaEntry(b"a", 0, NOW, b"mine", None, is_pending=True)
    assert file.get(b"b") is None
    assert file.get(b"c") == ReplicaEntry(b"c", 2, NOW, b"1", None, is_pending=False)
    assert [(each.key, each.is_pending) for each in file.scan(b"", None, 9)] == [
        (b"a", True), (b"bb", True), (b"c", False)
    ]  # fmt: skip
    assert [each.key for each in file.scan(b"aa", b"c", 9)] == [b"bb"]
    assert [each.key for each in file.scan(b"", None, 1)] == [b"a"]
    assert (file.count(), file.count_pending()) == (3, 3)


def test_a_later_write_replaces_what_the_earlier_one_did(file: ReplicaFile) -> None:
    file.apply(page((b"a", 5, b"1"), position=6, is_full=True))
    file.queue(write(b"a", b"2"))
    file.queue(write(b"b", b"0"))
    first = file.pending(1)
    assert (first[0].write.value, first[0].base) == (b"2", 5)
    file.queue(write(b"a", b"3", NOW + 1))
    assert [(each.write.key, each.write.value, each.base) for each in file.pending(9)] == [
        (b"b", b"0", None), (b"a", b"3", 5)
    ]  # fmt: skip


def test_a_write_that_is_taken_is_read_before_its_page_comes(file: ReplicaFile) -> None:
    file.apply(page((b"a", 5, b"1"), position=6, is_full=True))
    file.queue(write(b"a", b"2"))
    pending = only(file)
    file.settle(pending.number, pending.write, 9)
    assert file.get(b"a") == ReplicaEntry(b"a", 9, NOW, b"2", None, is_pending=False)
    file.apply(page((b"a", 6, b"older"), position=7))
    assert values(file) == {b"a": b"2"}
    file.apply(page((b"a", 9, b"2"), position=10))
    file.queue(write(b"a", None))
    pending = only(file)
    assert pending.base == 9
    file.settle(pending.number, pending.write, 10)
    assert (values(file), file.count(), file.count_pending()) == ({}, 0, 0)


def test_a_write_that_was_made_while_another_was_offered(file: ReplicaFile) -> None:
    file.queue(write(b"a", b"1"))
    offered = only(file)
    file.note_sent([offered])
    file.queue(write(b"a", None))
    file.note_sent([only(file)])
    file.queue(write(b"a", b"2"))
    later = only(file)
    assert (later.base, later.sent) == (None, digest_of(b"1") + digest_of(None))
    assert later.may_have_made(b"1")
    assert later.may_have_made(None)
    assert not later.may_have_made(b"2")
    file.settle(offered.number, offered.write, 4)
    later = only(file)
    assert (later.write.value, later.base, later.sent) == (b"2", 4, b"")
    assert file.refuse(offered.number, "too late") is None
    assert not file.rebase(offered.number, offered.write, 7)


def test_a_write_gets_another_base(file: ReplicaFile) -> None:
    file.queue(write(b"a", b"1"))
    pending = only(file)
    assert file.rebase(pending.number, write(b"a", b"merged"), 8)
    again = only(file)
    assert (again.number, again.write.value, again.base) == (pending.number, b"merged", 8)


def test_refused_writes_are_kept(file: ReplicaFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_file, "REFUSED_MAX", 2)
    for name in (b"a", b"b", b"c"):
        file.queue(write(name, b"1"))
        refused = file.refuse(only(file).number, f"why {name.decode()}")
        assert refused is not None
    assert [(each.write.key, each.reason) for each in file.refused(9)] == [
        (b"c", "why c"), (b"b", "why b")
    ]  # fmt: skip
    assert (file.count_refused(), values(file)) == (2, {})
    file.forget_refused(file.refused(9)[1].number)
    assert [each.write.key for each in file.refused(9)] == [b"c"]


def test_the_time_of_a_removal_is_kept_for_a_conflict(file: ReplicaFile) -> None:
    file.apply(page((b"a", 1, b"1"), (b"b", 2, b"1"), position=3, is_full=True))
    file.queue(write(b"a", b"2"))
    file.apply(page((b"a", 3, None), (b"b", 4, None), position=5))
    assert file.remote(b"a") == RemoteState(3, NOW, None)
    assert file.remote(b"b") == RemoteState(None, -1, None)
    assert file.refuse(only(file).number, "removed") is not None
    assert file.remote(b"a") == RemoteState(None, -1, None)
    assert (file.get(b"a"), file.count()) == (None, 0)


def test_a_file_of_another_table(tmp_path: Path) -> None:
    ReplicaFile(tmp_path / "table.db", "t", "me").close()
    with pytest.raises(ConfigError, match="'t', not of 'other'"):
        ReplicaFile(tmp_path / "table.db", "other", "me")


def test_a_damaged_file(tmp_path: Path, file: ReplicaFile) -> None:
    (tmp_path / "bad.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(CorruptData):
        ReplicaFile(tmp_path / "bad.db", "t", "me")
    connection = sqlite3.connect(tmp_path / "table.db")
    connection.execute("update state set format = 9")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptData, match="format 1, found 9"):
        ReplicaFile(tmp_path / "table.db", "t", "me")


def test_a_closed_file_says_so(tmp_path: Path) -> None:
    found = ReplicaFile(tmp_path / "table.db", "t", "me")
    found.close()
    with pytest.raises(LogFailed):
        found.state()


def test_a_page_on_the_wire() -> None:
    sent = page((b"a", 1, None), (b"\xff", 2, b""), position=3, is_full=True, next_after=b"x")
    body = encode_page(sent)
    assert decode_page(body, checksum(body)) == sent
    for wrong, crc in ((body, None), (body[:-1], checksum(body)), (b"\x93", checksum(b"\x93"))):
        with pytest.raises(RemoteProtocolError):
            decode_page(wrong, crc)
    short = encode_page(page(position=1, table=b"short"))
    with pytest.raises(RemoteProtocolError, match="table"):
        decode_page(short, checksum(short))
