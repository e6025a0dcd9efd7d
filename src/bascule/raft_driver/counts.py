"""What a driver counts."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from bascule.raft_driver.sqlite_store import DatabaseStatistics
from bascule.raft_driver.transport import TransportStatistics
from bascule.raft_driver.write_thread import WriteStatistics


class DriverStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver has done since it began."""

    groups: int
    looks: int
    """How often the hub was asked what is to be done."""
    ticks: int
    entries_applied: int
    answers: int
    requests_waiting: int
    store: WriteStatistics
    database: DatabaseStatistics | None
    """Of the directory's database, where there is one. Its syncs are all there were, those of
    checkpoints too."""
    transport: TransportStatistics


@dataclass(slots=True)
class Counts:
    """The driver's own, as they grow."""

    looks: int = 0
    ticks: int = 0
    entries_applied: int = 0
    answers: int = 0
