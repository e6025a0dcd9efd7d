"""A stream that is a table, without a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from bascule.config.sections import TablesConfig
from bascule.host.real import RealFiles
from bascule.model import Cleanup, PartitionState
from bascule.record.batch import Record
from bascule.replica.partitions import Partitions
from bascule.tables import Tables
from support.served_stream import NODE, TIMESTAMP, ManualClock, append, open_stream

OTHER_NODE: Final = NODE.node_id + 1


class TablesHarness:
    """A stream that is a table, and the tables of its node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.partitions = Partitions()
        self.config: TablesConfig | None = None
        self.clock = ManualClock()
        self.partition = open_stream(
            directory, self.partitions, "t", clock=self.clock, segment_bytes_max=1_000
        )
        self.open()

    def open(self, *, table: bool = True) -> None:
        """Open the stream as a table, or not."""
        definition = self.partition.definition
        config = replace(definition.config, cleanup=(Cleanup.COMPACT,), table=table)
        self.partition.configure(replace(definition, config=config))
        self.partitions.notify_changed(self.partition.definition)

    def put(self, *changes: tuple[bytes | None, bytes | None]) -> int:
        """Append a batch of keys and values; return the end offset."""
        base = self.partition.high_watermark.offset
        append(
            self.partition,
            [Record(base + n, TIMESTAMP, *change, ()) for n, change in enumerate(changes)],
        )
        return self.partition.high_watermark.offset

    def take_role(self, *, leads: bool, epoch: int, unclean_epoch: int = 0) -> None:
        """Of two nodes this one leads, or the other one does."""
        leader = NODE.node_id if leads else OTHER_NODE
        state = PartitionState(
            (NODE.node_id, OTHER_NODE), (leader,), leader, epoch, 0, unclean_epoch=unclean_epoch
        )
        self.partition.set_role(state, NODE.node_id, lag_ns_max=1 << 60)

    def lose_from(self, end: int, *, epoch: int) -> None:
        """Follow a leader of an unclean election that has less, then lead as of the next epoch."""
        self.take_role(leads=False, epoch=epoch, unclean_epoch=epoch)
        self.partition.truncate_replicated(end)
        self.take_role(leads=True, epoch=epoch + 1, unclean_epoch=epoch)

    def run(self, test: Callable[[Tables], Awaitable[None]]) -> None:
        async def run_test() -> None:
            self.partitions.bind(asyncio.get_running_loop())
            tables = Tables(self.partitions, self.directory, RealFiles(), self.config)
            await tables.start()
            try:
                await test(tables)
            finally:
                await tables.close()

        asyncio.run(run_test())

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "tables").glob("*/*.db"))
