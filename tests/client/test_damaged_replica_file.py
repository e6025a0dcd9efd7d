"""The file of a copy of a table with wrong bits, and a copy that begins anew in its place."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.client.tables.replica.rescue import begin_anew, finish_begun
from bascule.errors import ConfigError, CopyDamaged, CorruptData, LogFailed
from bascule.host.real import RealFiles
from support.table_copies import filled, page, values, write

pytestmark = pytest.mark.tier2


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(CorruptData):
        ReplicaFile(tmp_path / "bad.db", "t", "me")
    ReplicaFile(tmp_path / "table.db", "t", "me").close()
    connection = sqlite3.connect(tmp_path / "table.db")
    connection.execute("update state set format = 9")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptData, match="format 5, found 9"):
        ReplicaFile(tmp_path / "table.db", "t", "me")


def everything(path: Path) -> tuple[object, ...]:
    file = ReplicaFile(path, "t", "other")
    try:
        file.verify()
        return (
            file.replica_id, file.state(), file.scan(b"", None, 1_000),
            [each[1:] for each in file.pending(100)], [each[1:] for each in file.refused(100)],
        )  # fmt: skip
    finally:
        file.close()


@pytest.mark.parametrize("part", range(4))
def test_a_wrong_bit_anywhere_is_found_or_changes_nothing(tmp_path: Path, part: int) -> None:
    path = tmp_path / "table.db"
    filled(path)
    data, whole = path.read_bytes(), everything(path)
    found = 0
    for at in range(part * 7, len(data), 28):
        if not any(data[at : at + 1]):
            continue  # unused space, mostly
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.write_bytes(damaged)
        try:
            assert everything(path) == whole, at
        except (CopyDamaged, LogFailed, ConfigError):
            found += 1
    assert found > 20


def test_a_read_finds_what_it_returns_damaged(tmp_path: Path) -> None:
    path = tmp_path / "table.db"
    filled(path)
    path.write_bytes(path.read_bytes().replace(b"value 7 ", b"value 6 "))
    file = ReplicaFile(path, "t", "me")
    assert file.get(b"key 8") is not None
    for read in (
        lambda: file.get(b"key 7"),
        lambda: file.scan(b"", None, 100),
        lambda: file.remote(b"key 7"),
        file.verify,
    ):
        with pytest.raises(CopyDamaged, match=r"key 'key 7': expected the checksum .* --anew"):
            read()
    file.close()


def change(path: Path, statement: str, *values: object) -> None:
    """As damage does: the checksum is not the one of the row any more."""
    connection = sqlite3.connect(path)
    connection.execute(statement, values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("crc", ["text", 1.5, b"blob", -1])
@pytest.mark.parametrize("table", ["entries", "pending", "refused", "state", "changes"])
def test_a_checksum_may_be_of_any_type(tmp_path: Path, table: str, crc: object) -> None:
    """A wrong bit in the head of a row changes the types of its columns."""
    path = tmp_path / "table.db"
    filled(path)
    change(path, f"update {table} set crc = ?", crc)
    with pytest.raises(CopyDamaged):
        ReplicaFile(path, "t", "me").verify()
    begin_anew(path, "t", "me")


@pytest.mark.parametrize("key", ["text", 7, 1.5])
def test_a_key_may_be_of_any_type(tmp_path: Path, key: object) -> None:
    path = tmp_path / "table.db"
    filled(path)
    change(path, "update entries set key = ? where key = ?", key, b"key 7")
    file = ReplicaFile(path, "t", "me")
    with pytest.raises(CopyDamaged):
        file.verify()
    file.close()


def test_a_damaged_write_gets_no_right_checksum(tmp_path: Path) -> None:
    """It would be offered to the cluster."""
    path = tmp_path / "table.db"
    filled(path)
    file = ReplicaFile(path, "t", "me")
    pending = file.pending(100)
    change(path, "update pending set value = ? where key = ?", b"wrong", b"key 22")
    file.apply(page(position=1, table=bytes(16)))  # the table is another one
    file.note_sent(pending)
    file.settle(999, pending[1].write, 50, table=file.state().table)
    with pytest.raises(CopyDamaged, match="write 3"):
        file.pending(100)
    assert [each.number for each in pending if each.write.key == b"key 22"] == [3]
    file.rebase(3, write(b"key 22", b"as it is to be"), file.known(b"key 22"))
    file.close()


def test_a_damaged_copy_begins_anew_with_the_writes_made_on_it(tmp_path: Path) -> None:
    path = tmp_path / "table.db"
    filled(path)
    file = ReplicaFile(path, "t", "me")
    pending, refused = file.pending(100), file.refused(100)
    file.close()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"value 7 ", b"value 6 ").replace(b"ours 2", b"ours 9"))
    with pytest.raises(ConfigError, match="'t', not of 'other'"):
        begin_anew(path, "other", "new")
    begin_anew(path, "t", "new")
    file = ReplicaFile(path, "t", "new")
    assert (file.replica_id, file.state().table, values(file).keys()) == (
        "me", None, {b"key 21", b"key 23", b"key 24"},
    )  # fmt: skip
    assert file.pending(100) == [
        each._replace(since=None) for each in pending if each.write.value != b"ours 2"
    ]
    assert file.refused(100) == refused
    file.queue(write(b"later", b"x"))
    assert file.pending(100)[-1].number > pending[-1].number
    file.apply(page((b"key 7", 7, b"value 7"), position=41, is_full=True))
    assert values(file)[b"key 7"] == b"value 7"
    file.close()
    assert Path(f"{path}.damaged").exists()
    path.write_bytes(b"no database" * 1_000)
    begin_anew(path, "t", "new")
    file = ReplicaFile(path, "t", "other")
    assert (file.replica_id, file.pending(10)) == ("new", [])
    file.close()


def test_writes_survive_an_end_anywhere_while_a_copy_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a full disk, a crash between two renames, or the user."""

    ends = 0
    while True:
        path = tmp_path / str(ends) / "table.db"
        path.parent.mkdir()
        filled(path)
        (path.parent / "table.db.damaged-wal").write_bytes(b"of an earlier time")
        with monkeypatch.context() as patch:
            has_ended = begin_anew_in_part(path, ends, patch)
        if ends % 2:
            finish_begun(path)
        else:
            begin_anew(path, "t", "new")
        file = ReplicaFile(path, "t", "other")
        assert (file.replica_id, file.count_pending(), file.count_refused()) == ("me", 4, 1)
        file.close()
        if not has_ended:
            break
        ends += 1
    assert ends > 8
    assert (path.parent / "table.db.damaged-wal").read_bytes() != b"of an earlier time"


def test_a_copy_that_was_begun_anew_takes_no_writes_at_its_former_place(tmp_path: Path) -> None:
    path = tmp_path / "table.db"
    filled(path)
    former = ReplicaFile(path, "t", "me")
    former.queue(write(b"before", b"1"))
    begin_anew(path, "t", "new")
    with pytest.raises(LogFailed, match="open it again"):
        former.queue(write(b"lost", b"1"))
    assert former.get(b"lost") is None
    file = ReplicaFile(path, "t", "other")
    file.queue(write(b"after", b"1"))
    former.close()
    assert Path(f"{path}-wal").exists(), "SQLite must not remove that of another file"
    assert {b"before", b"after"} <= {each.write.key for each in file.pending(10)}
    path.unlink()
    with pytest.raises(LogFailed, match="open it again"):
        file.queue(write(b"lost", b"1"))
    file.close()


def test_nobody_writes_to_a_copy_while_it_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.db"
    filled(path)
    writer = ReplicaFile(path, "t", "me")
    said: list[Exception | None] = []

    def queue() -> None:
        try:
            writer.queue(write(b"meanwhile", b"1"))
        except LogFailed as error:
            said.append(error)
        else:
            said.append(None)

    writing = threading.Thread(target=queue)
    restore = ReplicaFile.restore

    def restored(file: ReplicaFile, *kept: Any) -> None:
        """All that is there has been read."""
        writing.start()
        writing.join(0.3)
        restore(file, *kept)

    monkeypatch.setattr(ReplicaFile, "restore", restored)
    begin_anew(path, "t", "new")
    writing.join(20)
    assert len(said) == 1
    assert "open it again" in str(said[0])
    writer.close()


class Ended(BaseException):
    """As the end of the process."""


def begin_anew_in_part(path: Path, steps: int, patch: pytest.MonkeyPatch) -> bool:
    """End after so many steps; whether there were more."""
    left = iter(range(steps))

    def ending(step: Callable[..., object]) -> Callable[..., object]:
        def take(*given: object, **more: bool) -> object:
            if next(left, None) is None:
                raise Ended
            return step(*given, **more)

        return take

    for owner, name in (
        (Path, "replace"),
        (Path, "unlink"),
        (ReplicaFile, "restore"),
        (RealFiles, "sync_dir"),
    ):
        patch.setattr(owner, name, ending(getattr(owner, name)))
    try:
        begin_anew(path, "t", "new")
    except Ended:
        return True
    return False
