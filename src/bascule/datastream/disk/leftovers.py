"""Removes what was received of payloads that no record names."""

from __future__ import annotations

from collections.abc import Callable

from bascule.datastream.limits import DataStreamCounts, DataStreamLimits
from bascule.datastream.session import Key
from bascule.host.api import Clock
from bascule.storage.payloads.payload_log import PayloadLog


class Leftovers:
    """The whole and partial payloads of all logs of a node that no record names."""

    def __init__(
        self,
        clock: Clock,
        limits: DataStreamLimits,
        counts: DataStreamCounts,
        *,
        is_used: Callable[[Key], bool],
    ) -> None:
        """`is_used`: whether a payload is being received. Any thread may ask."""
        self._clock = clock
        self._limits = limits
        self._counts = counts
        self._is_used = is_used
        self._unlinked: dict[Key, int] = {}
        """Since when no record has named a payload."""

    def remove(self, stream_id: bytes, partition: int, store: PayloadLog) -> None:
        """Remove the payloads of a log that nobody receives, that no record names, and that have
        been so for long. Called again and again, by one thread.

        Raises: OSError where some could not be removed, after all others.
        """
        payloads = store.payloads
        now_ns = self._clock.monotonic_ns()
        seen: dict[Key, int] = {}
        failure: OSError | None = None
        for id, discard in (
            *((id, payloads.discard) for id in payloads.open_ids()),
            *((id, payloads.discard_whole) for id in payloads.whole_ids()),
        ):
            key = stream_id, partition, id
            since = now_ns if self._is_used(key) else self._unlinked.get(key, now_ns)
            if now_ns - since <= self._limits.unlinked_ms_max * 1_000_000:
                seen[key] = since
                continue
            try:
                self._counts.unlinked_bytes_removed += discard(id)
                self._counts.unlinked_removed += 1
            except OSError as error:
                failure, seen[key] = error, since
        for key in [key for key in self._unlinked if key[:2] == (stream_id, partition)]:
            del self._unlinked[key]
        self._unlinked.update(seen)
        if failure is not None:
            raise failure
