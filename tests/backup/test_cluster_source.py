"""What is read from a leader while its log goes on, and is compacted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bascule.backup import cluster_source
from bascule.backup.cluster_source import LeaderRead
from bascule.backup.sources import ReadExtent
from bascule.client.connection import PartitionConnector
from bascule.errors import Broken
from bascule.host.real import RealClock
from bascule.model import Cleanup, StreamConfig, StreamDefinition
from support.stored_batches import make_batch


class Reading(LeaderRead):
    """Reads from a log of batches with five records; `on_fetch` is called after each fetch."""

    def __init__(self, *, cleanup: Cleanup, batches: int) -> None:
        definition = StreamDefinition("kv", b"i" * 16, 1, StreamConfig("kv.>", cleanup=(cleanup,)))
        super().__init__(PartitionConnector("", "kv", 0), definition, RealClock())
        self.batches = {5 * n: make_batch(5 * n, 5) for n in range(batches)}
        self._extent = ReadExtent(0, self.high_watermark)
        self.on_fetch: Callable[[], None] = lambda: None

    @property
    def high_watermark(self) -> int:
        return max(self.batches) + 5

    def write(self) -> None:
        self.batches[self.high_watermark] = make_batch(self.high_watermark, 5)

    def _retried(self, ask: partial[Any]) -> Any:  # type: ignore[override]
        offset = ask.keywords["offset"]
        found = next((self.batches[at] for at in sorted(self.batches) if at + 5 > offset), None)
        end = self.high_watermark
        self.on_fetch()
        return (None, end) if found is None else (memoryview(found), end)

    def offsets(self, start: int = 0) -> list[int]:
        """The base offsets of the batches that were read."""
        return [int.from_bytes(block[:8], "big") for block in self.read(start)]


def test_what_replaced_a_record_that_compaction_has_removed_is_read() -> None:
    """A key whose older record is removed before it is read would be in no batch of the backup."""
    reading = Reading(cleanup=Cleanup.COMPACT, batches=4)

    def on_fetch() -> None:
        if 10 in reading.batches:
            reading.write()  # the same keys as those at 10
            del reading.batches[10]

    reading.on_fetch = on_fetch
    assert reading.offsets() == [0, 5, 15, 20]


def test_the_last_batches_may_be_compacted_away() -> None:
    reading = Reading(cleanup=Cleanup.COMPACT, batches=4)
    reading._extent = ReadExtent(0, 30)
    reading.batches[40] = make_batch(40, 5)

    def on_fetch() -> None:
        reading.batches.pop(15, None)

    reading.on_fetch = on_fetch
    assert reading.offsets() == [0, 5, 10, 40]


def test_a_log_without_compaction_is_read_to_where_it_ended() -> None:
    reading = Reading(cleanup=Cleanup.DELETE, batches=4)
    reading.on_fetch = reading.write
    assert reading.offsets() == [0, 5, 10, 15]


def test_a_log_that_grows_faster_than_it_is_read_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_source, "ROUNDS_MAX", 5)
    reading = Reading(cleanup=Cleanup.COMPACT, batches=4)

    def on_fetch() -> None:
        reading.write()
        reading.write()

    reading.on_fetch = on_fetch
    with pytest.raises(Broken, match="faster than they are read"):
        reading.offsets()
