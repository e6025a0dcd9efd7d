"""What the file of a copy has: where the copy stands, entries, and writes made on it."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from bascule.client.tables.replica.conflicts import LocalWrite, RemoteState
from bascule.wire.tables.sync_pages import SeenTable, SyncPage

DIGEST_BYTES: Final = 32
MESSAGE_ID_DIGITS: Final = 24
"""Of the digest in the id of a publication, hexadecimal."""


class CopyState(NamedTuple):
    """What a copy stands at."""

    table: bytes | None
    """The id of the table; None before the first page."""
    position: int
    epoch: int
    after: bytes | None
    """The last key that the copy has of full pages; None: it has all keys."""
    oldest: int
    high_watermark: int
    """What was committed below it when the last page was sent."""
    keys: int
    """About how many keys the table had when full pages began."""
    seen: int
    seen_epoch: int
    """See `wire.tables.sync_pages.SeenTable`."""

    @property
    def is_whole(self) -> bool:
        """Whether it is a state that the table has been in, or nearly."""
        return self.table is not None and self.after is None

    def behind(self, page: SyncPage) -> CopyState:
        """Where to go on after a page."""
        seen = SeenTable(self.seen, self.seen_epoch)
        seen = seen.after(page, is_same_table=self.table == page.table)
        return self._replace(
            table=page.table, position=page.position, epoch=page.epoch, after=page.next_after,
            seen=seen.offset, seen_epoch=seen.epoch,
        )  # fmt: skip


class ReplicaEntry(NamedTuple):
    """A key with a value, of a copy of a table."""

    key: bytes
    version: int | None
    """The offset of the record; of a write that is not in the table yet, that of the record that it
    replaces, if there is one."""
    timestamp: int
    """Unix time of the record, or of the write, milliseconds."""
    value: bytes
    content_type: str | None
    is_pending: bool
    """Whether it was written here, and the cluster has not taken it yet."""


class ReplicaValues(NamedTuple):
    """What `get_many` has found, all of it of one state."""

    position: int
    """The first offset that the copy did not have."""
    entries: dict[bytes, ReplicaEntry]
    """By key; without the keys that have no value."""


class KnownState(NamedTuple):
    """What a copy knows of a key."""

    remote: RemoteState
    position: int
    """The first offset that the copy did not have then."""
    restarts: int
    """How often the file had begun to get all keys."""


class PendingWrite(NamedTuple):
    """A write to be offered."""

    number: int
    write: LocalWrite
    base: int | None
    """The version that it replaces; None: the key had no value."""
    sent: bytes
    """Digests of what was sent for the key without an answer, by this write and those before it."""
    since: int | None
    """A record of the key at this offset or behind it is one of others that the write does not
    replace; the copy's pages have brought it, if there is one. 0: the copy had nothing of the table
    when the write was made. None: the pages may not have brought a removal."""

    @property
    def is_unsure(self) -> bool:
        """Whether the pages of the copy do not say what has become of the key: a write that was
        sent may be in the table, or have been, and full pages have no removals."""
        if self.base is not None or self.write.value is None:
            return False
        return self.sent != b"" or not self.since

    def may_have_made(self, value: bytes | None) -> bool:
        """Whether a value of the key may be what was sent."""
        digests = [
            self.sent[at : at + DIGEST_BYTES] for at in range(0, len(self.sent), DIGEST_BYTES)
        ]
        return digest_of(value) in digests

    @property
    def may_have_set(self) -> bool:
        """Whether the key may have a value that was sent, though the copy knows of none."""
        return self.sent.strip(b"\0") != b""  # the digest of a removal is 0

    def message_id(self, replica_id: str) -> str:
        """Of the publication that offers it. What it writes is a part of it: a copy that begins
        anew counts from 1 again, and one that was cloned counts as the other."""
        write = self.write
        content = (write.key, write.value, write.timestamp, write.content_type)
        digest = sha256(msgspec.msgpack.encode(content)).hexdigest()[:MESSAGE_ID_DIGITS]
        return f"{replica_id}-{self.number}-{self.base}-{digest}"


class RefusedWrite(NamedTuple):
    """A write that the cluster did not take."""

    number: int
    """Later ones have higher numbers."""
    write: LocalWrite
    base: int | None
    reason: str


def row_crc(*fields: bytes | int | str | None) -> int:
    """The checksum of a row with these fields."""
    return int(crc32c(msgspec.msgpack.encode(fields)))


def digest_of(value: bytes | None) -> bytes:
    """Of what a write makes of a key."""
    return bytes(DIGEST_BYTES) if value is None else sha256(value).digest()
