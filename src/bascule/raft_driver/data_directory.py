"""The directory that holds a node's Raft groups: a lock, and one database for all of them."""

from __future__ import annotations

from typing import Final

from bascule.host.real import DirectoryLock, make_lasting_dirs
from bascule.raft.store import RaftStore
from bascule.raft_driver.sqlite_store import (
    NOTHING_KNOWN,
    DatabaseStatistics,
    KnownCommits,
    SqliteDatabase,
)

DATABASE_NAME: Final = "raft.sqlite"


class DataDirectory:
    """One process has it open at a time, and one thread uses it at a time."""

    def __init__(self, path: str, *, node_id: int, known: KnownCommits = NOTHING_KNOWN) -> None:
        """Open the directory; create it if missing.

        Raises: DataDirectoryInUse naming the holder's process; CorruptData, also where the database
        has fewer commits than are `known`; OSError.
        """
        make_lasting_dirs(path)
        self._lock = DirectoryLock(path)
        try:
            self._database = SqliteDatabase.open(
                f"{path}/{DATABASE_NAME}", node_id=node_id, known=known
            )
        except BaseException:
            self._lock.release()
            raise

    @property
    def commits(self) -> int:
        """Of the database so far. Any thread may read it."""
        return self._database.commits

    def store(self, group: int) -> RaftStore:
        """The store of a group; a new one if there is none."""
        return self._database.store(group)

    def statistics(self) -> DatabaseStatistics:
        """What the database has done. Any thread may call this."""
        return self._database.statistics()

    def close(self) -> None:
        """Close the database and release the lock."""
        try:
            self._database.close()
        finally:
            self._lock.release()
