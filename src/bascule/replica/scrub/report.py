"""What the scrubber has found in one log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bascule.storage.scrub import DigestedRanges
from bascule.storage.scrub.latest import LatestValues


class ScrubState(StrEnum):
    """How far a pass over a log is."""

    WAITING = "waiting"
    RUNNING = "running"
    OK = "ok"
    CORRUPT = "corrupt"
    FAILED = "failed"
    """The log cannot be read, or was closed."""


@dataclass(slots=True)
class ScrubReport:
    """One pass over a log, which may be under way."""

    id: str
    """That of the request; empty for a pass that nobody has requested."""
    state: ScrubState = ScrubState.WAITING
    records: int = 0
    bytes: int = 0
    bytes_total: int = 0
    """Of the log when the pass began."""
    busy_ns: int = 0
    """Time spent on reading, without pauses."""
    found: str = ""
    """The damage, or why the log was not read to its end."""

    @property
    def is_done(self) -> bool:
        return self.state not in (ScrubState.WAITING, ScrubState.RUNNING)


@dataclass(slots=True)
class ScrubbedLog:
    """What is known of one log of this node."""

    report: ScrubReport | None = None
    """The latest pass."""
    digests: DigestedRanges | None = None
    """Of the latest pass that read all of the log in this process."""
    latest: LatestValues | None = None
    """Of the latest pass, if it was requested, and the log may be compacted."""
    finished_ms: int = 0
    """When the last pass ended, also in an earlier process; Unix milliseconds, 0: never."""
