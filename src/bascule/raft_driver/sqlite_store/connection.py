"""`GuardedConnection`: a connection to SQLite that refuses every call after its first error.

An error may have lost buffered changes or a part of a transaction, so nothing is repeated. Opening
the database again recovers what was committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from bascule.errors import Closed, CorruptData, LogFailed
from bascule.raft_driver.sqlite_store import schema


class GuardedConnection:
    """One connection, for all stores of a database. `path` names the database in errors."""

    __slots__ = ("_closed", "_connection", "_failure", "execute", "path")

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self.path = path
        self.execute = connection.execute
        """Executes a statement; callers use `failing_for_good` around it."""
        self._failure: LogFailed | None = None
        self._closed = False

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @property
    def is_usable(self) -> bool:
        """Whether `check_usable` returns."""
        return self._failure is None and not self._closed

    def check_usable(self) -> None:
        """Raises: LogFailed after a failure, Closed after `close`."""
        if self._failure is not None:
            raise LogFailed(self.path, self._failure.cause)
        if self._closed:
            raise Closed(f"{self.path} is closed")

    def select(self, sql: str, values: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
        """The rows that `sql` selects.

        Raises: CorruptData, LogFailed; every later call then raises LogFailed.
        """
        try:
            yield from self.execute(sql, values)
        except schema.ERRORS as error:
            translated = schema.translated(self.path, error)
            self.fail(str(translated))
            raise translated from error

    def fail(self, cause: str) -> LogFailed:
        """Refuse every call from now on; the error to raise."""
        self._failure = self._failure or LogFailed(self.path, cause)
        return self._failure

    def failing_for_good(self) -> _FailingForGood:
        """A context in which an error makes the connection refuse every later call."""
        return _FailingForGood(self)

    def close(self) -> bool:
        """Close the file. Returns whether it was open."""
        if self._closed:
            return False
        self._closed = True
        try:
            self._connection.close()
        except sqlite3.Error:
            pass  # it checkpoints on close; the next opening writes what this one did not
        return True


class _FailingForGood:
    __slots__ = ("_connection",)

    def __init__(self, connection: GuardedConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        connection = self._connection
        if isinstance(error, schema.ERRORS):
            translated = schema.translated(connection.path, error)
            cause = translated.cause if isinstance(translated, LogFailed) else str(translated)
            raise connection.fail(cause) from error
        if isinstance(error, CorruptData):
            connection.fail(str(error))
        elif error is not None:
            connection.fail(f"{type(error).__name__}: {error}")
