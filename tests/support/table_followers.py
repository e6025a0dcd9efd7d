"""A follower of a table: it asks for pages of changes, and applies them as the documents say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from bascule.tables.oplog.changes import Bounds, Changes, Page
from bascule.tables.rows import NOTHING_SEEN, Row, TablePosition
from bascule.tables.table_file import TableFile
from bascule.wire.tables.sync_pages import SyncPage, SyncRow, checksum, decode_page, encode_page


@dataclass
class TableFollower:
    """The rows that it has, and where it goes on."""

    rows: dict[bytes, Row] = field(default_factory=dict)
    position: int = 0
    epoch: int = -1
    after: bytes | None = None
    seen: TablePosition = NOTHING_SEEN
    full_pages: int = 0
    pages: int = 0

    def apply(self, page: Changes | Page, *, oldest: int = 0) -> None:
        asked = self.position if self.after is None else None
        if page.is_full:
            self.full_pages += 1
            gone = [
                key
                for key in self.rows
                if key > page.after and (page.next_after is None or key <= page.next_after)
            ]
            for key in gone:
                del self.rows[key]
        else:
            versions = [row.version for row in page.rows]
            assert versions == sorted(versions), "changes are not in the order of versions"
            assert all(asked is None or asked <= each < page.position for each in versions)
            assert page.rows or page.position == asked or asked is None or asked < page.position
        for row in page.rows:
            if row.value is None:
                self.rows.pop(row.key, None)
            else:
                self.rows[row.key] = row
        self.rows = {key: row for key, row in self.rows.items() if row.version >= oldest}
        self.position, self.after = page.position, page.next_after
        if page.read_at.offset >= self.seen.offset or (page.is_full and not page.after):
            self.seen = page.read_at
        self.pages += 1

    def page_of(self, file: TableFile, rows_max: int = 3, bytes_max: int = 1 << 20) -> bool:
        """Ask for a page, and apply it; returns whether there may be more."""
        page = file.changes(self.position, self.after, Bounds(rows_max, bytes_max, 0))
        self.apply(page)
        return may_go_on(page)

    def catch_up(self, file: TableFile, rows_max: int = 3) -> None:
        while self.page_of(file, rows_max):
            pass

    def values(self) -> dict[bytes, bytes | None]:
        return {key: row.value for key, row in self.rows.items()}


def as_sent(found: Changes) -> SyncPage:
    """A page as a client gets it from a node."""
    page = SyncPage(
        table=bytes(16), position=found.position, epoch=found.epoch, oldest=found.oldest,
        is_full=found.is_full, after=found.after, next_after=found.next_after,
        high_watermark=0, keys=-1, rows=cast("list[SyncRow]", found.rows),
        read_at=found.read_at.offset, read_epoch=found.read_at.epoch,
    )  # fmt: skip
    body = encode_page(page)
    return decode_page(body, checksum(body))


def may_go_on(page: Changes | Page) -> bool:
    """Whether there may be more. Only an empty page that is not full says that nothing is newer:
    behind the last one of full pages come the changes since the first one."""
    return bool(page.rows or page.after) or page.next_after is not None
