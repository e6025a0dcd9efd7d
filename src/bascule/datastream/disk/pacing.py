"""How fast payloads go to the disk beside logs that are synced.

A sync of a log waits for what others have given to the disk. So its duration says how busy the disk
is, as the delay of packets does for LEDBAT (RFC 6817) with a network: the shortest one of the last
minute is what the disk needs alone, and what is longer than that is mostly due to payloads. Beyond
a target the rate of payloads is cut by a factor, else it grows by a constant.
"""

from __future__ import annotations

from collections import deque
from typing import Final

MIB: Final = 1 << 20
SECOND_NS: Final = 1_000_000_000
TARGET_NS: Final = 4_000_000
"""What a sync may take more than the shortest one, or as long as that again if this is more."""
DELAYED_PART: Final = 100
"""One delayed sync in so many is due to the disk itself."""
WINDOW_NS: Final = 250_000_000
"""The rate changes once in this time at most: a change shows in the next window,"""
QUIET_NS: Final = SECOND_NS
"""and here at the latest."""
SYNCS_MIN: Final = 8
"""In a second. With fewer, and with those of payloads' own records, nobody is to be spared."""
DECREASE: Final = 0.7
INCREASE: Final = 8 * MIB
"""Bytes a second, each second."""
START: Final = 2
"""The first rate over the least one,"""
GROWTH: Final = 1.5
"""and by what it grows in a window until the first delay."""
BASELINE_PART_NS: Final = 10 * SECOND_NS
BASELINE_PARTS: Final = 6
STEP_NS: Final = 10_000_000
"""A step has what the rate gives in this time, between these bounds."""
STEP_BYTES: Final = 2 << 20
"""Without a limit."""
STEP_BYTES_MIN: Final = 256 << 10
STEPS_MIN: Final = 4
"""The smallest steps in a second, at the least rate: with fewer, senders would take the disk for
one that hangs."""
UNWRITTEN_NS: Final = SECOND_NS
"""Of the rate: what all payloads may have in memory only, between these bounds."""
UNWRITTEN_BYTES_MAX: Final = 128 << 20
"""Without a limit."""
UNWRITTEN_BYTES_MIN: Final = 16 << 20


class Baseline:
    """The shortest sync of the last minute, to 10 s."""

    def __init__(self) -> None:
        self._parts: deque[tuple[int, int]] = deque(maxlen=BASELINE_PARTS)
        """The number of 10 s since the clock's start, and the shortest sync in them, ns."""

    def on_sync(self, now_ns: int, took_ns: int) -> int:
        """A sync took so long; the shortest one, ns."""
        parts = self._parts
        part = now_ns // BASELINE_PART_NS
        if parts:
            part = max(part, parts[-1][0])  # threads may tell of their syncs in another order
        if parts and parts[-1][0] == part:
            parts[-1] = part, min(parts[-1][1], took_ns)
        else:
            parts.append((part, took_ns))
        while parts[0][0] <= part - BASELINE_PARTS:
            parts.popleft()
        return min(shortest for _, shortest in parts)


class Pacing:
    """The rate at which the payloads of a node go to its disk. Times are monotonic, in ns."""

    def __init__(self, *, floor: int) -> None:
        """`floor` is the least rate, bytes a second, one of `STEPS_MIN` at least; 0: there is never
        a limit."""
        self._floor = max(floor, STEPS_MIN * STEP_BYTES_MIN) if floor else 0
        self._baseline = Baseline()
        self._rate = 0.0
        """The limit while logs are synced, bytes a second."""
        self._is_shared = False
        """Whether logs were synced in the last window."""
        self._is_searching = False
        """Whether no sync was delayed since then."""
        self._free_ns = 0
        """When the next step may begin."""
        self._began_ns = 0
        self._syncs = self._delayed = self._payloads = self._written = 0
        """In this window: syncs of logs, those that took too long, payloads that have ended, and
        bytes of payloads."""
        self._unsynced = 0
        """Payloads of the window before whose records were not synced in it."""

    @property
    def limit(self) -> int:
        """Bytes a second; 0: none."""
        return int(self._rate) if self._is_shared else 0

    @property
    def step_bytes(self) -> int:
        """What one step is to write."""
        return self._given_in(STEP_NS, STEP_BYTES_MIN, STEP_BYTES)

    @property
    def unwritten_max(self) -> int:
        """What all payloads may have in memory only, bytes."""
        return self._given_in(UNWRITTEN_NS, UNWRITTEN_BYTES_MIN, UNWRITTEN_BYTES_MAX)

    def _given_in(self, time_ns: int, least: int, most: int) -> int:
        """Bytes that the limit gives in a time, between two bounds; without a limit the upper."""
        limit = self.limit
        return max(min(limit * time_ns // SECOND_NS, most), least) if limit else most

    def on_sync(self, now_ns: int, took_ns: int) -> None:
        """A sync of a log has ended, and had something to write."""
        self.on_time(now_ns)
        shortest = self._baseline.on_sync(now_ns, took_ns)
        self._syncs += 1
        self._delayed += took_ns > shortest + max(TARGET_NS, shortest)
        if not self._is_shared and self._others >= SYNCS_MIN:
            self._begin(now_ns)

    @property
    def _others(self) -> int:
        """Syncs in this window that were not those of payloads' own records."""
        return self._syncs - self._payloads - self._unsynced if self._floor else 0

    def on_payload(self) -> None:
        """A payload has ended: a sync is that of its record."""
        self._payloads += 1

    def wait_ns(self, now_ns: int) -> int:
        """How long the next step has to wait; 0 or less: not at all."""
        self.on_time(now_ns)
        return self._free_ns - now_ns if self.limit else 0

    def on_step(self, now_ns: int, size: int) -> None:
        """A step of so many bytes begins."""
        self._written += size
        if limit := self.limit:
            # A step that began late does not delay all that follow.
            self._free_ns = max(self._free_ns, now_ns - STEP_NS) + size * SECOND_NS // limit

    def on_time(self, now_ns: int) -> None:
        """It is so late: change the rate where a window has ended."""
        took_ns = now_ns - self._began_ns
        if took_ns < (WINDOW_NS if self._others >= SYNCS_MIN else QUIET_NS):
            return
        # Where nothing was to be done for long, those syncs were long ago.
        if self._others < SYNCS_MIN or took_ns >= 2 * QUIET_NS:
            self._is_shared = False
        elif self._is_shared and self._written:
            before = self._rate
            self._adapt(took_ns)
            if self._free_ns > now_ns:  # a step that waits has the new rate, too
                self._free_ns = now_ns + int((self._free_ns - now_ns) * before / self._rate)
        self._next_window(now_ns)

    def _begin(self, now_ns: int) -> None:
        """Others sync from now on: with a low rate, which grows fast until it is too high."""
        self._is_shared = self._is_searching = True
        self._rate = self._floor * START
        self._next_window(now_ns)

    def _adapt(self, took_ns: int) -> None:
        written = self._written * SECOND_NS / took_ns
        if self._delayed * DELAYED_PART > self._syncs:
            self._is_searching = False
            self._rate = max(min(self._rate, written) * DECREASE, self._floor)
        elif written * 2 >= self._rate:  # else the limit was not reached, nor one above it
            grown = self._rate * GROWTH if self._is_searching else 0
            self._rate = max(self._rate + INCREASE * took_ns / SECOND_NS, grown)

    def _next_window(self, now_ns: int) -> None:
        self._began_ns = now_ns
        owed = self._unsynced + self._payloads - self._syncs
        self._unsynced = min(max(owed, 0), self._payloads)
        self._syncs = self._delayed = self._payloads = self._written = 0
