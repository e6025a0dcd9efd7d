"""Leaders, high watermarks and in-sync replica sets, as all nodes together have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bascule.cluster_version import LOG_DETAILS
from bascule.metadata.image import Image
from bascule.model import PartitionState
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.log_contents import Key, key_of
from bascule.sim.cluster.checkers.losses import AllowedLosses
from bascule.sim.cluster.streams import StreamPlan
from bascule.storage.truncation.partial_copy import UNKNOWN_EPOCH


class _Mark(NamedTuple):
    """The high watermark of a replica at the last look."""

    partition: Partition
    offset: int
    unclean_epoch: int
    leads_by: int
    """The version of the state by which it leads; -1: it does not."""
    end_offset: int
    """The end of its log."""
    copy_epoch: int | None
    """The leader epoch in which the copy of the log began, while it is not complete."""
    is_outdated: bool
    """Whether its log has nothing of the unclean epoch yet: it is to be truncated, or was."""

    def may_go_back_to(self, later: _Mark) -> bool:
        """Whether `later` may be lower: records were removed after an unclean election, or a
        compacted log that is not complete yet is copied anew."""
        if later.copy_epoch not in (None, self.copy_epoch):
            return True
        if later.copy_epoch == UNKNOWN_EPOCH:
            return True  # it is about to be emptied
        if self.unclean_epoch != later.unclean_epoch:
            return True
        has_lost = later.end_offset < self.end_offset or not later.is_outdated
        return self.is_outdated and has_lost


class ReplicaStates:
    """What was seen of partitions at the last look at them."""

    def __init__(self, plans: Mapping[str, StreamPlan], losses: AllowedLosses) -> None:
        self._plans = plans
        self._losses = losses
        self._leaders: dict[tuple[Key, int], str] = {}
        """Partition and leader epoch -> the process that leads it."""
        self.latest_epochs: dict[Key, int] = {}
        self._marks: dict[tuple[int, Key], _Mark] = {}
        """Of each process that runs, and each time that a replica is there."""
        self._states: dict[Key, PartitionState] = {}
        """The latest ones that any node had."""
        self.images: dict[int, Image] = {}
        """Node -> its image at the last look."""
        self.untold: dict[Key, int] = {}
        """Up to where copies need not know where the epochs of removed records began: leaders say
        so with a later cluster version."""
        self._was_older = False

    def on_role(self, process: str, partition: Partition) -> str:
        """A partition has another role; what is wrong about it."""
        key, epoch = key_of(partition), partition.leader_epoch
        self.latest_epochs[key] = max(self.latest_epochs.get(key, 0), epoch)
        if not partition.is_leader:
            return ""
        found = self._leaders.setdefault((key, epoch), process)
        return "" if found == process else f"{key} epoch {epoch} is led by {found} and {process}"

    def note_older(self, held: Mapping[Key, Mapping[int, Partition]]) -> None:
        """Note what nodes may copy now that do not know of that cluster version yet."""
        is_older = any(
            image.streams and image.cluster_version < LOG_DETAILS for image in self.images.values()
        )
        if is_older or self._was_older:
            for key, replicas in held.items():
                ends = [each.log.end.offset for each in replicas.values() if each.log is not None]
                self.untold[key] = max(self.untold.get(key, 0), *ends)
        self._was_older = is_older  # what they have asked for then may come later

    def state(self, key: Key) -> PartitionState | None:
        """The latest state of a partition that any node had."""
        return self._states.get(key)

    def on_process_ended(self, node: int) -> None:
        """What is only in memory is gone."""
        for each in [each for each in self._marks if each[0] == node]:
            del self._marks[each]

    def in_sync(self, key: Key, held: Mapping[int, Partition]) -> list[tuple[int, Partition]]:
        """The replicas in sync at the last look, without those that may lack what an unclean
        election has undone, are doubtful or out of order."""
        found: list[tuple[int, Partition]] = []
        state = self._states.get(key)
        if state is None or state.unclean_epoch != self._losses.epoch(key):
            return found
        for node in state.isr:
            partition = held.get(node)
            if (
                node in state.lossy
                or partition is None
                or partition.log is None
                or partition.failure is not None
            ):
                continue
            if partition.state is None or partition.state.unclean_epoch != state.unclean_epoch:
                continue
            found.append((node, partition))
        return found

    def look_at_mark(self, node: int, partition: Partition) -> None:
        """The watermark of a replica rises, and only while enough replicas are in sync.

        Raises: InvariantBroken.
        """
        key, offset = key_of(partition), partition.committed_offset
        state, log = partition.state, partition.log
        if log is not None and partition.failure is None and offset > log.end.offset:
            raise InvariantBroken(
                "watermarks are in logs", f"{key} on node {node}: {offset}, its log ends before"
            )
        leads_by = -1
        if state is not None and partition.is_leader and partition.commitment.replication:
            leads_by = state.version
        unclean_epoch = 0 if state is None else state.unclean_epoch
        is_outdated = log is not None and log.epochs.latest < unclean_epoch
        mark = _Mark(
            partition, offset, unclean_epoch, leads_by,
            end_offset=0 if log is None else log.end.offset,
            copy_epoch=None if log is None else log.partial_copy.known_epoch,
            is_outdated=is_outdated and not partition.is_leader,
        )  # fmt: skip
        before = self._marks.get((node, key))
        self._marks[node, key] = mark
        if before is None or before.partition is not partition:
            return  # it was not there, or has left the node and come back
        if offset < before.offset and not before.may_go_back_to(mark):
            raise InvariantBroken(
                "watermark monotonic", f"{key} on node {node}: {offset} after {before.offset}"
            )
        if state is None or leads_by < 0 or leads_by != before.leads_by:
            return
        needed = self._plans[key[0]].needed_in_sync
        if len(state.isr) < needed and offset > before.offset:
            raise InvariantBroken(
                "min_isr",
                f"{key} on node {node}: {before.offset} to {offset} was committed with "
                f"{state.isr} in sync, and {needed} are needed",
            )

    def look_at_set(self, key: Key, in_sync: Iterable[tuple[int, Partition]], end: int) -> None:
        """Replicas in sync have everything that is committed, which ends at `end`. Raises:
        InvariantBroken."""
        is_synced = self._plans[key[0]].is_synced
        for node, partition in in_sync:
            log = partition.log
            assert log is not None
            has = (log.synced if is_synced else log.end).offset
            if has < end:
                raise InvariantBroken(
                    "replicas in sync are complete",
                    f"{key} on node {node} has {has}, and {end} is committed; {self.state(key)}",
                )

    def note_image(self, node: int, image: Image) -> None:
        """Note the states of all partitions, as a node has them."""
        self.images[node] = image
        for name in self._plans:
            definition = image.streams.get(name)
            for index, state in enumerate(image.partitions[definition.id] if definition else ()):
                known = self._states.get((name, index))
                if known is None or known.version < state.version:
                    self._states[name, index] = state
