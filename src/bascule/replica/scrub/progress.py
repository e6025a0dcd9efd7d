"""How far the scrubber has read each log, in one file.

::

    <data>/scrub.json    {"format": "bascule-scrub", "version": 1,
                          "logs": {"<stream id in hex>/<partition>":
                                   [known since, finished, segment, offset, position], ...}}

The first two are Unix milliseconds. The last three say where a pass that is under way goes on; -1:
none is.
"""

from __future__ import annotations

import json
import logging
from typing import Final, NamedTuple

from bascule.host.api import Files
from bascule.storage.checkpoint import replace_file
from bascule.storage.partition_log import LogPosition

log = logging.getLogger("bascule.replica")

FILE_NAME: Final = "scrub.json"

Key = tuple[bytes, int]


class ScrubProgress(NamedTuple):
    """How far one log was read."""

    known_ms: int
    """When the scrubber has seen the log first; Unix milliseconds, as in the next one."""
    finished_ms: int = 0
    """When the last pass ended; 0: none has."""
    next: LogPosition | None = None


class ScrubProgressFile:
    """Belongs to one thread. Blocks on the disk."""

    def __init__(self, files: Files, data_directory: str) -> None:
        self._files = files
        self._path = f"{data_directory}/{FILE_NAME}"

    def load(self) -> dict[Key, ScrubProgress]:
        """What the file says; a missing or damaged one says nothing."""
        try:
            if not self._files.exists(self._path):
                return {}
            logs = json.loads(self._files.read_bytes(self._path))["logs"]
            return {_key(name): _decoded(*entry) for name, entry in logs.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("progress of the scrubber not read", extra={"error": str(error)})
            return {}

    def save(self, progress: dict[Key, ScrubProgress]) -> None:
        """Raises: OSError."""
        logs = {f"{i.hex()}/{n}": _encoded(each) for (i, n), each in sorted(progress.items())}
        content = {"format": "bascule-scrub", "version": 1, "logs": logs}
        replace_file(self._files, self._path, json.dumps(content).encode() + b"\n")


def _key(name: str) -> Key:
    stream_id, _, index = name.partition("/")
    return bytes.fromhex(stream_id), int(index)


def _decoded(
    known_ms: int, finished_ms: int, segment: int, offset: int, position: int
) -> ScrubProgress:
    following = None if segment < 0 else LogPosition(int(offset), int(segment), int(position))
    return ScrubProgress(int(known_ms), int(finished_ms), following)


def _encoded(progress: ScrubProgress) -> list[int]:
    offset, segment, position = progress.next or (-1, -1, -1)
    return [progress.known_ms, progress.finished_ms, segment, offset, position]
