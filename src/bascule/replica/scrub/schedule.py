"""When each log is due.

Each log has a point in each period, which its stream id and partition determine: so all replicas
of a partition are read at about the same time, by which they can be compared, and the logs of a
node are spread over the period. A log is due at the first point after it was read, or first seen.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import Final

from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.scrub.progress import Key, ScrubProgress

LOOKS_MAX: Final = 500
"""Logs that one look takes, in less than a millisecond."""


def key_of(partition: Partition) -> Key:
    return partition.definition.id, partition.index


class ScrubSchedule:
    """The logs of a node, and which are due. A look costs the same with any number of logs."""

    def __init__(self, partitions: Partitions, period_ms: int) -> None:
        """`period_ms` 0: no log is ever due."""
        self._partitions = partitions
        self._period_ms = period_ms
        self.progress: dict[Key, ScrubProgress] = {}
        """How far each log of the node was read. Written by the event loop and the scrubber's
        thread, each while the other does not."""
        self._unseen: deque[Partition] = deque()
        """Logs that this round has not looked at."""
        self._due: deque[Partition] = deque()
        self.rounds = 0
        """Begun so far; each has forgotten the logs that are gone."""
        self._found_due = False
        self._last_finished_ms = 0
        """Both of what this round has seen."""
        self.last_pass_ms = 0
        """When a log was read last and no other one was due; Unix milliseconds, 0: not yet."""

    def next_due(self, now_ms: int) -> Partition | None:
        """The next log to read. Looks at `LOOKS_MAX` logs, if none is known to be due."""
        if not self._due:
            self._look(now_ms)
        while self._due:
            partition = self._due.popleft()
            if _is_readable(partition) and self._is_due(partition, now_ms):
                return partition
        return None

    def _look(self, now_ms: int) -> None:
        if not self._unseen:
            self._begin_round(now_ms)
        for _ in range(min(LOOKS_MAX, len(self._unseen))):
            partition = self._unseen.popleft()
            if not _is_readable(partition):
                continue
            known = self.progress.setdefault(key_of(partition), ScrubProgress(now_ms))
            self._last_finished_ms = max(self._last_finished_ms, known.finished_ms)
            if self._is_due(partition, now_ms):
                self._found_due = True
                self._due.append(partition)

    def _begin_round(self, now_ms: int) -> None:
        """Forget logs that are gone, and begin to look at all others."""
        if self._last_finished_ms and not self._found_due:
            self.last_pass_ms = self._last_finished_ms
        self.rounds += 1
        self._found_due, self._last_finished_ms = False, 0
        self._unseen.extend(p for ps in self._partitions.streams().values() for p in ps)
        present = set(map(key_of, self._unseen))
        for key in self.progress.keys() - present:
            del self.progress[key]

    def _is_due(self, partition: Partition, now_ms: int) -> bool:
        if not self._period_ms:
            return False
        stream_id, index = key = key_of(partition)
        known = self.progress.get(key, ScrubProgress(now_ms))
        point = zlib.crc32(stream_id, index) % self._period_ms
        latest_ms = now_ms - (now_ms - point) % self._period_ms
        seen_ms = max(known.known_ms, known.finished_ms)
        # By a clock that has been set back since then.
        is_ahead = seen_ms > now_ms + self._period_ms
        return seen_ms < latest_ms or is_ahead


def _is_readable(partition: Partition) -> bool:
    return partition.log is not None and partition.failure is None and not partition.deleted
