"""Reports of followers that their leader does not answer, as the controller counts them. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

WINDOW_NS: Final = 5_000_000_000
"""A report counts for so long. Followers of a silent leader report every 2 s or more often."""


class SilenceReport(msgspec.Struct, array_like=True, frozen=True):
    """A follower has had no answer of its leader for a while."""

    reporter: int
    reporter_epoch: int
    """Of the reporter's registration."""
    suspect: int
    suspect_epoch: int
    """Of the suspect's registration, as the reporter knows it."""
    reason: str


class SilenceReports:
    """The latest reports. Times are nanoseconds of the controller's monotonic clock."""

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._latest: dict[tuple[int, int], tuple[SilenceReport, int]] = {}
        """Suspect and reporter -> the report and when it came."""

    def add(self, report: SilenceReport, now_ns: int) -> bool:
        """Count a report. Returns whether it is news: the reporter had not reported lately."""
        key = report.suspect, report.reporter
        before = self._latest.get(key)
        self._latest[key] = report, now_ns
        if before is None:
            return True
        return not self._counts(before, report.suspect_epoch, now_ns)

    def reporters(self, suspect: int, epoch: int, now_ns: int) -> dict[int, int]:
        """Who reports the process of `suspect` that registered at `epoch`: id -> epoch."""
        return {
            report.reporter: report.reporter_epoch
            for report, at_ns in self._latest.values()
            if report.suspect == suspect and self._counts((report, at_ns), epoch, now_ns)
        }

    def clear(self) -> None:
        """Forget everything, as a new controller: its clock is another one."""
        self._latest.clear()

    def _counts(self, entry: tuple[SilenceReport, int], epoch: int, now_ns: int) -> bool:
        report, at_ns = entry
        return report.suspect_epoch == epoch and now_ns - at_ns <= self._window_ns
