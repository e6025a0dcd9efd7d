"""The threads that follow partitions, and the batches that they hand to the caller's thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from bascule.client.batch_reader import BatchReader
from bascule.errors import BasculeError, Broken, Closed

if TYPE_CHECKING:
    import pyarrow as pa

WAITING_MAX: Final = 2
"""Batches that wait for the caller. Each thread holds another one."""


class Arrivals:
    """Hands the batches of the partitions' threads to the caller's thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._error: BaseException | None = None

    def start_thread(self, partition: int, reader: BatchReader) -> None:
        # A daemon: a script that leaves its reader open can end.
        threading.Thread(
            target=self._read, args=(reader,), name=f"bascule-follow-{partition}", daemon=True
        ).start()

    def _read(self, reader: BatchReader) -> None:
        error: BaseException = Broken("the thread of a partition ended")
        try:
            for batch in reader:
                if not self._put(batch):
                    return
                del batch
        except (BasculeError, OSError, ValueError) as raised:
            error = raised
        finally:
            self._fail(error)

    def _put(self, batch: pa.RecordBatch) -> bool:
        """Wait for room; False if the read has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._batches) < WAITING_MAX)
            if self._error is None:
                self._batches.append(batch)
                self._changed.notify_all()
            return self._error is None

    def take(self, wait_s: float) -> pa.RecordBatch | None:
        """The next batch; None after `wait_s`. Raises: the first error of a thread, Closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._batches, wait_s)
            if self._batches and not isinstance(self._error, Closed):
                self._changed.notify_all()
                return self._batches.popleft()
            if self._error is not None:
                raise self._error
            return None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def close(self) -> None:
        self._fail(Closed("the read was closed"))
