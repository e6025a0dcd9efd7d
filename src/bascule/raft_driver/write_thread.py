"""The thread that waits for the disk, for all Raft groups of a node.

It takes all queued writes, carries them out in order, flushes once, and reports all of them to the
event loop in one call. Writes that arrive during a flush form the next round (group commit): the
higher the load, the fewer syncs per entry.

The first failure of a store is final, and everything behind it in the queue fails too. The stores
of a node share a disk, usually a file, so a failed flush of one may have lost the buffered calls of
another. A bug ends the thread with its exception; another one then refuses what still comes.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, TypeAlias, TypeVar

import msgspec

from bascule.errors import BasculeError, Broken, Closed
from bascule.host.api import Clock
from bascule.raft.effects import Write
from bascule.raft.store import RaftStore, persist_write

log = logging.getLogger("bascule.raft_driver")

T = TypeVar("T")

STORE_ERRORS: Final = (OSError, BasculeError, sqlite3.Error, MemoryError)
"""The errors that a store may raise; any other one is a bug and is raised again."""

WriteJob: TypeAlias = tuple[int, RaftStore, Write]
"""(group, its store, the write)."""
StoreTask: TypeAlias = Callable[[], None]


class WriteStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the thread has done since its start."""

    writes: int
    entries: int
    rounds: int
    syncs: int
    """Rounds with a flush."""
    round_writes_max: int
    queued: int
    """Batches in the queue."""
    busy_ns: int
    """Time spent on writes and flushes."""
    sync_ns: int
    """Time spent on flushes alone."""
    failure: str


class WriteThread:
    """Carries out the writes of all groups in the order in which they were submitted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        on_done: Callable[[Sequence[WriteJob]], None],
        on_failed: Callable[[str], None],
        before_write: Callable[[], None] | None = None,
        name: str = "raft-store",
    ) -> None:
        """`on_done` and `on_failed` are called on `loop`. `on_failed` gets the cause and is called
        once at most; nothing is called after it. `before_write` is called on the thread before each
        round of writes: it may make room on the disk. It may raise what a store raises."""
        self._loop = loop
        self._clock = clock
        self._on_done = on_done
        self._on_failed = on_failed
        self._before_write = before_write
        self._queue: SimpleQueue[Sequence[WriteJob] | StoreTask | None] = SimpleQueue()
        self._name = name
        self._thread = self._new_thread()
        self._is_stopping = False
        """Whether nothing more is taken; on the event loop."""
        self._ended = False
        self._failure = ""
        self._writes = 0
        self._entries = 0
        self._rounds = 0
        self._syncs = 0
        self._round_writes_max = 0
        self._busy_ns = 0
        self._sync_ns = 0

    def _new_thread(self, after: threading.Thread | None = None) -> threading.Thread:
        """A thread that begins when `after` has ended."""
        return threading.Thread(target=self._run, args=(after,), name=self._name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, jobs: Sequence[WriteJob]) -> None:
        """Queue writes. `on_done` is called when they and all earlier ones are done."""
        self._queue.put(jobs)

    def run(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call `function` on the thread, after everything queued before. The future gets its result
        or its error.

        The future raises Broken if the thread has failed before, and Closed after `stop`.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_stopping:
            future.set_exception(Closed("the store is closed"))
            return future

        def task() -> None:
            if self._failure:
                self._post(_fail, future, Broken(f"the store has failed: {self._failure}"))
                return
            try:
                result = function()
            except STORE_ERRORS as error:
                self._post(_fail, future, error)
            except BaseException as error:
                self._fail(0, error)
                self._post(_fail, future, Broken(f"the store has failed: {self._failure}"))
                raise
            else:
                self._post(_resolve, future, result)

        self._queue.put(task)
        return future

    async def stop(self) -> None:
        """Return when everything queued is done and the thread has ended."""
        self._is_stopping = True
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._join)

    def _join(self) -> None:
        ended = None
        while ended is not self._thread:
            ended = self._thread
            ended.join()

    def statistics(self) -> WriteStatistics:
        return WriteStatistics(
            writes=self._writes,
            entries=self._entries,
            rounds=self._rounds,
            syncs=self._syncs,
            round_writes_max=self._round_writes_max,
            queued=self._queue.qsize(),
            busy_ns=self._busy_ns,
            sync_ns=self._sync_ns,
            failure=self._failure,
        )

    # -- on the thread -------------------------------------------------------------------------

    def _run(self, after: threading.Thread | None) -> None:
        if after is not None:
            after.join()
        try:
            self._serve()
        except BaseException:
            successor = self._new_thread(after=threading.current_thread())
            successor.start()
            self._thread = successor
            raise

    def _serve(self) -> None:
        queue = self._queue
        while not self._ended:
            jobs: list[WriteJob] = []
            taken = queue.get()
            while True:
                if taken is None:
                    self._ended = True
                    break
                if callable(taken):
                    # Earlier writes are done first, so that the function sees them.
                    done, jobs = jobs, []
                    try:
                        self._round(done)
                    finally:
                        taken()
                else:
                    jobs += taken
                if queue.empty():
                    break
                taken = queue.get()
            self._round(jobs)

    def _round(self, jobs: Sequence[WriteJob]) -> None:
        if not jobs or self._failure:
            return
        began = self._clock.monotonic_ns()
        group = 0
        try:
            if self._before_write is not None:
                self._before_write()
            owed: dict[int, RaftStore] = {}
            for group, store, write in jobs:  # noqa: B007 - an error names the group
                persist_write(store, write)
                self._entries += len(write.entries)
                if write.sync:
                    owed[id(store)] = store
            if owed:
                synced_from = self._clock.monotonic_ns()
                for store in owed.values():
                    store.flush()
                self._sync_ns += self._clock.monotonic_ns() - synced_from
                self._syncs += 1
        except STORE_ERRORS as error:
            self._fail(group, error)
            return
        except BaseException as error:
            self._fail(group, error)
            raise
        self._writes += len(jobs)
        self._rounds += 1
        self._round_writes_max = max(self._round_writes_max, len(jobs))
        self._busy_ns += self._clock.monotonic_ns() - began
        self._post(self._on_done, jobs)

    def _fail(self, group: int, error: BaseException) -> None:
        self._failure = f"{type(error).__name__}: {error}"
        log.error(
            "raft store failed; node stopped",
            extra={"group": group, "error": self._failure},
        )
        self._post(self._on_failed, self._failure)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop was closed without `stop`.
            log.debug("raft event loop closed before the store stopped")


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
