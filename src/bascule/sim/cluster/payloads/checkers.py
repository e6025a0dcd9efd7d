"""What must hold for payloads on the disks of the nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from bascule.record.payload_links import Payload, PayloadLink, links_of
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers import ClusterCheckers
from bascule.sim.cluster.checkers.log_contents import Key, batches_of, key_of
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.payloads.history import PayloadHistory, SentPayload
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.disk import Inode
from bascule.storage.payloads.payload_files import FoundPayload
from bascule.storage.payloads.payload_log import PayloadLog

WHOLE: Final = "acked payloads are whole"
KEPT: Final = "payloads live with their records"
UNMIXED: Final = "payloads have their own bytes"
UNHURT: Final = "no payload is lost or damaged"


class PayloadCheckers:
    """Looks at the files of all nodes."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        plans: Mapping[str, StreamPlan],
        checkers: ClusterCheckers,
        history: PayloadHistory,
    ) -> None:
        self._machines = machines
        self._plans = plans
        self._checkers = checkers
        self._history = history
        self._compared: dict[tuple[int, Payload], tuple[Inode, int]] = {}
        """Node and payload -> the file that was compared, and the boots of its machine then."""
        self._is_at_end = False

    # -- now and then ---------------------------------------------------------------------------

    def on_ack(self, payload: SentPayload) -> None:
        """A client has got an ack. Raises: InvariantBroken."""
        self._checkers.note_images()
        self._look_at_acked(payload)

    def look(self) -> None:
        """Raises: InvariantBroken."""
        for node, store in self._stores():
            for found in _linked(store):
                self._compare(node, found)
        for payloads in self._history.acked.values():
            for payload in payloads:
                self._look_at_acked(payload)
        for node, machine in self._machines.items():
            if machine.running is not None:
                counts = machine.running.controller.payloads.streams.counts
                # What cannot be read counts as damaged, too.
                may_be_damaged = machine.damaged_payloads or machine.times.has_failed
                if counts.lost or (counts.damaged and not may_be_damaged):
                    raise InvariantBroken(UNHURT, f"node {node} says {counts}")

    def _stores(self) -> Iterator[tuple[int, PayloadLog]]:
        """The logs that nobody changes just now."""
        for node, partition in self._checkers.replicas():
            if partition.failure is None and is_quiet(partition):
                assert isinstance(partition.log, PayloadLog)
                yield node, partition.log

    def _compare(self, node: int, found: FoundPayload) -> None:
        """Compare a file with what was sent, once while nobody can change it."""
        machine, id = self._machines[node], found.payload.id
        sent = self._history.sent(found.payload)
        if sent is None:
            raise InvariantBroken(UNMIXED, f"node {node} has {found}, which nobody has sent")
        if not machine.files.exists(found.path):
            raise InvariantBroken(KEPT, f"node {node} lacks the file of {found}")
        inode = machine.files._inode(found.path)
        if self._compared.get((node, found.payload)) == (inode, machine.boots):
            return
        if inode.data != sent.content:
            if id in machine.damaged_payloads and not self._is_at_end:
                return  # its node finds out, and fetches it again
            at = _first_difference(inode.data, sent.content)
            raise InvariantBroken(
                UNMIXED,
                f"node {node} has other bytes from {at} on in {found}, {len(inode.data)} bytes, "
                f"than {sent}",
            )
        self._compared[node, found.payload] = inode, machine.boots

    def _look_at_acked(self, payload: SentPayload) -> None:
        """Every replica in sync has the payload. Raises: InvariantBroken."""
        for node, partition in self._checkers.in_sync(payload.log):
            log = partition.log
            assert isinstance(log, PayloadLog)
            if not is_quiet(partition) or not (
                partition.start_offset <= payload.offset < log.end.offset
            ):
                continue
            found = log.payloads.find_at(payload.offset)
            if found is not None and found.payload == payload.described:
                self._compare(node, found)
            elif self._has_record(node, partition, payload):
                raise InvariantBroken(
                    WHOLE, f"node {node} is in sync, and has {found} of {payload}"
                )

    def _has_record(self, node: int, partition: Partition, payload: SentPayload) -> bool:
        if not self._plans[payload.stream].compacts and not self.may_be_undone(payload):
            return True
        return any(
            link.offset == payload.offset and link.payload == payload.described
            for link in self._links(node, partition)
        )

    def _links(self, node: int, partition: Partition) -> Iterator[PayloadLink]:
        """Those of all records of a log."""
        assert partition.log is not None
        files, start = self._machines[node].files, partition.start_offset
        for batch in batches_of(partition, files, start, partition.log.end.offset, nowait=True):
            yield from (link for link in links_of(batch.data) if link.offset >= start)

    def may_be_gone(self, payload: SentPayload) -> bool:
        """Whether the record of an acknowledged payload may have been removed, or undone."""
        if self._plans[payload.stream].compacts or self.may_be_undone(payload):
            return True
        return any(
            key_of(partition) == payload.log and partition.start_offset > payload.offset
            for _, partition in self._checkers.replicas()
        )

    def may_be_undone(self, payload: SentPayload) -> bool:
        """Whether an unclean election may have removed its record, or may do so at any moment."""
        losses = self._checkers.losses
        return bool(losses.epoch(payload.log)) or payload.stream in losses.allowed

    # -- at the end -----------------------------------------------------------------------------

    def not_settled(self, unrepaired: Collection[Key]) -> str:
        """What is there still of payloads that no record names, or why that is not known; empty:
        nothing. Of `unrepaired` partitions nothing is known."""
        for node, partition in self._checkers.replicas():
            if key_of(partition) in unrepaired:
                continue
            where = f"{key_of(partition)} on node {node}"
            if not isinstance(partition.log, PayloadLog) or not is_quiet(partition):
                return f"{where} is not quiet"
            payloads = partition.log.payloads
            if payloads.has_unlinked:
                return f"{where} has unlinked payloads: {payloads.counts}"
            if reason := self._not_repaired(node, partition.log):
                return f"{where} has {reason}"
            records = {link.offset for link in self._links(node, partition)}
            for offset in payloads.linked_offsets():
                if offset not in records:
                    return f"{where} has the payload of offset {offset}, which is removed"
        return ""

    def _not_repaired(self, node: int, store: PayloadLog) -> str:
        """Which payload is still damaged; empty: none."""
        machine = self._machines[node]
        for found in _linked(store):
            id = found.payload.id
            if id not in machine.damaged_payloads:
                continue
            sent = self._history.sent(found.payload)
            if sent is None or machine.files._inode(found.path).data != sent.content:
                return f"payload {id}, which is damaged"
        return ""

    def is_damaged(self, payload: SentPayload) -> bool:
        """Whether a file of it was damaged."""
        return any(payload.id in each.damaged_payloads for each in self._machines.values())

    def at_end(self, unrepaired: Collection[Key]) -> None:
        """Each record has its payload, and there is nothing else. Raises: InvariantBroken."""
        self._is_at_end = True
        self._compared.clear()
        self.look()
        for node, partition in self._checkers.replicas():
            if key_of(partition) in unrepaired:
                continue
            log, where = partition.log, f"{key_of(partition)} on node {node}"
            assert isinstance(log, PayloadLog)
            for link in self._links(node, partition):
                found = log.payloads.find_at(link.offset)
                if found is None or found.payload != link.payload:
                    raise InvariantBroken(KEPT, f"{where} has {found} for {link}")
            directory, files = log.payloads.directory, self._machines[node].files
            names = files.list_dir(directory) if files.exists(directory) else []
            wanted = {*log.payloads.whole_file_names()}
            wanted |= {f"{found.payload.id}-{found.payload.crc:08x}.sums" for found in _linked(log)}
            if unknown := [name for name in names if name not in wanted]:
                raise InvariantBroken(KEPT, f"{where} has files that nobody knows: {unknown}")


def is_quiet(partition: Partition) -> bool:
    """Whether nobody holds the lock of its payloads: what is on the disk is as the node knows."""
    log = partition.log
    return isinstance(log, PayloadLog) and not log.payloads._lock.locked()  # type: ignore[attr-defined]


def _linked(store: PayloadLog) -> Iterator[FoundPayload]:
    yield from store.payloads.linked()


def _first_difference(found: bytes | bytearray, expected: bytes) -> int:
    pairs = enumerate(zip(found, expected, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(found), len(expected)))
