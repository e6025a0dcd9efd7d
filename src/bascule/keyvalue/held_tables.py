"""The buckets of the cluster, and those of them that this node holds a replica of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bascule.controller.cluster.views import ClusterViews, other_replicas
from bascule.errors import BasculeError, NotATable, UnknownStream
from bascule.keyvalue.buckets import bucket_of
from bascule.keyvalue.messages import STREAM_NOT_FOUND, ApiError
from bascule.model import StreamDefinition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.tables import Tables
from bascule.tables.table_replica import WAIT_SECONDS_MAX, TableReplica
from bascule.wire.tables.keys import TableKeys, bucket_subject, why_not_opened

BEHIND_SECONDS_MAX: Final = 1.0
"""For a replica that does not lead to apply what is committed."""


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A bucket of which this node has a replica."""

    bucket: str
    definition: StreamDefinition
    partition: Partition
    replica: TableReplica
    keys: TableKeys

    @property
    def subject_prefix(self) -> str:
        return self.definition.config.subject.removesuffix(">")

    async def wait_applied(self) -> None:
        """Return once the table has all that is committed, as far as this node knows. One that does
        not lead gives up early: others are asked then. Raises: PartitionFailed, Indeterminate."""
        seconds = WAIT_SECONDS_MAX if self.partition.is_leader else BEHIND_SECONDS_MAX
        await self.replica.wait_position(self.partition.high_watermark.offset, seconds)


class HeldTables:
    """Belongs to the event loop."""

    def __init__(
        self, node_id: int, tables: Tables, partitions: Partitions, views: ClusterViews
    ) -> None:
        self._node_id = node_id
        self._tables = tables
        self._partitions = partitions
        self._views = views

    def buckets(self) -> Iterator[tuple[str, StreamDefinition]]:
        """All buckets of the cluster, by name."""
        for name in self._views.table_names():
            definition = self._views.definition(name)
            if (bucket := bucket_of(definition)) is not None:
                yield bucket, definition

    def definition(self, bucket: str) -> StreamDefinition:
        """Raises: ApiError."""
        for name, definition in self.buckets():
            if name == bucket:
                return definition
        raise ApiError(404, STREAM_NOT_FOUND, f"stream not found: {self._why_none(bucket)}")

    def _why_none(self, bucket: str) -> str:
        try:
            definition = self._views.definition(bucket)
        except UnknownStream as error:
            return str(error)
        if definition.config.table:
            subject = definition.config.subject
            return (
                f"the subject of table {bucket!r} is {subject}, expected {bucket_subject(bucket)}"
            )
        return str(NotATable(bucket, why_not_opened(definition.config)))

    def held(self, bucket: str, *, leader: bool = False) -> HeldTable | None:
        """The replica of a bucket here; with `leader`, only if it leads. Without, one that has
        stopped, or whose table does not follow its log, is none where there is another one.
        Raises: ApiError."""
        definition = self.definition(bucket)
        found = self._partitions.stream_by_id(definition.id)
        if not found or found[0].log is None or (leader and not found[0].is_leader):
            return None
        try:
            replica = self._tables.replica(definition.name, 0)
        except BasculeError:
            return None
        if replica.ended is not None and not leader and self.others(bucket):
            return None
        keys = TableKeys(found[0].definition.config)
        return HeldTable(bucket, found[0].definition, found[0], replica, keys)

    def others(self, bucket: str, *, leader: bool = False) -> list[int]:
        """Other nodes with a replica, the leader first; only that with `leader`."""
        state = self._views.states(self.definition(bucket).id)[0]
        nodes = other_replicas(state, self._node_id)
        return [node for node in nodes if node == state.leader] if leader else nodes
