"""Stops a running job in order after a signal.

The signal handler must not raise inside a call to Java: the reply would stay in the connection and
the next call would read it. So the handler only wakes a thread. The thread stops the queries and
cancels the jobs over its own connection, and the main thread's call then returns.
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
"""A job that runs longer is abandoned. Java ends with this process."""
INTERRUPTED: Final = 130


class Interruption:
    """Waits for SIGINT or SIGTERM. A second signal, or a stop that takes too long, ends the
    process."""

    def __init__(self, spark: SparkSession) -> None:
        self.asked = False
        self._spark = spark
        self._wake = threading.Event()
        self._ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """The job has ended. A later signal stops nothing."""
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
            pass  # the deadline below ends the process
        if not self._ended.wait(STOP_SECONDS_MAX):
            os._exit(INTERRUPTED)
