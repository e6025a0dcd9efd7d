"""The logs at the end of a run: replicas are equal, and have what was acknowledged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.committed import CommittedRecords
from bascule.sim.cluster.checkers.growth import PartitionGrowth
from bascule.sim.cluster.checkers.log_contents import (
    Key,
    StoredBatch,
    StoredRecord,
    batches_of,
    records_of,
)
from bascule.sim.cluster.checkers.losses import AllowedLosses
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.publishers import Publication
from bascule.sim.cluster.streams import StreamPlan

EPOCHS: Final = "replicas agree on epochs"
COMPACTION: Final = "compaction keeps the latest value"


class Writer(Protocol):
    """Somebody who publishes to one stream."""

    @property
    def plan(self) -> StreamPlan: ...
    @property
    def sent(self) -> Sequence[Publication]:
        """All messages in order."""
        ...

    @property
    def given_up(self) -> Sequence[Publication]:
        """Messages that were sent once, and got no ack or an error."""
        ...


@dataclass(slots=True)
class Log:
    """The log of a partition that all replicas have."""

    start: int
    records: dict[int, StoredRecord] = field(default_factory=dict)


class FinalContents:
    """Compares the replicas with each other, and with what publishers know."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        plans: Mapping[str, StreamPlan],
        committed: CommittedRecords,
        losses: AllowedLosses,
        growth: PartitionGrowth,
        untold: Mapping[Key, int],
    ) -> None:
        """`untold`: see `ReplicaStates.untold`."""
        self._machines = machines
        self._growth = growth
        self._plans = plans
        self._committed = committed
        self._losses = losses
        self._untold = untold

    def check(
        self,
        replicas: Mapping[Key, Mapping[int, Partition]],
        publishers: Iterable[Writer],
        *,
        is_lossless: bool,
        unrepaired: Collection[Key] = (),
    ) -> Mapping[Key, Log]:
        """All replicas have everything, and are all that there is of their partitions, except of
        `unrepaired` ones. `is_lossless`: no fault may have lost a message that was sent once.
        Returns the logs that are not compacted.

        Raises: InvariantBroken.
        """
        every = list(publishers)
        logs: dict[Key, Log] = {}
        for key, held in replicas.items():
            self._compare_epochs(key, held)
            if self._plans[key[0]].compacts:
                sent = [each for publisher in every for each in publisher.sent]
                self._check_compacted(key, held, sent)
            else:
                logs[key] = self._compare(key, held)
        self._check_sent_once(logs, every)
        self._check_growth(every, logs, unrepaired)
        for publisher in every:
            if publisher.plan.compacts:
                continue
            if publisher.given_up and is_lossless and not publisher.plan.is_grouped:
                raise InvariantBroken(
                    "a handover loses nothing",
                    f"{publisher.given_up[0].id} to {publisher.plan.name} got no ack: "
                    f"{publisher.given_up[0].errors}",
                )
            self._check_acked(publisher, logs, unrepaired)
        return logs

    def _compare_epochs(self, key: Key, held: Mapping[int, Partition]) -> None:
        """Replicas agree on where each leader epoch began, also on what compaction has removed:
        else a record that nobody has committed may count as one that all have."""
        if any(key in machine.damaged_epochs for machine in self._machines.values()):
            return
        starts = (partition.start_offset for partition in held.values())
        start = max(*starts, self._untold.get(key, 0))
        if start >= min(partition.committed_offset for partition in held.values()):
            return  # a copy of an empty log need not know who wrote what was removed
        found = {}
        for node, partition in held.items():
            assert partition.log is not None
            epochs = partition.log.epochs.before(partition.committed_offset)
            later = [each for each in epochs.entries if each.start > start]
            found[node] = [(epochs.at(start), start), *later]
        if any(each != next(iter(found.values())) for each in found.values()):
            raise InvariantBroken(EPOCHS, f"{key} from {start} on: {found}")

    # -- logs that are not compacted ----------------------------------------------------------

    def _compare(self, key: Key, held: Mapping[int, Partition]) -> Log:
        """Compare the replicas; return the records of all of them."""
        start = max(partition.start_offset for partition in held.values())
        by_node: dict[int, list[StoredBatch]] = {}
        for node, partition in held.items():
            assert partition.log is not None
            files, end = self._machines[node].files, partition.log.end.offset
            by_node[node] = list(batches_of(partition, files, start, end))
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
        self._committed.compare_at_end(key, headers, start)
        return Log(start, self._records(key, expected))

    def _records(self, key: Key, batches: Iterable[StoredBatch]) -> dict[int, StoredRecord]:
        records: dict[int, StoredRecord] = {}
        seen: dict[str, int] = {}
        for batch in batches:
            for record in records_of(batch):
                records[record.offset] = record
                if record.id and record.id in seen:
                    raise InvariantBroken(
                        "no id twice",
                        f"{key}: {record.id} at {seen[record.id]} and {record.offset}",
                    )
                seen[record.id] = record.offset
        return records

    def _check_growth(
        self, publishers: Sequence[Writer], logs: Mapping[Key, Log], unrepaired: Collection[Key]
    ) -> None:
        is_damaged = any(machine.damaged_ms for machine in self._machines.values())
        for name, plan in self._plans.items():
            self._growth.check(
                [each for writer in publishers if writer.plan.name == name for each in writer.sent],
                {key: (log.start, log.records) for key, log in logs.items() if key[0] == name},
                [key for key in unrepaired if key[0] == name],
                is_damaged=is_damaged,
                by_key=not plan.is_grouped,
            )

    def _check_sent_once(self, logs: Mapping[Key, Log], publishers: Iterable[Writer]) -> None:
        """What was sent once, without an id, is stored once, in all partitions of its stream."""
        moved = {
            (each.stream, each.body)
            for publisher in publishers
            for each in publisher.sent
            if self._growth.may_move(each.stream, each.sent_ns)
        }
        seen: dict[tuple[str, bytes | None], tuple[int, int]] = {}
        for (name, index), log in logs.items():
            for record in log.records.values():
                if record.id or (name, record.body) in moved:
                    continue
                at = index, record.offset
                found = seen.setdefault((name, record.body), at)
                if found != at:
                    raise InvariantBroken(
                        "sent once, stored once",
                        f"{(record.body or b'')[:20]!r} of {name} is at {found} and {at}",
                    )

    def _check_acked(
        self, publisher: Writer, logs: Mapping[Key, Log], unrepaired: Collection[Key] = ()
    ) -> None:
        lasts: dict[int, int] = {}
        for publication in publisher.sent:
            if publication.offset < 0:
                continue
            key, offset = (publication.stream, publication.partition), publication.offset
            if key in unrepaired:
                continue
            log = logs.get(key) or Log(0)
            stored = log.records.get(offset)
            may_be_lost = self._losses.may_lose(key, publication.sent_ns)
            has_left = offset < log.start or may_be_lost
            if not has_left and (stored is None or stored.body != publication.body):
                raise InvariantBroken(
                    "no acked message lost",
                    f"{publication.id} was acked at {key} offset {offset}, where all replicas "
                    f"have {stored}; {len(log.records)} records",
                )
            last = lasts.get(key[1], -1)
            # A leader that could not append may have refused what its successor has stored.
            is_sent_once = publication.sends == 1 and not publication.errors
            if is_sent_once and not may_be_lost:
                if offset < last:
                    raise InvariantBroken(
                        "order", f"{publication.id} is at {offset}, an earlier message at {last}"
                    )
                lasts[key[1]] = offset

    # -- compacted logs -----------------------------------------------------------------------

    def _check_compacted(
        self, key: Key, held: Mapping[int, Partition], sent: Sequence[Publication]
    ) -> None:
        """On every replica each key has its latest value; a key that was removed has the record
        that says so, or none."""
        known = dict(self._committed.records.get(key, {}))
        maybe_removed = {
            each.key
            for each in sent
            if each.stream == key[0] and each.offset < 0 and each.body is None
        }
        for each in sent:
            is_here = (each.stream, each.partition) == key and each.offset >= 0
            if is_here and not self._losses.may_lose(key, each.sent_ns):
                acked = StoredRecord(each.offset, "", each.key, each.body)
                found = known.setdefault(each.offset, acked)
                if found._replace(id="") != acked:
                    raise InvariantBroken(
                        "no acked message lost", f"{key}: {found} where {acked} was acked"
                    )
        latest: dict[bytes | None, StoredRecord] = {}
        for offset in sorted(known):
            latest[known[offset].key] = known[offset]
        for node, partition in held.items():
            assert partition.log is not None
            files, start = self._machines[node].files, partition.start_offset
            there: dict[bytes | None, StoredRecord] = {}
            for batch in batches_of(partition, files, start, partition.log.end.offset):
                for record in records_of(batch):
                    if record.offset < start:
                        continue
                    if known.get(record.offset, record) != record:
                        raise InvariantBroken(
                            "nothing read is undone",
                            f"{key} on node {node}: {record}, known {known[record.offset]}",
                        )
                    there[record.key] = record
            for name, expected in latest.items():
                if name in there or name not in maybe_removed:
                    self._compare_latest(f"{key} on node {node}", expected, there.get(name), start)

    def _compare_latest(
        self, where: str, expected: StoredRecord, found: StoredRecord | None, start: int
    ) -> None:
        is_gone = expected.offset < start or expected.body is None
        if found is None and is_gone:
            return
        # A record whose publisher was told nothing may be later than what is known.
        if found is None or found.offset < expected.offset:
            raise InvariantBroken(
                COMPACTION, f"{where}: {expected.key!r} has {found}, the latest is {expected}"
            )
