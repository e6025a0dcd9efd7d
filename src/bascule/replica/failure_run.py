"""Counts the failures in a row of one operation, so that only the first and the end are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bascule.errors import BasculeError, CorruptData, reason_without_paths

log = logging.getLogger("bascule.replica")


class FailureRun:
    """The failures of an operation that is repeated, such as the appends of one partition.

    A full disk fails thousands of appends a second. A log line for each would hide the rest of the
    log, and fill the disk that the log is on.
    """

    __slots__ = ("count", "on_damage", "reason", "records")

    def __init__(self) -> None:
        self.count = 0
        """Failures since the last success."""
        self.records = 0
        """Records that were not stored because of them."""
        self.reason = ""
        """Of the last failure, without paths."""
        self.on_damage: Callable[[CorruptData], None] = lambda _: None
        """Called with each failure that says that data is damaged."""

    def on_failure(self, error: Exception, *, records: int = 0) -> bool:
        """Count a failure; return whether to log it: the first one, or one with a new reason."""
        if isinstance(error, CorruptData):
            self.on_damage(error)
        reason = reason_without_paths(error)
        is_new = self.count == 0 or reason != self.reason
        self.count += 1
        self.records += records
        self.reason = reason
        return is_new

    def end(self) -> None:
        """Begin anew, after a success."""
        self.count = self.records = 0
        self.reason = ""


class AppendFailures:
    """The failed appends of one partition in a row, logged."""

    __slots__ = ("_partition", "_run", "_stream")

    def __init__(self, stream: str, partition: int) -> None:
        self._stream = stream
        self._partition = partition
        self._run = FailureRun()

    @property
    def count(self) -> int:
        """Failures since the last success."""
        return self._run.count

    def on_failure(self, error: OSError | BasculeError, records: int) -> None:
        """Note that `records` were not stored."""
        if self._run.on_failure(error, records=records):
            extra = {"stream": self._stream, "partition": self._partition, "error": str(error)}
            log.error("append failed", extra=extra)

    def end(self) -> None:
        """Note a success after failures."""
        run = self._run
        log.info(
            "append works again",
            extra={
                "stream": self._stream,
                "partition": self._partition,
                "failures": run.count,
                "records_not_stored": run.records,
                "reason": run.reason,
            },
        )
        run.end()
