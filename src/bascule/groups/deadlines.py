"""One timer for all groups: calls each when its time has come."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

STALE_ENTRIES_MAX: Final = 1_000
"""Entries for things that are gone or due earlier, beyond one of each that is there."""
STALL_MS: Final = 1_000
"""The timer is later than this only where the process did not run: it was stopped, or suspended."""


class Due(Protocol):
    """Something with a deadline."""

    due_ms: int | None
    """Of its earliest entry; `Deadlines` sets it."""


D = TypeVar("D", bound=Due)


class Deadlines(Generic[D]):
    """Used on the event loop. Times are milliseconds of its clock, which does not go back.

    The clock leaves out the time in which the process did not run. What others have sent meanwhile
    is not read yet when it goes on, so nobody may be taken for dead because of that time.
    """

    def __init__(
        self,
        on_due: Callable[[D, int], None],
        is_present: Callable[[D], bool],
        count: Callable[[], int],
    ) -> None:
        """`on_due` is called with the time, once for each deadline that was noted, or later ones.

        `is_present` says whether somebody is still there, `count` how many are.
        """
        self._on_due = on_due
        self._is_there = is_present
        self._count = count
        self._entries: list[tuple[int, int, D]] = []
        """Heap of due time, number, who. An entry may be earlier than the deadline."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left_out_ms = 0
        """By how much the clock is behind that of the loop."""
        self._last_ms = 0
        """What the clock said last."""

    def __len__(self) -> int:
        return len(self._entries)

    def now_ms(self) -> int:
        now_ms = int(self._find_loop().time() * 1000) - self._left_out_ms
        if self._entries and now_ms - self._entries[0][0] > STALL_MS:
            # The clock goes on before the deadline: what was sent meanwhile is read until then.
            resumed_ms = max(self._last_ms, self._entries[0][0] - STALL_MS)
            self._left_out_ms += now_ms - resumed_ms
            now_ms = resumed_ms
            self._set_timer()
        self._last_ms = now_ms
        return now_ms

    def note(self, who: D, deadline_ms: int | None) -> None:
        """Note a deadline, unless there is an earlier entry for `who` already."""
        if deadline_ms is None or (who.due_ms is not None and who.due_ms <= deadline_ms):
            return
        who.due_ms = deadline_ms
        heapq.heappush(self._entries, (deadline_ms, next(self._numbers), who))
        if len(self._entries) > 2 * self._count() + STALE_ENTRIES_MAX:
            self._entries = [entry for entry in self._entries if self._is_present(entry)]
            heapq.heapify(self._entries)
        if self._entries[0][2] is who:
            self._set_timer()

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; to ask asyncio costs a system call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def clear(self) -> None:
        """Call nobody any more."""
        self._entries.clear()
        self._set_timer()

    def _is_present(self, entry: tuple[int, int, D]) -> bool:
        due_ms, _, who = entry
        return who.due_ms == due_ms and self._is_there(who)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._entries:
            # One millisecond later: the times of the groups are rounded down.
            at = (self._entries[0][0] + 1 + self._left_out_ms) / 1000
            self._timer = self._find_loop().call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        now_ms = self.now_ms()
        while self._entries and self._entries[0][0] <= now_ms:
            entry = heapq.heappop(self._entries)
            if self._is_present(entry):
                entry[2].due_ms = None
                self._on_due(entry[2], now_ms)
        self._set_timer()
