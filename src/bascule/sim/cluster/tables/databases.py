"""The databases of tables: real SQLite files, as much of them as the disk of a machine has.

A file of the simulated disk stands for each database and has its number; the bytes are in a
temporary directory. So the production code creates and removes databases through its `Files`, and
SQLite reads and writes them with its own locks, snapshots and recovery.

When a process ends, its transactions that are not committed are gone. A loss of power takes the end
of the write-ahead log, too, from a random byte on: that is not synced before a checkpoint. SQLite
finds the last transaction that is whole.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any, Final

from bascule.sim.cluster.world.disk import MachineFiles, ProcessFiles
from bascule.sim.cluster.world.loop import NS, LoopProcess, process_now
from bascule.sim.cluster.world.threads import sleep
from bascule.sim.prng import Prng

MEMORY: Final = Path("/dev/shm")  # noqa: S108
"""Where it is there, nothing is written to a real disk."""
PAUSES: Final = 0.2
"""How likely a thread is to be interrupted between two statements."""
PAUSE_NS: Final = 3_000_000
WHOLE: Final = 0.25
"""How likely a loss of power is to take nothing of a log."""
WRITE_BYTES: Final = 8 << 10
"""What a transaction writes, about: on a disk with less room it fails."""
CHECKPOINT: Final = "pragma wal_checkpoint"
LOG_HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
DATABASE_PAGE_BYTES: Final = 4096
NOW: Final = (
    "select position, key, version, timestamp, value, content_type from state ",
    "select key, version, timestamp, value, content_type from entries where key = ?",
)
"""Which statements a node may execute on its event loop: their pages are in memory."""


class TableDatabases:
    """The databases on the disk of one machine, through all its processes."""

    def __init__(self, files: MachineFiles, prng: Prng) -> None:
        self._files = files
        self._prng = prng
        self._directory: Path | None = None
        self._connections: dict[SimConnection, None] = {}
        self._count = 0
        self._synced: dict[str, tuple[bytes, int]] = {}
        """Head of each log, and its bytes when a checkpoint has synced it, which is done first.
        They stay until the log begins again with another head: a part of them, over the database
        that has all, would be an earlier state."""

    def connect(self, process: LoopProcess, disk: ProcessFiles, path: str) -> SimConnection:
        """Open a database, or create it. Raises: OSError."""
        connection = sqlite3.connect(
            self._made(disk, path), isolation_level=None, check_same_thread=False,
            factory=SimConnection,
        )  # fmt: skip
        connection.belong_to(process, self, self._prng, f"{self._number(path)}.db")
        self._connections[connection] = None
        return connection

    def read(self, path: str) -> sqlite3.Connection | None:
        """A connection of a checker, which is to close it; None: there is no database."""
        number = self._number(path)
        if not number or self._directory is None:
            return None
        return sqlite3.connect(self._directory / f"{number}.db", isolation_level=None)

    def forget(self, connection: SimConnection) -> None:
        """It is closed."""
        self._connections.pop(connection, None)

    def on_process_ended(self, *, has_power: bool) -> None:
        """The process that has databases open is gone, maybe with what the kernel had in memory."""
        if self._directory is None:
            return
        kept = {path: path.read_bytes() for path in sorted(self._directory.glob("*.db*"))}
        for connection in list(self._connections):
            sqlite3.Connection.close(connection)
        self._connections.clear()
        for path in self._directory.iterdir():
            path.unlink()
        for path, data in kept.items():
            if path.name.endswith("-shm"):
                continue
            if path.name.endswith("-wal") and not has_power:
                head, size = self._synced.get(path.name, (b"", 0))
                end = _log_end(data)
                floor = min(size, end) if data.startswith(head) else 0
                if not self._prng.happens(WHOLE):
                    end = floor + self._prng.below(end - floor + 1)
                data = data[:end]
            path.write_bytes(data)

    def note_checkpoint(self, file: str, frames: int) -> None:
        """The log of a database was synced, which has so many frames."""
        assert self._directory is not None
        size = LOG_HEADER_BYTES + frames * (FRAME_HEADER_BYTES + DATABASE_PAGE_BYTES)
        data = (self._directory / f"{file}-wal").read_bytes()
        self._synced[f"{file}-wal"] = data[:LOG_HEADER_BYTES], size

    def close(self) -> None:
        """Remove everything."""
        for connection in list(self._connections):
            sqlite3.Connection.close(connection)
        self._connections.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None

    def _made(self, disk: ProcessFiles, path: str) -> Path:
        """The real file. SQLite syncs a new one when it begins a write-ahead log."""
        if self._directory is None:
            where = MEMORY if MEMORY.is_dir() else None
            self._directory = Path(tempfile.mkdtemp(prefix="bascule-sim-", dir=where))
        number = self._number(path)
        if not number:
            self._count += 1
            number = self._count
            file = disk.open(path, create=True)
            file.truncate(0)
            file.append(b"%d\n" % number)
            file.sync()
            disk.sync_dir(path.rpartition("/")[0])
        return self._directory / f"{number}.db"

    def _number(self, path: str) -> int:
        """0: there is no database; also where a loss of power has left an empty one."""
        if not self._files.exists(path):
            return 0
        data = self._files.read_bytes(path)
        return int(data) if data.endswith(b"\n") else 0


def _log_end(data: bytes) -> int:
    """The end of the frames that are of the log as it began last: they have the salts of its head.
    Others may follow that are of before."""
    end, step = LOG_HEADER_BYTES, FRAME_HEADER_BYTES + DATABASE_PAGE_BYTES
    while len(data) >= end + step and data[end + 8 : end + 16] == data[16:24]:
        end += step
    return min(end, len(data))


class SimConnection(sqlite3.Connection):
    """A connection of a process. Its statements take virtual time, and wait for the disk."""

    def belong_to(
        self, process: LoopProcess, databases: TableDatabases, prng: Prng, file: str
    ) -> None:
        self._process = process
        self._file = file
        self._databases = databases
        self._prng = prng

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self._enter(sql)
        if not sql.startswith(CHECKPOINT):
            return super().execute(sql, parameters)
        found = super().execute(sql, parameters).fetchone()
        self._databases.note_checkpoint(self._file, found[1])
        return super().execute("select ?, ?, ?", found)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        self._enter(sql)
        return super().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        self._enter(sql_script)
        return super().executescript(sql_script)

    def close(self) -> None:
        self._databases.forget(self)
        super().close()

    def _enter(self, sql: str) -> None:
        """Raises: sqlite3.OperationalError."""
        process, prng = self._process, self._prng
        if process.is_dead:
            raise sqlite3.OperationalError("the process was killed")
        if not process.loop.is_in_thread:
            if not sql.startswith(NOW):
                text = f"{process.name}: {sql[:80]} on the event loop"
                process.loop.report("asyncio never waits for a disk", text, with_stack=True)
            return
        times = process.machine.times
        if prng.happens(PAUSES):
            sleep(prng.below(PAUSE_NS) * times.factor / NS)
        times.wait_answer()
        if not sql.startswith(("select", "pragma", "rollback")) and times.free_bytes < WRITE_BYTES:
            raise sqlite3.OperationalError("database or disk is full")


class SqliteModule:
    """What `tables.table_file` finds under the name `sqlite3`."""

    Connection = sqlite3.Connection
    Error = sqlite3.Error
    OperationalError = sqlite3.OperationalError
    ProgrammingError = sqlite3.ProgrammingError

    @staticmethod
    def connect(path: str, **_: Any) -> SimConnection:
        """Open a database of the process that runs."""
        process = process_now()
        machine = process.machine
        disk = ProcessFiles(process, machine.files, machine.times)
        try:
            found: SimConnection = machine.databases.connect(process, disk, path)
        except OSError as error:
            raise sqlite3.OperationalError(f"unable to open database file: {error}") from error
        return found
