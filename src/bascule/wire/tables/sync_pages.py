"""Pages of changes, for copies of a table outside the cluster.

A page is a MessagePack array with the fields of `SyncPage` in their order; rows are arrays with
those of `SyncRow`. Fields that come later are added at the end, and readers skip those they do not
know. How a reader pages is in `bascule.tables.oplog.changes`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import Struct

from bascule.errors import RemoteProtocolError

FORMAT: Final = 1
MEDIA_TYPE: Final = "application/msgpack"
CRC_HEADER: Final = "bascule-crc32c"
"""The CRC-32C of the body, eight hexadecimal digits."""
TABLE_ID_BYTES: Final = 16


class SyncRow(Struct, frozen=True, array_like=True):
    """The last record of a key."""

    key: bytes
    version: int
    """The offset of the record."""
    timestamp: int
    """Unix time of the record, milliseconds."""
    value: bytes | None
    """None: the key was removed."""
    content_type: str | None = None


class SyncPage(Struct, frozen=True, kw_only=True, array_like=True):
    """A page of changes."""

    format: int = FORMAT
    table: bytes
    """The id of the stream. A table that is made anew with the same name has another one."""
    position: int
    """Where to go on: `since` of the next page."""
    epoch: int
    """The leader epoch of the record before `position`, -1 if it is not known."""
    oldest: int
    """Rows with a lower version were purged."""
    is_full: bool
    """Whether the page has all keys of a range, and what is not in it is not there."""
    after: bytes
    """The keys of a full page are above this one, b"" for all."""
    next_after: bytes | None
    """The last key of a full page that others have to follow; None if there is none."""
    high_watermark: int
    """What is committed below it, as far as the node knows."""
    keys: int
    """About how many keys the table has; -1 where that was not counted."""
    rows: list[SyncRow]
    read_at: int = 0
    """The offset up to which the table was applied when the rows were read, at least `position`.
    What has changed twice below it may be missing from this page, and comes with a later one."""
    read_epoch: int = -1
    """The leader epoch of the record before `read_at`, -1 if it is not known."""

    @property
    def is_current(self) -> bool:
        """Whether nothing that was committed is missing behind this page."""
        return self.next_after is None and self.position >= self.high_watermark


class SeenTable(NamedTuple):
    """The furthest state of a table that a copy was given rows of. A row that had changed twice
    below it may be missing behind the position of the copy."""

    offset: int
    """Up to where the table was applied."""
    epoch: int
    """The leader epoch of the record before, -1 if it is not known."""

    def after(self, page: SyncPage, *, is_same_table: bool) -> SeenTable:
        """What it is once the page is applied."""
        said = SeenTable(page.read_at, page.read_epoch)
        if page.read_at < page.position:  # a node that does not say it
            said = SeenTable(page.position, page.epoch)
        begins = page.is_full and not page.after
        return said if begins or said.offset >= self.offset or not is_same_table else self


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SyncPage)


def encode_page(page: SyncPage) -> bytes:
    return _encoder.encode(page)


def checksum(body: bytes) -> str:
    """For `CRC_HEADER`."""
    return f"{crc32c(body):08x}"


def decode_page(body: bytes, crc: str | None) -> SyncPage:
    """`crc` is what `CRC_HEADER` says. Raises: RemoteProtocolError."""
    found = checksum(body)
    if crc != found:
        raise RemoteProtocolError(
            f"a page of {len(body)} bytes has the CRC-32C {found}, and its header says {crc}"
        )
    try:
        page = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"a page of changes is not valid: {error}") from error
    if page.format != FORMAT:
        raise RemoteProtocolError(
            f"a page of changes has format {page.format}, expected {FORMAT}: use the client of the "
            "node's release"
        )
    if len(page.table) != TABLE_ID_BYTES or page.position < 0:
        raise RemoteProtocolError(
            f"a page of changes is not valid: table {page.table.hex()}, position {page.position}"
        )
    return page
