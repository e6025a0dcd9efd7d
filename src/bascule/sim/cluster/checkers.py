"""What must hold in a simulated cluster, at any time and at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from bascule.errors import CorruptData
from bascule.record.batch import RecordBatch, scan_batches
from bascule.record.header import BatchHeader
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.plan import LOSSLESS
from bascule.sim.cluster.publishers import Publication, SimPublisher
from bascule.sim.cluster.world.disk import MachineFiles
from bascule.sim.cluster.world.process import SimProcess

Key = tuple[str, int]
READ_BYTES: Final = 1 << 20
MSG_ID: Final = "Nats-Msg-Id"


class StoredBatch(NamedTuple):
    """A batch of a log. Its header has the CRC of its records."""

    header: BatchHeader
    data: bytes


class StoredRecord(NamedTuple):
    """A record of a log."""

    offset: int
    id: str
    body: bytes


class ClusterCheckers:
    """All checks of a run."""

    def __init__(self, world: ClusterEnvironment, machines: Mapping[int, Machine]) -> None:
        self._world = world
        self._machines = machines
        self._leaders: dict[tuple[Key, int], tuple[int, str]] = {}
        """Partition and leader epoch -> the node and process that leads it."""
        self._watermarks: dict[tuple[int, Key], tuple[Partition, int]] = {}
        """Of each process that runs, and each time that a replica is there."""
        self._committed: dict[Key, dict[int, BatchHeader]] = {}
        """What a leader has shown below its watermark."""
        self._read: dict[tuple[int, Key], int] = {}
        """How far each leader's log was read."""

    # -- events -------------------------------------------------------------------------------

    def on_ack(self, publication: Publication, answer: dict[str, Any]) -> None:
        """A publisher has got an ack."""
        offset = answer["offset"]
        if publication.offset >= 0 and publication.offset != offset:
            raise InvariantBroken(
                "one offset a message",
                f"{publication.id} was acked at {publication.offset}, and again at {offset}",
            )

    def on_role(self, process: SimProcess, partition: Partition) -> None:
        """A partition has another role."""
        if not partition.is_leader:
            return
        key = (partition.definition.name, partition.index), partition.leader_epoch
        leader = process.machine.node, process.name
        found = self._leaders.setdefault(key, leader)
        if found[0] != leader[0]:
            self._world.loop.report(
                "one leader an epoch",
                f"{key[0]} epoch {key[1]} is led by {found[1]} and {leader[1]}",
            )

    def on_process_ended(self, node: int) -> None:
        """What is only in memory is gone."""
        for known in (self._watermarks, self._read):
            for each in [each for each in known if each[0] == node]:
                del known[each]

    # -- now and then -------------------------------------------------------------------------

    def look(self) -> None:
        """Check the logs of all nodes as they are now. Raises: InvariantBroken."""
        for node, partition in self.replicas():
            key = partition.definition.name, partition.index
            mark = partition.committed_offset
            known, before = self._watermarks.get((node, key), (partition, 0))
            if known is not partition:  # it has left the node, and come back
                self._read.pop((node, key), None)
            elif mark < before:
                raise InvariantBroken(
                    "watermark monotonic", f"{key} on node {node}: {mark} after {before}"
                )
            self._watermarks[node, key] = partition, mark
            if partition.is_leader and partition.failure is None:
                try:
                    self._read_committed(node, key, partition, mark)
                except CorruptData:
                    if not self._machines[node].damaged_ms:
                        raise  # consumers see the CRC, too

    def _read_committed(self, node: int, key: Key, partition: Partition, mark: int) -> None:
        """What a leader shows to consumers is the same at any time."""
        start = self._read.get((node, key), 0)
        if start >= mark:
            return
        known = self._committed.setdefault(key, {})
        for batch in batches_of(partition, self._machines[node].files, start, mark):
            header = batch.header
            if header.end_offset > mark:
                break
            found = known.setdefault(header.base_offset, header)
            if found != header:
                raise InvariantBroken(
                    "nothing read is undone",
                    f"{key} on node {node}: {header} where {found} was read before",
                )
            start = header.end_offset
        self._read[node, key] = start

    def replicas(self) -> Iterator[tuple[int, Partition]]:
        """The partitions with a log on every node that has started."""
        for node, machine in self._machines.items():
            if machine.running is None or not machine.is_ready:
                continue  # a node that stops closes its logs
            for name in self._world.stream_names:
                for partition in machine.running.partitions.stream(name) or ():
                    if partition.log is not None and not partition.deleted:
                        yield node, partition

    # -- at the end ---------------------------------------------------------------------------

    def at_end(self, publishers: list[SimPublisher]) -> None:
        """All replicas have everything: compare them, and what was acknowledged.

        Raises: InvariantBroken.
        """
        logs: dict[Key, dict[int, list[StoredBatch]]] = {}
        for node, partition in self.replicas():
            key = partition.definition.name, partition.index
            log = partition.log
            assert log is not None
            files = self._machines[node].files
            found = list(batches_of(partition, files, log.start_offset, log.end.offset))
            logs.setdefault(key, {})[node] = found
        records = {key: self._compare(key, by_node) for key, by_node in logs.items()}
        for publisher in publishers:
            self._check_acked(publisher, records)

    def _compare(self, key: Key, by_node: dict[int, list[StoredBatch]]) -> dict[int, StoredRecord]:
        """Compare the replicas; return the records of all of them."""
        (first, expected), *others = by_node.items()
        for node, found in others:
            if found != expected:
                at = next(
                    (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
                    min(len(found), len(expected)),
                )
                raise InvariantBroken(
                    "replicas identical",
                    f"{key}: node {node} has {found[at : at + 1]} where node {first} has "
                    f"{expected[at : at + 1]}; {len(found)} and {len(expected)} batches",
                )
        headers = {batch.header.base_offset: batch.header for batch in expected}
        for offset, header in self._committed.get(key, {}).items():
            if headers.get(offset) != header:
                raise InvariantBroken(
                    "nothing read is undone",
                    f"{key}: {header} was read, now there is {headers.get(offset)}",
                )
        records: dict[int, StoredRecord] = {}
        seen: dict[str, int] = {}
        for batch in expected:
            for record in records_of(batch):
                records[record.offset] = record
                if record.id and record.id in seen:
                    raise InvariantBroken(
                        "no id twice",
                        f"{key}: {record.id} at {seen[record.id]} and {record.offset}",
                    )
                seen[record.id] = record.offset
        return records

    def _check_acked(
        self, publisher: SimPublisher, logs: dict[Key, dict[int, StoredRecord]]
    ) -> None:
        if publisher.given_up and LOSSLESS.issuperset(self._world.plan.faults):
            raise InvariantBroken(
                "a handover loses nothing",
                f"{publisher.given_up[0].id} to {publisher.stream} got no ack: "
                f"{publisher.given_up[0].errors}",
            )
        last = -1
        for publication in publisher.sent:
            if publication.offset < 0:
                continue
            key, offset = (publication.stream, publication.partition), publication.offset
            stored = logs.get(key, {}).get(offset)
            if stored is None or stored.body != publication.body:
                raise InvariantBroken(
                    "no acked message lost",
                    f"{publication.id} was acked at {key} offset {offset}, where all replicas "
                    f"have {stored}; {len(logs.get(key, {}))} records",
                )
            if publication.sends == 1:
                if offset < last:
                    raise InvariantBroken(
                        "order", f"{publication.id} is at {offset}, an earlier message at {last}"
                    )
                last = offset


def batches_of(
    partition: Partition, files: MachineFiles, start: int, end: int
) -> Iterator[StoredBatch]:
    """The batches of a log from the one with offset `start` up to `end`."""
    log = partition.log
    assert log is not None
    at = start
    while at < end:
        piece = log.plan_read(at, bytes_max=READ_BYTES, end=log.end, nowait=True)
        if piece is None:
            # The segment is not open: a process would have a thread open it.
            path = _segment_of(files, log.directory, at)
            data, position = files.read_bytes(path), 0
        else:
            path, position = piece.file.path, piece.position
            found = piece.file.read_at_nowait(position, piece.length)
            assert found is not None, "the page cache of a simulation has everything"
            data = found
        before = at
        for batch in scan_batches(data, origin=path, origin_position=position):
            if batch.header.end_offset > at:
                yield StoredBatch(batch.header, data[batch.start : batch.end])
                at = batch.header.end_offset
            if at >= end:
                return
        if at == before:
            raise InvariantBroken("logs are read", f"{path} has nothing at offset {at}")


def _segment_of(files: MachineFiles, directory: str, offset: int) -> str:
    bases = [int(each[:20]) for each in files.list_dir(directory) if each.endswith(".log")]
    return f"{directory}/{max(base for base in bases if base <= offset):020d}.log"


def records_of(batch: StoredBatch) -> Iterator[StoredRecord]:
    """The records of a batch."""
    for record in RecordBatch(batch.data):
        headers = dict(record.headers)
        id = headers.get(MSG_ID) or b""
        yield StoredRecord(record.offset, id.decode(), record.value or b"")
