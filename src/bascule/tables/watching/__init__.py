"""Watchers of tables: they are told what a replica has applied.

::

    watches     `TableWatches`: hands the applied rows to the watchers that want them
    watcher     `Watcher`: the bounded queue of one watcher
    steps       what a watcher sees, and where it begins
"""

from bascule.tables.watching.steps import (
    Begin,
    Caught,
    Change,
    Restarted,
    Start,
    WatchPosition,
    WatchStep,
)
from bascule.tables.watching.watches import ChangesPage, TableWatches, WatchCounts

__all__ = [
    "Begin",
    "Caught",
    "Change",
    "ChangesPage",
    "Restarted",
    "Start",
    "TableWatches",
    "WatchCounts",
    "WatchPosition",
    "WatchStep",
]
