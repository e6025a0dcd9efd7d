"""The log writer: the one thread that appends to the logs of this node.

`LogWriter.append` implements `publish.unstamped_batch.Append`. Batches are written in the order of
the calls, so one caller's batches stay in order. The sync threads sync them afterwards.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, TypeAlias

from bascule.errors import BasculeError
from bascule.publish.unstamped_batch import Replica, UnstampedBatch
from bascule.replica.log_syncer import LogSyncer
from bascule.replica.partition import Partition

log = logging.getLogger("bascule.replica")

STOPPED_POLL_SECONDS: Final = 1.0
"""How often `wait_written` checks that the thread still runs."""


_Append: TypeAlias = tuple[Partition, Sequence[UnstampedBatch], Callable[[], None] | None]
"""Replica, batches, `on_done`; a tuple, since there is one for every batch."""


@dataclass(slots=True)
class _Roll:
    replica: Partition


class LogWriter:
    """The thread that appends to all logs of this node, and its queue."""

    def __init__(self, syncer: LogSyncer) -> None:
        self._syncer = syncer
        self._send: Callable[[bytes], None] | None = None
        self._queue: SimpleQueue[_Append | _Roll | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def start(self, send: Callable[[bytes], None]) -> None:
        """`send` takes NATS operations with acks; the log writer thread calls it."""
        self._send = send
        self._thread.start()

    def append(
        self,
        replica: Replica,
        batches: Sequence[UnstampedBatch],
        on_done: Callable[[], None] | None = None,
    ) -> None:
        """See `publish.unstamped_batch.Append`."""
        assert isinstance(replica, Partition)
        self._queue.put((replica, batches, on_done))

    def roll(self, replica: Partition) -> None:
        """End the replica's active segment after everything queued before the call."""
        self._queue.put(_Roll(replica))

    def wait_written(self) -> None:
        """Return once everything queued before the call is written or refused.

        Also returns once the thread has stopped: it will write nothing more.
        """
        done = threading.Event()
        self._queue.put(done)
        while not done.wait(STOPPED_POLL_SECONDS) and self._thread.is_alive():
            pass

    def stop(self) -> None:
        """Return once everything queued before the call is written or refused; idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while True:
            request = self._queue.get()
            if request is None:
                return
            if isinstance(request, tuple):
                self._write(*request)
            elif isinstance(request, threading.Event):
                request.set()
            else:
                self._roll_segment(request.replica)

    def _write(
        self,
        replica: Partition,
        batches: Sequence[UnstampedBatch],
        on_done: Callable[[], None] | None,
    ) -> None:
        for batch in batches:
            try:
                if operations := replica.append(batch):
                    self._send_acks(operations)
                if replica.needs_sync:
                    self._syncer.request(replica)
            except Exception:  # boundary: a bug stops one partition, not the thread
                log.exception("log writer failed")
                self._send_acks(replica.fail("internal error while appending; see the node's log"))
        if on_done is not None:
            on_done()

    def _send_acks(self, operations: bytes) -> None:
        if operations:
            assert self._send is not None
            self._send(operations)

    def _roll_segment(self, replica: Partition) -> None:
        if replica.log is None or replica.failure is not None or replica.deleted:
            return
        try:
            replica.log.roll()
        except (OSError, BasculeError) as error:
            extra = {
                "stream": replica.definition.name,
                "partition": replica.index,
                "error": str(error),
            }
            log.warning("segment not ended", extra=extra)
        else:
            self._syncer.request(replica)
