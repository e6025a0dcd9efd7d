"""The log writer: appends to the logs of this node, on one thread at a time.

`LogWriter.append` implements `publish.unstamped_batch.Append`. Batches are written in the order of
the calls, so one caller's batches stay in order. The sync threads sync them afterwards.

What is called here is done by the log writer thread, in turn. While that has nothing to do, another
thread may take a turn, see `run`. So "on the log writer thread" means: by whoever has the turn.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from bascule.errors import BasculeError, Closed
from bascule.model import PartitionState
from bascule.publish.unstamped_batch import Replica, UnstampedBatch
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.partition import Partition
from bascule.replica.syncing.log_syncer import LogSyncer

log = logging.getLogger("bascule.replica")

STOPPED_POLL_SECONDS: Final = 1.0
"""How often `wait_written` checks that the thread still runs."""


_Append: TypeAlias = tuple[Partition, Sequence[UnstampedBatch], Callable[[], None] | None]
"""Replica, batches, `on_done`; a tuple, since there is one for every batch."""
T = TypeVar("T")


class LogWriter:
    """The thread that appends to all logs of this node, and its queue."""

    def __init__(self, syncer: LogSyncer, reserve: DiskReserve) -> None:
        """While `reserve` is given back, appends are refused: they would use it up."""
        self._syncer = syncer
        self._reserve = reserve
        self._send: Callable[[bytes], None] | None = None
        self._requests: deque[_Append | Callable[[], object] | None] = deque()
        """In order; None ends the thread."""
        self._queued: SimpleQueue[None] = SimpleQueue()
        """An item for each request, which the thread waits for."""
        self._turn = threading.Lock()
        """Held by who takes a request and carries it out."""
        self._has_ended = False
        """Whether the thread has."""
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._has_stopped = False
        self._refusing = threading.Lock()
        """Held while what came too late is refused: by one thread at a time, as if by this one."""
        self._began_ns = 0
        """When what is done now began, on the monotonic clock; 0: nothing is."""

    @property
    def is_disk_full(self) -> bool:
        """Whether appends are refused, so that they do not use up the disk reserve."""
        return self._reserve.is_released

    def stuck_ns(self) -> int:
        """For how long one request has been carried out; any thread may call it."""
        began_ns = self._began_ns
        return self._syncer.clock.monotonic_ns() - began_ns if began_ns else 0

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
        self._put((replica, batches, on_done))

    def roll(self, replica: Partition) -> None:
        """End the replica's active segment after everything queued before the call."""
        self._put(partial(self._roll_segment, replica))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Call a function on the thread, after everything queued before. It may block on the disk.

        The callbacks of the future run on the thread, too. Once the thread has stopped, the future
        has the error Closed.
        """
        done: Future[T] = Future()
        self._put(_Call(function, done))
        return done

    def run(self, function: Callable[[], object]) -> None:
        """As `call`, for who does not wait for the result.

        If nothing is queued and nothing is done, the calling thread does it, and gets what it
        raises: that saves a switch of threads, which on a busy machine waits for a processor.
        """
        if self._turn.acquire(blocking=False):
            try:
                if not self._requests and not self._has_ended:
                    self._carry_out(function)
                    return
            finally:
                self._turn.release()
        self.call(function)

    def set_role(
        self, replica: Partition, state: PartitionState, node_id: int, *, lag_ns_max: int
    ) -> Future[None]:
        """Have the replica lead or follow, after everything queued before; see its `set_role`."""

        def set_role() -> None:
            self._send_acks(replica.set_role(state, node_id, lag_ns_max=lag_ns_max))
            if replica.needs_sync:
                self._syncer.request(replica)

        return self.call(set_role)

    def wait_written(self) -> None:
        """Return once everything queued before the call is written or refused.

        Also returns once the thread has stopped: it will write nothing more.
        """
        done = threading.Event()
        self._enqueue(done.set)
        while not done.wait(STOPPED_POLL_SECONDS) and self._thread.is_alive():
            pass

    def stop(self) -> None:
        """Return once everything queued before the call is written or refused; idempotent.

        What comes later is refused at once.
        """
        if self._thread.is_alive():
            self._enqueue(None)
            self._thread.join()
        self._has_stopped = True
        self._refuse_queued()

    def _put(self, request: _Append | Callable[[], object]) -> None:
        self._enqueue(request)
        if self._has_stopped:
            self._refuse_queued()

    def _enqueue(self, request: _Append | Callable[[], object] | None) -> None:
        self._requests.append(request)
        self._queued.put(None)

    def _refuse_queued(self) -> None:
        """Tell those who wait that the thread has ended. Any thread may do so."""
        while True:
            try:
                request = self._requests.popleft()
            except IndexError:
                return
            if isinstance(request, tuple):
                replica, batches, on_done = request
                for batch in batches:
                    with self._refusing:
                        replies = replica.refuse(batch, "the node stops")
                    self._send_acks(replies)
                if on_done is not None:
                    on_done()
            elif isinstance(request, _Call):
                request.refuse()

    def _run(self) -> None:
        while True:
            self._queued.get()
            # Taken within the turn: else `run` would find nothing queued, and be too early.
            with self._turn:
                request = self._requests.popleft()
                if request is None:
                    self._has_ended = True
                    return
                self._carry_out(request)

    def _carry_out(self, request: _Append | Callable[[], object]) -> None:
        """The turn is held."""
        self._began_ns = self._syncer.clock.monotonic_ns()
        try:
            if isinstance(request, tuple):
                self._write(*request)
            else:
                request()
        finally:
            self._began_ns = 0

    def _write(
        self,
        replica: Partition,
        batches: Sequence[UnstampedBatch],
        on_done: Callable[[], None] | None,
    ) -> None:
        for batch in batches:
            try:
                if self.is_disk_full:
                    self._send_acks(replica.refuse(batch, "the disk is full"))
                elif operations := replica.append(batch):
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


class _Call:
    """A function for the thread, and the future of whoever waits for it."""

    __slots__ = ("_done", "_function")

    def __init__(self, function: Callable[[], Any], done: Future[Any]) -> None:
        self._function, self._done = function, done

    def __call__(self) -> None:
        """Call it. What it raises is for whoever waits."""
        if not self._done.set_running_or_notify_cancel():
            return  # a future that was cancelled takes no result
        try:
            result = self._function()
        except Exception as error:  # boundary: the caller is told, and the thread goes on
            self._done.set_exception(error)
        else:
            self._done.set_result(result)

    def refuse(self) -> None:
        """Do not call it: the thread has ended."""
        if self._done.set_running_or_notify_cancel():
            self._done.set_exception(Closed("the log writer has stopped"))
