"""How often replicas of this node were healed lately, in one file.

::

    <data>/heals.json    {"format": "bascule-heals", "version": 1,
                          "heals": [[stream id in hex, partition, Unix milliseconds], ...]}
"""

from __future__ import annotations

import json
import logging
from typing import Final

from bascule.host.api import Clock, Files
from bascule.storage.checkpoint import replace_file

log = logging.getLogger("bascule.controller")

FILE_NAME: Final = "heals.json"
PERIOD_MS: Final = 24 * 3_600_000
PARTITION_MAX: Final = 3
"""Of one partition in `PERIOD_MS`. A byte that flips once needs one; a disk that damages the same
log a third time in a day is broken."""
NODE_MAX: Final = 100
"""Of all partitions of a node in `PERIOD_MS`."""
AHEAD_MS_MAX: Final = 3_600_000
"""A heal that is further ahead of the clock is forgotten: the clock was wrong then, and has been
set back, so nobody knows when that was. Less counts, as far as it goes: corrections of a clock that
is kept by NTP are smaller by far."""

Key = tuple[bytes, int]


class HealHistory:
    """Belongs to one thread at a time. Blocks on the disk."""

    def __init__(self, files: Files, data_directory: str, clock: Clock) -> None:
        self._files = files
        self._path = f"{data_directory}/{FILE_NAME}"
        self._clock = clock
        self._heals: list[tuple[Key, int]] | None = None
        """Partition and time, oldest first; None: not loaded."""

    def why_not(self, key: Key) -> str:
        """Why a partition must not be healed now; empty: it may be. Raises: OSError."""
        heals = self._recent()
        count = sum(each == key for each, _ in heals)
        if count >= PARTITION_MAX:
            return f"it was healed {count} times within 24 h"
        if len(heals) >= NODE_MAX:
            return f"replicas of this node were healed {len(heals)} times within 24 h"
        return ""

    def add(self, key: Key) -> None:
        """A partition is about to be healed. Raises: OSError, and it is not noted."""
        heals = [*self._recent(), (key, self._clock.now_ms())]
        content = {
            "format": "bascule-heals",
            "version": 1,
            "heals": [[stream_id.hex(), index, at] for (stream_id, index), at in heals],
        }
        replace_file(self._files, self._path, json.dumps(content).encode() + b"\n")
        self._heals = heals

    def _recent(self) -> list[tuple[Key, int]]:
        """The heals that count now; the others are forgotten. Raises: OSError."""
        if self._heals is None:
            self._heals = self._load()
        now_ms = self._clock.now_ms()
        since, until = now_ms - PERIOD_MS, now_ms + AHEAD_MS_MAX
        self._heals = [each for each in self._heals if since < each[1] <= until]
        return self._heals

    def _load(self) -> list[tuple[Key, int]]:
        """What the file says; a damaged one counts as empty. Raises: OSError."""
        if not self._files.exists(self._path):
            return []
        try:
            content = json.loads(self._files.read_bytes(self._path))
            return [((bytes.fromhex(i), int(n)), int(at)) for i, n, at in content["heals"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("history of healing not read", extra={"error": str(error)})
            return []
