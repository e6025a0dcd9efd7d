"""Copies of tables outside the cluster: the pages of changes that they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from bascule.controller.cluster.tables.replica_address import replica_address
from bascule.controller.cluster.views import ClusterViews
from bascule.errors import PartitionFailed
from bascule.host.api import Clock
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.table_results import PageAsked
from bascule.tables import Tables
from bascule.tables.rows import NOTHING_SEEN, TablePosition
from bascule.wire.tables.sync_pages import SyncPage, SyncRow

FOLLOWERS_MAX: Final = 10_000
"""That are remembered."""
FOLLOWER_NS: Final = 60_000_000_000
"""A follower that has not asked for so long is away."""


@dataclass(slots=True)
class FollowerCounts:
    """Of a node since it has started, for its metrics."""

    followers: int = 0
    """Those that have asked within the last minute."""
    lag: int = 0
    """Records that are committed and not in the copy of the slowest of them."""
    pages: int = 0
    rows: int = 0
    full_pages: int = 0


class _Seen(NamedTuple):
    at_ns: int
    lag: int


class ClusterFollowers:
    """Belongs to the event loop."""

    def __init__(
        self,
        tables: Tables,
        partitions: Partitions,
        views: ClusterViews,
        clock: Clock,
    ) -> None:
        self._tables = tables
        self._partitions = partitions
        self._views = views
        self._clock = clock
        self._pages = self._rows = self._full_pages = 0
        self._seen: dict[tuple[str, str], _Seen] = {}
        """Table and follower -> when it was answered last; in that order."""

    @property
    def counts(self) -> FollowerCounts:
        self._forget()
        lag = max((each.lag for each in self._seen.values()), default=0)
        return FollowerCounts(len(self._seen), lag, self._pages, self._rows, self._full_pages)

    def where(self, table: str) -> str:
        """See `replica_address`."""
        return replica_address(self._views, self._partitions, self._tables, table)

    async def page(self, table: str, asked: PageAsked) -> SyncPage:
        """What has changed since, as this node's replica has it.

        A copy of another table that had the name gets all rows of this one.

        Raises: UnknownStream, NotATable, PartitionFailed, CorruptData, Indeterminate.
        """
        replica = self._tables.replica(table, 0)
        definition = self._views.definition(table)
        since, epoch, after = asked.since, asked.epoch, asked.after
        seen = TablePosition(asked.seen, asked.seen_epoch)
        if asked.table != definition.id:
            since, epoch, after, seen = 0, -1, None, NOTHING_SEEN
        elif after is None:
            await replica.wait_beyond(since, asked.wait)
        self._held(table, definition.id)
        found = await replica.changes(
            since, rows_max=asked.rows_max, bytes_max=asked.bytes_max, epoch=epoch, after=after,
            seen=seen,
        )  # fmt: skip
        end = self._held(table, definition.id).high_watermark.offset
        self._note(table, asked, max(end - asked.applied, 0))
        is_first = found.is_full and not found.after
        self._pages += 1
        self._rows += len(found.rows)
        self._full_pages += found.is_full
        return SyncPage(
            table=definition.id,
            position=found.position,
            epoch=found.epoch,
            oldest=found.oldest,
            is_full=found.is_full,
            after=found.after,
            next_after=found.next_after,
            high_watermark=end,
            keys=await replica.count_quickly() if is_first else -1,
            rows=cast("list[SyncRow]", found.rows),  # encoded alike
            read_at=found.read_at.offset,
            read_epoch=found.read_at.epoch,
        )

    def _held(self, table: str, id: bytes) -> Partition:
        """The partition of a table here. Raises: PartitionFailed if that is another table, as where
        this node has not followed the cluster yet."""
        found = self._partitions.stream(table)
        if found is None or found[0].definition.id != id:
            raise PartitionFailed(table, 0, "the table was removed meanwhile")
        return found[0]

    def _note(self, table: str, asked: PageAsked, lag: int) -> None:
        self._seen.pop((table, asked.follower), None)
        self._seen[table, asked.follower] = _Seen(self._clock.monotonic_ns(), lag)
        if len(self._seen) > FOLLOWERS_MAX:
            del self._seen[next(iter(self._seen))]

    def _forget(self) -> None:
        oldest = self._clock.monotonic_ns() - FOLLOWER_NS
        while self._seen:
            first = next(iter(self._seen))
            if self._seen[first].at_ns >= oldest:
                return
            del self._seen[first]
