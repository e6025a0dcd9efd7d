"""Committed records: consumers read the same at any time, and leaders have all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bascule.errors import CorruptData
from bascule.record.header import BatchHeader
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.log_contents import (
    READABLE,
    Key,
    StoredRecord,
    batches_of,
    key_of,
    records_of,
)
from bascule.sim.cluster.checkers.losses import AllowedLosses
from bascule.sim.cluster.machine import Machine

UNDONE = "nothing read is undone"
COMPLETE = "leaders are complete"


class CommittedRecords:
    """What replicas have shown below their high watermarks."""

    def __init__(
        self, machines: Mapping[int, Machine], compacted: Collection[str], losses: AllowedLosses
    ) -> None:
        """`compacted` are the streams whose batches change."""
        self._machines = machines
        self._compacted = compacted
        self._losses = losses
        self._headers: dict[Key, dict[int, BatchHeader]] = {}
        self.records: dict[Key, dict[int, StoredRecord]] = {}
        """Of compacted streams."""
        self.ends: dict[Key, int] = {}
        """The highest watermark of any node."""
        self._read: dict[tuple[int, Key], tuple[Partition, int]] = {}
        """How far the log of a replica was read."""

    def on_process_ended(self, node: int) -> None:
        """What was read of its logs may not be there any more."""
        for each in [each for each in self._read if each[0] == node]:
            del self._read[each]

    def forget(self, key: Key) -> None:
        """After an unclean election other records may take the place of committed ones."""
        self._headers.pop(key, None)
        self.records.pop(key, None)
        self.ends.pop(key, None)
        for each in [each for each in self._read if each[1] == key]:
            del self._read[each]

    def note_end(self, partition: Partition, key: Key) -> None:
        """Note what a replica has for committed."""
        end = partition.committed_offset
        if end > self.ends.get(key, 0) and not self._losses.is_outdated(partition, key):
            self.ends[key] = end

    def look(self, node: int, partition: Partition, *, latest_epoch: int) -> bool:
        """Read the log of a replica as far as it is committed, and that of the latest leader as far
        as anybody knows that it is. Returns whether all of that was read, now or before.

        Raises: InvariantBroken.
        """
        key, log = key_of(partition), partition.log
        machine = self._machines[node]
        if log is None or partition.failure is not None or self._losses.is_outdated(partition, key):
            return True
        end = partition.committed_offset
        if partition.is_leader and partition.leader_epoch >= latest_epoch:
            end = self.ends.get(key, 0)
            if log.end.offset < end:
                raise InvariantBroken(
                    COMPLETE,
                    f"{key} on node {node} ends at {log.end.offset} in epoch "
                    f"{partition.leader_epoch}, and {end} is committed",
                )
            end = min(end, log.end.offset)
        try:
            return self._read_to(node, key, partition, end)
        except CorruptData:
            if not machine.damaged_ms:
                raise  # consumers see the CRC, too
        except InvariantBroken as broken:
            if broken.name != READABLE or not machine.damaged_ms:
                raise  # a segment was cut
        return False

    def _read_to(self, node: int, key: Key, partition: Partition, end: int) -> bool:
        known, at = self._read.get((node, key), (partition, 0))
        if known is not partition:  # it has left the node, and come back
            at = 0
        at = max(at, partition.start_offset)
        if at >= end:
            return True
        is_compacted = key[0] in self._compacted
        files = self._machines[node].files
        for batch in batches_of(partition, files, at, end, nowait=is_compacted):
            header = batch.header
            if header.end_offset > end:
                break
            if is_compacted:
                for record in records_of(batch):
                    self._compare_record(node, key, record)
            else:
                headers = self._headers.setdefault(key, {})
                found = headers.setdefault(header.base_offset, header)
                if found != header:
                    raise InvariantBroken(
                        UNDONE, f"{key} on node {node}: {header} where {found} was read before"
                    )
            at = header.end_offset
        self._read[node, key] = partition, at
        return at >= end

    def _compare_record(self, node: int, key: Key, record: StoredRecord) -> None:
        found = self.records.setdefault(key, {}).setdefault(record.offset, record)
        if found != record:
            raise InvariantBroken(
                UNDONE, f"{key} on node {node}: {record} where {found} was read before"
            )

    def compare_at_end(self, key: Key, headers: Mapping[int, BatchHeader], start: int) -> None:
        """Compare with the batches that all replicas have from `start` on. Raises:
        InvariantBroken."""
        for offset, header in self._headers.get(key, {}).items():
            if header.end_offset > start and headers.get(offset) != header:
                raise InvariantBroken(
                    UNDONE, f"{key}: {header} was read, now there is {headers.get(offset)}"
                )
