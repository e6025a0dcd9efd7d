"""`LastingObjects`: what stays is visited once by the garbage collector, and never again.

A full collection visits every object of the process, and holds the interpreter lock meanwhile. With
the metadata of 10,000 partitions that takes half a second of CPU, on a machine without time left
several seconds, in which nothing answers heartbeats. The partitions have no reference cycles: a
deleted one is freed without the collector.
"""

from __future__ import annotations

import gc
from typing import Final

GROWTH: Final = 1_000
"""Partitions that are added between two calls of `gc.freeze`, with some 100 objects each."""
YOUNG_OBJECTS: Final = 10_000
"""New objects after which the collector looks at them: 0.3 ms. The default, 700, is less than what
a hundred requests in progress have, and each of these was visited several times."""


class LastingObjects:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._added = 0

    def settle(self) -> None:
        """What is there now stays: the collector does not visit it any more."""
        self._added = 0
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)

    def on_added(self, partitions: int) -> None:
        """So many partitions have been opened."""
        self._added += partitions
        if self._added >= GROWTH:
            self.settle()
