"""The Raft logs of a node in one SQLite file.

One `SqliteDatabase` serves the stores of all groups of a node (`database.store(group)`). One thread
at a time uses it. Calls are buffered in memory; a flush of any store commits the buffered calls of
all stores in one transaction, which is durable when the flush returns (write-ahead log,
synchronous=FULL).

Every row has a CRC-32C. Further checks find missing and outdated rows: a group's row has the first
and last index of its log, the CRC of its last run of entries and a checksum over its chunks; the
node's row has a checksum over the groups' rows and the number of commits; the commit mark beside
the database has that number again. Missing rows, old rows that reappear, and a truncated
write-ahead log are therefore found: flushed data is never missing silently. An older copy of
database and mark is found by who keeps the number elsewhere (`KnownCommits`). See docs/formats.md.

Rows are ordered by group and index, so that a truncation frees whole pages. The cost is that a
flush of many groups writes more pages: one entry for each of 100 groups writes about 200 pages; in
order of arrival the rows would fill 8 pages. But then every truncation would leave holes in pages
of many groups. The entries of one group in a flush are one row.

Nothing is repeated after an error. A database that has failed refuses every call until it is opened
again, and opening writes the contents of the write-ahead log into the file once more.
"""

from bascule.raft_driver.sqlite_store.commit_mark import NOTHING_KNOWN, KnownCommits
from bascule.raft_driver.sqlite_store.database import (
    DatabaseStatistics,
    SqliteDatabase,
    SqliteStore,
)
from bascule.raft_driver.sqlite_store.opening import restart_mark, stored_node_id

__all__ = [
    "NOTHING_KNOWN",
    "DatabaseStatistics",
    "KnownCommits",
    "SqliteDatabase",
    "SqliteStore",
    "restart_mark",
    "stored_node_id",
]
