"""Ending a running job in order when a signal asks for it.

A signal must not raise in the middle of a call to Java: the answer would stay in the connection and
be taken for that of the next call. So the handler only wakes a thread, which stops the queries and
cancels the jobs by a connection of its own; what the main thread waits for then ends by itself.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS_MAX: Final = 20.0
"""A job that has not ended by then is left behind: Java ends with this process."""
INTERRUPTED: Final = 130


class Stopper:
    """Waits for SIGINT or SIGTERM; the second one, or too long a stop, ends the process."""

    def __init__(self, spark: SparkSession) -> None:
        self.asked = False
        self._spark = spark
        self._wake = threading.Event()
        self._ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """The job has ended; a signal now finds nothing to stop."""
        self._ended.set()
        self._wake.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(INTERRUPTED)
        self.asked = True
        self._wake.set()

    def _run(self) -> None:
        self._wake.wait()
        if self._ended.is_set():
            return
        try:
            for query in self._spark.streams.active:
                query.stop()
            self._spark.sparkContext.cancelAllJobs()
        except (Py4JError, PySparkException, OSError):
            pass  # it ends all the same, below
        if not self._ended.wait(STOP_SECONDS_MAX):
            os._exit(INTERRUPTED)
