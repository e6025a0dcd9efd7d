"""The file of a copy of a table: pages, and writes that were made on the copy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bascule.client.tables.replica import replica_file
from bascule.client.tables.replica.conflicts import RemoteState
from bascule.client.tables.replica.copy_rows import PendingWrite, ReplicaEntry, digest_of
from bascule.client.tables.replica.local_replica import open_replica
from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.errors import ConfigError, LogFailed, RemoteProtocolError
from bascule.wire.tables.sync_pages import SyncPage, checksum, decode_page, encode_page
from support.table_copies import NOW, TABLE, page, values, write

pytestmark = pytest.mark.tier2


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ReplicaFile]:
    found = ReplicaFile(tmp_path / "table.db", "t", "me")
    yield found
    found.close()


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
    assert again.state() == (TABLE, 4, 3, None, 0, 4, 2, 4, 3)
    assert values(again) == {b"b": b"2", b"c": b"3"}
    again.close()


def take(file: ReplicaFile, key: bytes, value: bytes | None, version: int) -> None:
    file.queue(write(key, value))
    pending = file.pending(10)[-1]
    file.settle(pending.number, pending.write, version, table=file.state().table)


def test_a_write_that_the_table_has_lost_does_not_stay(
    file: ReplicaFile, caplog: pytest.LogCaptureFixture
) -> None:
    """It was acknowledged, and taken from the log by an unclean election before its page came."""
    file.apply(page((b"a", 1, b"1"), position=2, read_at=2, is_full=True))
    take(file, b"a", b"mine", 5)
    state = file.apply(page((b"b", 6, b"x"), position=7, read_at=9))
    assert (state.position, values(file)[b"a"]) == (7, b"mine"), "its page may be to come"
    state = file.apply(page((b"c", 8, b"x"), position=9, read_at=9))
    assert (state.position, state.epoch, state.seen, state.after) == (0, -1, 0, None)
    assert state == file.state()
    assert "has lost the write of key 'a' at offset 5" in caplog.text
    state = file.apply(page((b"a", 1, b"1"), (b"b", 6, b"x"), position=9, read_at=9, is_full=True))
    assert (state.position, values(file)) == (9, {b"a": b"1", b"b": b"x"})


def test_writes_that_were_taken_are_confirmed(file: ReplicaFile) -> None:
    state = file.apply(page((b"a", 1, b"1"), position=2, read_at=2, is_full=True))
    take(file, b"a", b"2", 1)  # its page has come before the ack
    take(file, b"b", b"2", 3)
    take(file, b"c", b"2", 4)
    take(file, b"d", b"2", 5)
    take(file, b"e", None, 6)
    take(file, b"f", b"2", 9)
    file.apply(page((b"c", 4, b"2"), position=5, read_at=8))
    file.apply(page((b"d", 6, b"3"), (b"e", 7, None), position=8, read_at=8, oldest=4))
    take(file, b"g", None, 10)
    file.apply(page((b"f", 9, b"2"), position=8, read_at=11, is_full=True, next_after=b"f"))
    file.apply(page(position=8, read_at=11, is_full=True, after=b"f"))
    state = file.apply(page(position=11, read_at=11))
    assert state.position == 11
    assert values(file) == {b"f": b"2"}


def test_full_pages_replace_ranges(file: ReplicaFile) -> None:
    rows = [(key, n, b"old") for n, key in enumerate((b"a", b"b", b"c", b"d"))]
    file.apply(page(*rows, position=4, is_full=True))
    state = file.apply(page((b"b", 9, b"new"), position=9, is_full=True, next_after=b"b"))
    assert not state.is_whole
    assert values(file) == {b"b": b"new", b"c": b"old", b"d": b"old"}
    state = file.apply(page((b"d", 8, b"new"), position=9, is_full=True, after=b"b"))
    assert state.is_whole
    assert values(file) == {b"b": b"new", b"d": b"new"}


def test_the_furthest_state_that_was_seen_is_kept(file: ReplicaFile) -> None:
    """A table at 9 left states out of the page up to 4, and one at 6 may not have had them yet."""

    def seen_after(next_page: SyncPage) -> tuple[int, int]:
        state = file.apply(next_page)
        return state.seen, state.seen_epoch

    assert seen_after(page(position=2, is_full=True)) == (2, 3), "of a node that does not say it"
    assert seen_after(page(position=4, read_at=9)) == (9, 5)
    assert seen_after(page(position=5, read_at=6)) == (9, 5)
    assert file.state().seen == 9
    assert seen_after(page(position=9, read_at=9)) == (9, 5)
    assert seen_after(page(position=9, is_full=True, next_after=b"k", read_at=12)) == (12, 5)
    assert seen_after(page(position=9, is_full=True, after=b"k", read_at=10)) == (12, 5)
    assert seen_after(page(position=7, is_full=True, read_at=7)) == (7, 5), "all is read again"
    assert seen_after(page(position=1, table=bytes(16), read_at=1)) == (1, 5)


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


@pytest.mark.parametrize("end", [b"k", None])
def test_a_page_of_a_scan_reads_only_its_rows(file: ReplicaFile, end: bytes | None) -> None:
    """Whatever comes behind its end and its limit."""
    rows = [(b"%s%05d" % (prefix, n), n, b"1") for prefix in (b"a", b"z") for n in range(5_000)]
    file.apply(page(*rows, position=10_000, is_full=True))
    file.queue(write(b"a00001", b"mine"))
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    file._reader.set_progress_handler(count, 100)
    assert len(file.scan(b"a00000", end, 10)) == 10
    assert steps < 20, "hundreds of SQLite's instructions"
    assert file.scan(b"b", end, 10) == [] or end is None
    assert steps < 20


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
    file.settle(pending.number, pending.write, 9, table=file.state().table)
    assert file.get(b"a") == ReplicaEntry(b"a", 9, NOW, b"2", None, is_pending=False)
    file.apply(page((b"a", 6, b"older"), position=7))
    assert values(file) == {b"a": b"2"}
    file.apply(page((b"a", 9, b"2"), position=10))
    file.queue(write(b"a", None))
    pending = only(file)
    assert pending.base == 9
    file.settle(pending.number, pending.write, 10, table=file.state().table)
    assert (values(file), file.count(), file.count_pending()) == ({}, 0, 0)


def test_an_ack_that_comes_late_changes_no_row(file: ReplicaFile) -> None:
    """A repeated offer gets the first ack, though others have removed or changed the key since."""
    file.queue(write(b"removed", b"ours"))
    file.queue(write(b"changed", b"ours"))
    file.apply(page((b"changed", 5, b"theirs"), position=7, read_at=7, is_full=True))
    for number, (pending, version) in enumerate(zip(file.pending(2), (1, 2), strict=True)):
        file.settle(pending.number, pending.write, version, table=file.state().table)
        assert file.count_pending() == 1 - number
    assert values(file) == {b"changed": b"theirs"}
    assert file.remote(b"removed") == RemoteState(None, -1, None)
    take(file, b"changed", None, 3)
    assert values(file) == {b"changed": b"theirs"}


def test_an_ack_of_a_former_table_changes_no_row(file: ReplicaFile) -> None:
    """Its version may be ahead of the table that has taken its place."""
    file.apply(page((b"a", 5, b"1"), position=6, is_full=True))
    file.queue(write(b"a", b"2"))
    offered = only(file)
    file.apply(page((b"b", 0, b"x"), position=1, is_full=True, table=bytes(16)))
    file.queue(write(b"a", b"3"))
    file.settle(offered.number, offered.write, 7, table=TABLE)
    assert file.remote(b"a") == RemoteState(None, -1, None)
    assert (only(file).write.value, only(file).base) == (b"3", None)


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
    file.settle(offered.number, offered.write, 4, table=file.state().table)
    later = only(file)
    assert (later.write.value, later.base, later.sent) == (b"2", 4, b"")
    assert file.refuse(offered.number, "too late") is None
    assert not file.rebase(offered.number, offered.write, file.known(b"a"))


def test_each_write_has_a_message_id_of_its_own(tmp_path: Path) -> None:
    """A stream takes a second one for a repetition, and answers with the place of the first."""
    ids = []
    for name in ("a", "clone of a", "a begun anew"):
        file = ReplicaFile(tmp_path / name, "t", "me")
        for key, value, at in ((name.encode(), b"1", NOW), (b"b", b"1", len(ids)), (b"c", None, 0)):
            file.queue(write(key, value, at))
        ids += [each.message_id("me") for each in file.pending(9)][:2]
        again = [each.message_id("me") for each in file.pending(9)][:2]
        assert again == ids[-2:], "a repetition of the same write has the same"
        file.close()
    assert len(set(ids)) == 6
    assert max(map(len, ids)) < 64


def test_a_write_gets_another_base(file: ReplicaFile) -> None:
    file.queue(write(b"a", b"1"))
    pending = only(file)
    file.apply(page((b"a", 8, b"theirs"), position=9))
    assert file.rebase(pending.number, write(b"a", b"merged"), file.known(b"a"))
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


def test_a_file_without_anything_of_its_table_takes_another_name(tmp_path: Path) -> None:
    """The name was mistyped, or that of a stream that is no table."""
    path = tmp_path / "table.db"
    ReplicaFile(path, "mistyped", "me").close()
    with pytest.raises(ConfigError, match="'mistyped', not of 't'"):
        ReplicaFile(path, "t", "me")
    file = ReplicaFile(path, "t", "other", follows=True)
    assert file.replica_id == "me"
    assert file.verify() == 0
    file.queue(write(b"a", b"1"))
    file.close()
    with pytest.raises(ConfigError, match="'t', not of 'u'"):
        ReplicaFile(path, "u", "me", follows=True)
    file = ReplicaFile(path, "t", "other", follows=True)
    file.refuse(1, "no")
    with pytest.raises(ConfigError, match="'t', not of 'u'"):
        ReplicaFile(path, "u", "me", follows=True)
    file.forget_refused(1)
    file.apply(page(position=0, is_full=True))
    file.close()
    with pytest.raises(ConfigError, match="'t', not of 'u'"):
        ReplicaFile(path, "u", "me", follows=True)


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


def test_a_copy_takes_no_value_that_cannot_be_sent(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_replica("t", tmp_path, follow=False) as copy:
            for value in ("text", 7, [1]):
                with pytest.raises(TypeError, match="a value is bytes"):
                    await copy.set("k", cast("bytes", value))
            for content_type in ("", "a\n", "é", " a/b", "a" * 256):
                with pytest.raises(ConfigError, match="content type"):
                    await copy.set("k", b"v", content_type=content_type)
            assert (await copy.status()).pending == 0
            await copy.set("k", cast("bytes", bytearray(b"v")))
            await copy.set("l", cast("bytes", memoryview(b"v")), content_type="a/b")
            assert [each.value async for each in copy.entries()] == [b"v", b"v"]

    asyncio.run(test())
