"""Files of copies of tables, and pages for them."""

from __future__ import annotations

from pathlib import Path

from bascule.client.tables.replica.conflicts import LocalWrite
from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.wire.tables.sync_pages import SyncPage, SyncRow

TABLE = bytes(range(16))
NOW = 1_700_000_000_000


def page(
    *rows: tuple[bytes, int, bytes | None],
    position: int,
    is_full: bool = False,
    after: bytes = b"",
    next_after: bytes | None = None,
    oldest: int = 0,
    table: bytes = TABLE,
    keys: int = -1,
    read_at: int = 0,
) -> SyncPage:
    return SyncPage(
        table=table, position=position, epoch=3, oldest=oldest, is_full=is_full, after=after,
        next_after=next_after, high_watermark=position, keys=keys,
        rows=[SyncRow(key, version, NOW, value, None) for key, version, value in rows],
        read_at=read_at, read_epoch=5,
    )  # fmt: skip


def values(file: ReplicaFile) -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in file.scan(b"", None, 100)}


def write(key: bytes, value: bytes | None, at: int = NOW) -> LocalWrite:
    return LocalWrite(key, value, at)


def filled(path: Path) -> None:
    """A copy with rows, writes to offer and refused ones, all of it in the one file."""
    file = ReplicaFile(path, "t", "me")
    rows = [(b"key %d" % n, n, b"value %d " % n + bytes(n)) for n in range(40)]
    file.apply(page(*rows, position=40, is_full=True, keys=40))
    file.apply(page((b"key 3", 40, None), position=41))
    for n in range(5):
        file.queue(write(b"key %d" % (20 + n), b"ours %d" % n))
    file.refuse(file.pending(1)[0].number, "others have written")
    file.close()
