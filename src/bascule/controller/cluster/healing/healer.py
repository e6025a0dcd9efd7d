"""Heals the replicas of this node whose logs are damaged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from bascule.controller.cluster.healing.evidence import keep_evidence
from bascule.controller.cluster.healing.history import HealHistory, Key
from bascule.controller.cluster.image_follower import ImageFollower
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.cluster.views import HEALS, LEADER_DAMAGED
from bascule.controller.directories import StreamDirectories
from bascule.controller.reconciler import Reconciler
from bascule.controller.repair import replace_log
from bascule.errors import BasculeError, Broken, CorruptData
from bascule.host.api import Clock
from bascule.host.lasting_tasks import start_lasting
from bascule.metadata.image import state_of
from bascule.metadata.requests import Resign
from bascule.model import NO_LEADER, Cleanup, PartitionState
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.replication.leader import UNKNOWN
from bascule.storage.retention import log_config
from bascule.storage.truncation.salvage import (
    ReadablePart,
    complete_changes,
    keep_nothing,
    keep_part,
    readable_part,
)

log = logging.getLogger("bascule.controller")

RETRY_SECONDS: Final = 5.0
"""Before healing that has failed is tried again, which counts once more."""
FENCE_RETRY_SECONDS: Final = 1.0
NEEDED_SECONDS: Final = 1.0
"""How often a damaged log that was needed looks whether it still is."""
SERVES: Final = "nobody else has all of its records: it serves what can be read"
"""What is said of a damaged log that is needed."""


@dataclass(slots=True)
class HealCounts:
    """For metrics. Counts only grow."""

    found: int = 0
    """Times that damage was found in a log of this node."""
    healed: int = 0
    """Logs that were opened again up to their damage, to be copied from there on."""
    failures: int = 0
    """Attempts that an error ended, or that the limits forbid."""


@dataclass(slots=True)
class _Patient:
    """A replica that has failed since its log is damaged."""

    partition: Partition
    fence: int
    """The leader epoch when its failure was seen: until then its leader may know how far its log
    went."""
    why_not: str = ""
    """Why it is not healed; empty: it is, or will be."""
    waits: str = ""
    """What it waits for that may need an operator; empty: nothing."""
    task: asyncio.Task[None] | None = None


class _Done(NamedTuple):
    """How a log was prepared to be copied again."""

    end_offset: int
    kept: str
    """Where damaged bytes, or the old directory, are now."""
    kept_bytes: int


class Healer:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        reconciler: Reconciler,
        metadata: MetadataGroup,
        directories: StreamDirectories,
        clock: Clock,
        follower: ImageFollower,
        syncer: LogSyncer,
        *,
        data_directory: str,
        why_not_served: Callable[[bytes, int, PartitionState], Awaitable[str]],
    ) -> None:
        """`why_not_served` asks the leader of a partition, by stream id, index and state, whether
        its replica is open, has not failed, and is not known to be damaged; see
        `ClusterViews.why_not_served`."""
        self._node_id = node_id
        self._partitions = partitions
        self._reconciler = reconciler
        self._metadata = metadata
        self._directories = directories
        self._clock = clock
        self._follower = follower
        self._syncer = syncer
        self._why_not_served = why_not_served
        self._history = HealHistory(directories.files, data_directory, clock)
        self._patients: dict[Key, _Patient] = {}
        self._needed: dict[Partition, CorruptData] = {}
        """Damaged ones that nobody else had all records of when that was found."""
        self._waiting: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        """Held while a log is read and opened again: one at a time."""
        self.counts = HealCounts()
        partitions.on_damaged = self.on_damaged
        follower.on_failed_replica = self.on_failed

    def close(self) -> None:
        """Heal nothing any more."""
        if self._waiting is not None:
            self._waiting.cancel()
        for patient in self._patients.values():
            if patient.task is not None:
                patient.task.cancel()

    def standing(self, partition: Partition) -> str:
        """What is done about a failed replica, for people; empty: nothing. Of one that has not
        failed: what is damaged, if anything is known to be."""
        if partition in self._needed and self._is_open(partition):
            return f"{self._needed[partition]}; {SERVES}"
        patient = self._patients.get((partition.definition.id, partition.index))
        if patient is None or patient.partition is not partition:
            return ""
        if patient.why_not:
            return f"not healed: {patient.why_not}"
        if patient.waits:
            return f"waits: {patient.waits}"
        return "" if self._state(partition) is None else HEALS

    # -- what was found -------------------------------------------------------------------------

    def on_damaged(self, partition: Partition, error: CorruptData) -> None:
        """Somebody has read damaged bytes of a log. It stops here if another replica has all
        records; else what can be read of it is served as before, until there is one."""
        if not self._is_open(partition):
            return
        can_stop = self._has_others(partition)
        if not can_stop and str(self._needed.get(partition)) == str(error):
            return  # as a follower says again and again that cannot get on
        self.counts.found += 1
        log.error(
            "damaged log",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "stops": can_stop,
                "error": str(error),
            },
        )
        if can_stop:
            self._syncer.stop_partition(partition, error)
            return
        self._needed[partition] = error
        if self._waiting is None:
            self._waiting = start_lasting("damaged logs that are needed", self._stop_needed)

    def _is_open(self, partition: Partition) -> bool:
        """Whether it has neither stopped nor is about to, and is neither gone nor replaced."""
        return (
            partition.failure is None
            and self._is_present(partition)
            and partition.syncing.stop_cause is None
            and self._state(partition) is not None
        )

    def _has_others(self, partition: Partition) -> bool:
        """Whether another living node has all records of it, and has opened its log.

        A process is alive before that, and a log may turn out to be unusable. One that is in sync
        was taken in after it had fetched; an eligible one has to fetch from this leader.
        """
        image, state = self._metadata.image, self._state(partition)
        if state is None:
            return False
        return any(
            node in state.isr
            or (node in state.eligible and _fetches(partition, node, image.nodes[node].epoch))
            for node in image.alive()
            if node != self._node_id
        )

    async def _stop_needed(self) -> None:
        """Stop the damaged logs that others have caught up with."""
        while self._needed:
            await asyncio.sleep(NEEDED_SECONDS)
            for partition, error in list(self._needed.items()):
                is_open = self._is_open(partition)
                if is_open and not self._has_others(partition):
                    continue
                del self._needed[partition]
                if is_open:
                    extra = {"stream": partition.definition.name, "partition": partition.index}
                    log.info("a damaged log is not needed any more; it is healed", extra=extra)
                    self._syncer.stop_partition(partition, error)
        self._waiting = None

    def on_failed(self, partition: Partition) -> None:
        """A replica has failed, or what the image says of a failed one has changed."""
        failure, state = partition.failure, self._state(partition)
        if failure is None or not failure.is_damage or state is None:
            return
        key = partition.definition.id, partition.index
        patient = self._patients.get(key)
        if patient is None or patient.partition is not partition:
            if patient is not None and patient.task is not None:
                return  # it is looked at again once the attempt has ended
            patient = self._patients[key] = _Patient(partition, state.leader_epoch)
            self._forget_healthy()
        if patient.task is None and self._can_heal(state):
            patient.task = asyncio.get_running_loop().create_task(self._run(key, patient))

    def _forget_healthy(self) -> None:
        """Forget those that were replaced by others, or deleted."""
        for key, patient in list(self._patients.items()):
            present = self._partitions.stream_by_id(key[0]) or ()
            if patient.task is None and patient.partition not in present:
                del self._patients[key]

    def _state(self, partition: Partition) -> PartitionState | None:
        partitions = self._metadata.image.partitions
        return state_of(partitions, partition.definition.id, partition.index)

    def _can_heal(self, state: PartitionState) -> bool:
        """Whether this node is no longer one of those that have all records, and another leads."""
        return (
            self._node_id in state.replicas
            and self._node_id not in (*state.isr, *state.eligible)
            and state.leader not in (NO_LEADER, self._node_id)
        )

    def _is_ill(self, partition: Partition) -> bool:
        """Whether the partition is still there and failed."""
        return partition.failure is not None and self._is_present(partition)

    def _is_present(self, partition: Partition) -> bool:
        """Whether the partition is there, and none was opened instead."""
        present = self._partitions.stream_by_id(partition.definition.id) or ()
        return (
            not partition.deleted
            and partition.index < len(present)
            and present[partition.index] is partition
        )

    # -- healing --------------------------------------------------------------------------------

    async def _run(self, key: Key, patient: _Patient) -> None:
        """Heal one replica, and try again as long as the limits allow."""
        try:
            while self._is_ill(patient.partition):
                if not await self._fence(patient) or not await self._wait_leader(patient):
                    return
                async with self._turn:
                    if not self._is_ill(patient.partition):
                        break
                    known = patient.why_not
                    patient.why_not = await asyncio.to_thread(self._history.why_not, key)
                    if patient.why_not:
                        if patient.why_not != known:  # and not again with each change of the image
                            self._note_failure(patient.partition, patient.why_not)
                        return
                    try:
                        if await self._heal(key, patient.partition):
                            break
                    except (OSError, BasculeError) as error:
                        self._note_failure(patient.partition, str(error))
                await asyncio.sleep(RETRY_SECONDS)
        except Exception:  # boundary: another change of the image tries again
            log.exception("healing failed")
        finally:
            patient.task = None
        # The log that was opened instead may have failed, too.
        present = self._partitions.stream_by_id(key[0]) or ()
        if key[1] < len(present) and present[key[1]] is not patient.partition:
            self.on_failed(present[key[1]])

    async def _fence(self, patient: _Patient) -> bool:
        """Return once the controller has committed that this replica is not in sync, and a leader
        epoch in which its leader has heard nothing of its log; False where that does not hold."""
        partition = patient.partition
        while True:
            state = self._state(partition)
            if state is None or not self._can_heal(state) or not self._is_ill(partition):
                return False
            if state.leader_epoch > patient.fence:
                return True
            definition, epoch = partition.definition, state.leader_epoch
            try:
                await self._metadata.submit(
                    Resign(self._node_id, definition.id, partition.index, epoch)
                )
            except BasculeError as error:
                log.debug("not resigned yet", extra={"error": str(error)})
            state = self._state(partition)
            if state is not None and state.leader_epoch == epoch:
                await asyncio.sleep(FENCE_RETRY_SECONDS)

    async def _wait_leader(self, patient: _Patient) -> bool:
        """Return once the leader says that its replica serves; False if there is nothing to heal
        any more. It may have been elected before it had opened its log, which may be damaged, too:
        the records behind the damage of this one may be nowhere else. Nor where it goes on with
        damage, since nobody else has all records."""
        partition = patient.partition
        while True:
            state = self._state(partition)
            if state is None or not self._can_heal(state) or not self._is_ill(partition):
                patient.waits = ""
                return False
            why_not = await self._why_not_served(partition.definition.id, partition.index, state)
            waits = why_not if why_not == LEADER_DAMAGED else ""
            if waits and not patient.waits:
                self._note_failure(partition, waits)
            patient.waits = waits
            if not why_not:
                return True
            await asyncio.sleep(FENCE_RETRY_SECONDS)

    async def _heal(self, key: Key, partition: Partition) -> bool:
        """Open the log again up to its damage; False if something has changed meanwhile, and
        nothing is removed. Raises: OSError, BasculeError."""
        definition, index = partition.definition, partition.index
        log.warning(
            "healing a replica",
            extra={"stream": definition.name, "partition": index, "cause": _cause(partition)},
        )
        async with self._follower.lock:
            if not self._is_ill(partition):
                return False
            await asyncio.to_thread(self._reconciler.close_logs, [partition])
            directory = self._directories.partition(definition.name, index)
            files = self._directories.files
            is_complete = await asyncio.to_thread(complete_changes, files, directory)
        config = log_config(definition.config)
        part: ReadablePart | None = None
        if is_complete:
            # Without the lock: reading a large log takes minutes.
            part = await asyncio.to_thread(
                readable_part, files, directory,
                index_interval_bytes=config.index_interval_bytes,
                gaps_allowed=config.gaps_allowed,
            )  # fmt: skip
        asked = self._state(partition)
        if asked is None or not self._can_heal(asked):
            return False
        if await self._why_not_served(definition.id, index, asked):
            return False
        async with self._follower.lock:
            state = self._state(partition)
            if state is None or not self._can_heal(state) or not self._is_ill(partition):
                return False
            if state.leader_epoch != asked.leader_epoch:
                return False
            if part is None:
                await asyncio.to_thread(self._check_aside, definition.name, index)
            # Before anything is changed: a node that does not survive it does not try for ever.
            await asyncio.to_thread(self._history.add, key)
            done = await asyncio.to_thread(self._replace, partition, directory, part)
            await self._reconciler.let_go(definition, [index])
            await self._follower.reconcile_locked()
            present = (self._partitions.stream_by_id(definition.id) or ())[index]
            if present.failure is not None and part is not None:
                # More than batches is damaged: the identity of the log, for example.
                await asyncio.to_thread(self._check_aside, definition.name, index)
                done = await asyncio.to_thread(self._replace, present, directory, None)
                await self._reconciler.let_go(definition, [index])
                await self._follower.reconcile_locked()
        self.counts.healed += 1
        log.warning(
            "replica opened up to its damage; it copies the rest",
            extra={
                "stream": definition.name,
                "partition": index,
                "end_offset": done.end_offset,
                "kept": done.kept,
                "bytes": done.kept_bytes,
            },
        )
        return True

    def _replace(self, partition: Partition, directory: str, part: ReadablePart | None) -> _Done:
        """Have the log end where `part` ends, or begin an empty one: where nothing can be read, or
        the log may be compacted. Raises: OSError, Broken."""
        definition, index = partition.definition, partition.index
        if part is None:
            state = self._metadata.image.partitions[definition.id][index]
            since = state.replica_since(self._node_id)
            moved_to = replace_log(
                self._directories, self._clock, definition, index, since=since, start_offset=0
            )
            return _Done(0, moved_to or "", 0)
        files, aside = self._directories.files, self._directories.aside
        kept, size = keep_evidence(files, aside, directory, part.end, _cause(partition))
        if part.may_be_compacted or Cleanup.COMPACT in definition.config.cleanup:
            # All replicas had the tombstones behind the damage, so these may be gone elsewhere,
            # also where this log was not compacted yet.
            keep_nothing(files, directory, self._clock)
            return _Done(0, kept, size)
        keep_part(files, directory, part, self._clock)
        return _Done(part.end.offset, kept, size)

    def _check_aside(self, name: str, index: int) -> None:
        """Raises: Broken where a directory of the partition is in `aside` already."""
        files, aside = self._directories.files, self._directories.aside
        kept = files.list_dir(aside) if files.exists(aside) else []
        for found in kept:
            if found.startswith(f"{name}-{index}."):
                raise Broken(f"{aside}/{found} is there already: look at it, and remove it")

    def _note_failure(self, partition: Partition, why: str) -> None:
        self.counts.failures += 1
        log.error(
            "replica not healed",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "error": why,
                "cause": _cause(partition),
            },
        )


def _cause(partition: Partition) -> str:
    return "" if partition.failure is None else partition.failure.cause


def _fetches(partition: Partition, node: int, node_epoch: int) -> bool:
    """Whether this process of a node fetches from here, which it does with an open log only."""
    replication = partition.commitment.replication
    return (
        replication is not None
        and replication.node_epoch(node) == node_epoch
        and replication.position(node) != UNKNOWN
    )
