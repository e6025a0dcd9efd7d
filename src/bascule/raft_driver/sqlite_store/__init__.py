"""The Raft logs of a node in one SQLite file.

One `SqliteDatabase` serves the stores of all groups of a node (`database.store(group)`), from one
thread at a time, whichever that is. Buffered calls wait in memory; a flush of any store commits
those of all in one transaction, and a commit is on the disk when it returns (write-ahead log,
synchronous=FULL).

Every row has a CRC-32C. What rows cannot say of themselves is said elsewhere: a group's row has the
ends of its log, the CRC of its last run of entries and the sum of its chunks; the node's row has
the sum of the groups' rows and the number of commits; and beside the database the synced mark has
that number again. So rows that vanish, old rows that come back, and a write-ahead log that is cut
short are found, and nothing that was flushed is ever missing silently. See docs/formats.md.

Rows lie in the order of groups and indices, so that a truncation frees whole pages. The price is
paid by flushes of many groups: an entry for each of 100 groups writes some 200 pages, where rows in
the order of their arrival would fill 8, and would then leave a hole in each page of many groups at
every truncation. Entries that a flush has for one group are one row and cost their bytes.

Not a line of it is repeated after an error: a database that fails refuses every call until it is
opened anew, and opening writes all that the write-ahead log holds once more into the file.
"""

from bascule.raft_driver.sqlite_store.database import DatabaseStatistics, SqliteDatabase
from bascule.raft_driver.sqlite_store.store import SqliteStore

__all__ = ["DatabaseStatistics", "SqliteDatabase", "SqliteStore"]
