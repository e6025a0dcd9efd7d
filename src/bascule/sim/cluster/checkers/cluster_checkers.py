"""`ClusterCheckers`: what must hold in a simulated cluster, at any time and at the end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from bascule.metadata.image import Image
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.committed import UNDONE, CommittedRecords
from bascule.sim.cluster.checkers.contents import FinalContents, Writer
from bascule.sim.cluster.checkers.growth import PartitionGrowth
from bascule.sim.cluster.checkers.log_contents import Key, StoredRecord, key_of, view_of
from bascule.sim.cluster.checkers.log_starts import LogStarts
from bascule.sim.cluster.checkers.losses import AllowedLosses
from bascule.sim.cluster.checkers.opened_again import check_opened_again
from bascule.sim.cluster.checkers.replica_states import ReplicaStates
from bascule.sim.cluster.checkers.requests import RequestEffects
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.plan import LOSSLESS, ClusterFault
from bascule.sim.cluster.publishers import Publication
from bascule.sim.cluster.world.process import SimProcess
from bascule.wire.offsets import OFFSETS_STREAM

FOLLOWERS_LOOKS: Final = 10
"""Followers' logs are read at every so many looks: consumers may read there, too."""


class ReadContents(Protocol):
    """What consumers have read."""

    def compare(self, key: Key, records: Mapping[int, StoredRecord], start: int) -> str: ...


class ClusterCheckers:
    """All checks of a run."""

    def __init__(self, world: ClusterEnvironment, machines: Mapping[int, Machine]) -> None:
        self._world = world
        self._machines = machines
        self._plans = world.weakest
        self.losses = AllowedLosses()
        self._states = ReplicaStates(self._plans, self.losses)
        self._committed = CommittedRecords(
            machines, {name for name, plan in self._plans.items() if plan.compacts}, self.losses
        )
        self._starts = LogStarts(
            self._plans, self.losses, clocks_jump=ClusterFault.CLOCK_JUMP in world.plan.faults
        )
        self.growth = PartitionGrowth(
            {name: plan.partitions for name, plan in self._plans.items()}, self.losses
        )
        self._requests = RequestEffects()
        self._looks = 0
        self._seen: tuple[dict[Key, object], dict[Key, object]] = {}, {}
        """What the last look that found nothing has seen of each partition; in the second one it
        has read the followers' logs, too. The same view is not checked again."""

    def watch(self) -> None:
        """Be told of what happens."""
        world = self._world
        world.on_role = self._on_role
        world.on_process_ends = self._on_process_ends
        world.on_request = self._on_request
        world.on_purge = self._on_purge
        world.on_grow = self.growth.on_asked
        world.knows_groups = self._knows_groups

    # -- events -------------------------------------------------------------------------------

    def on_ack(self, publication: Publication, answer: dict[str, Any]) -> None:
        """A publisher has got an ack. Raises: InvariantBroken."""
        offset, plan = answer["offset"], self._plans[publication.stream]
        key = publication.stream, answer["partition"]
        is_lost = self.losses.may_lose(key, publication.sent_ns)
        is_lost = is_lost or self.growth.may_move(key[0], publication.sent_ns)
        is_lost = is_lost or publication.offset < self._starts.highest.get(key, 0)
        if publication.offset not in (-1, offset) and not is_lost:
            raise InvariantBroken(
                "one offset a message",
                f"{publication.id} was acked at {publication.offset}, and again at {offset}",
            )
        # An ack that comes late may name the replicas that are in sync by then, which may be fewer.
        says_synced = plan.is_altered or answer["synced"] == plan.is_synced
        if not 1 <= answer["replicas"] <= 2 * plan.replicas or not says_synced:
            raise InvariantBroken("acks say what was done", f"{publication.id} got {answer}")
        self._starts.on_ack(key, offset, publication.sent_ns)

    def _on_role(self, process: SimProcess, partition: Partition) -> None:
        """A partition has another role."""
        if partition.definition.name == OFFSETS_STREAM and partition.is_leader:
            leads = partition.leader_epoch, process.machine.host
            self._world.coordinator = max(self._world.coordinator, leads)
        if partition.definition.name in self._plans:
            self._starts.note_end(partition, key_of(partition))
            if wrong := self._states.on_role(process.name, partition):
                self._world.loop.report("one leader an epoch", wrong)
            self._look_at_set(key_of(partition))

    def _knows_groups(self, host: str) -> bool:
        """Whether the node on a host has loaded all groups that it coordinates."""
        running = [m.running for m in self._machines.values() if m.host == host and m.running]
        groups = running[0].status.groups if running else None
        return groups is not None and groups.has_loaded

    def _look_at_set(self, key: Key) -> None:
        """Who is in sync may have changed just now."""
        held = self._replicas_of(key)
        for partition in held.values():
            self._committed.note_end(partition, key)
        try:
            self._check_sets({key: held})
        except InvariantBroken as broken:
            self._world.loop.report(broken.name, broken.text)

    def _check_sets(self, held: Mapping[Key, Mapping[int, Partition]]) -> None:
        """Check the replicas in sync, of which each may lead next. Raises: InvariantBroken."""
        self.note_images()
        for key, replicas in held.items():
            in_sync = self._states.in_sync(key, replicas)
            if in_sync:
                end = self._committed.ends.get(key, 0)
                self._states.look_at_set(key, in_sync, end)
                self._starts.look_at_set(key, in_sync)

    def _images(self) -> list[Image]:
        return [
            machine.running.image
            for machine in self._machines.values()
            if machine.running is not None
        ]

    def _on_process_ends(self, node: int) -> None:
        """What is only in memory is about to be gone."""
        for _, partition in self._replicas_on(node):
            self._starts.note_end(partition, key_of(partition))
        self._states.on_process_ended(node)
        self._committed.on_process_ended(node)

    def _on_request(self, process: SimProcess, id: bytes, index: int, is_accepted: bool) -> None:
        """A node has applied an entry of the metadata's log."""
        try:
            self._requests.on_entry(process.name, id, index, is_accepted)
        except InvariantBroken as broken:
            self._world.loop.report(broken.name, broken.text)

    def _on_purge(self, stream: str, partition: int, offset: int, is_done: bool) -> None:
        key = stream, partition
        self._starts.on_purge(key, offset, is_done=is_done, now_ns=self._world.loop.now_ns)
        self._look_at_set(key)

    # -- now and then -------------------------------------------------------------------------

    def look(self) -> None:
        """Check the logs of all nodes as they are now. Raises: InvariantBroken."""
        self._looks += 1
        reads_followers = self._looks % FOLLOWERS_LOOKS == 0
        replicas = list(self.replicas())
        now_ns = self._world.loop.now_ns
        for key in self.losses.look([each for _, each in replicas], self._images(), now_ns):
            self._committed.forget(key)
            self._starts.forget(key, now_ns)
        self.growth.look(self._images(), now_ns)
        self.note_images()
        held: dict[Key, dict[int, Partition]] = {}
        for node, partition in replicas:
            held.setdefault(key_of(partition), {})[node] = partition
        self._states.note_older(held)
        seen = self._seen[reads_followers]
        changed = {
            key: partitions
            for key, partitions in held.items()
            if seen.get(key) != self._view(key, partitions)
        }
        for key, partitions in changed.items():
            for node, partition in partitions.items():
                self._states.look_at_mark(node, partition)
                self._committed.note_end(partition, key)
                self._starts.note_end(partition, key)
        unread = {
            key
            for key, partitions in changed.items()
            if not self._look_at_logs(key, partitions, reads_followers=reads_followers)
        }
        self._check_sets(changed)
        for key in changed.keys() - unread:
            seen[key] = self._view(key, changed[key])

    def _view(self, key: Key, replicas: Mapping[int, Partition]) -> object:
        """Everything on which the result of a look at a partition depends, but for records that no
        look has read yet. Without a change of it, another look finds the same."""
        return [
            self._committed.ends.get(key),
            self._states.latest_epochs.get(key),
            self._states.state(key),
            self.losses.epoch(key),
            self._starts.purged(key),
            *replicas.items(),
            *map(view_of, replicas.values()),
        ]

    def _look_at_logs(
        self, key: Key, replicas: Mapping[int, Partition], *, reads_followers: bool
    ) -> bool:
        """Check the logs of a partition; whether all was read. Raises: InvariantBroken."""
        latest_epoch = self._states.latest_epochs.get(key, 0)
        is_read = True
        for node, partition in replicas.items():
            if partition.is_leader or reads_followers:
                is_read &= self._committed.look(node, partition, latest_epoch=latest_epoch)
            self._starts.look(
                node,
                partition,
                now_ns=self._world.loop.now_ns,
                committed=self._committed.ends.get(key, 0),
                latest_epoch=latest_epoch,
            )
        return is_read

    def note_images(self) -> None:
        """Note the states of all partitions, as the nodes have them now."""
        for node, machine in self._machines.items():
            if machine.running is not None:
                image = machine.running.image
                if self._states.images.get(node) is not image:  # an image never changes
                    self._states.note_image(node, image)

    def in_sync(self, key: Key) -> Iterator[tuple[int, Partition]]:
        """The replicas in sync of a partition, by the states that were noted last."""
        yield from self._states.in_sync(key, self._replicas_of(key))

    def replicas(self) -> Iterator[tuple[int, Partition]]:
        """The partitions with a log on every node that has started."""
        for node in self._machines:
            yield from self._replicas_on(node)

    def _replicas_of(self, key: Key) -> dict[int, Partition]:
        """The replicas of a partition by node, as `replicas` has them."""
        name, index = key
        found = {}
        for node, machine in self._machines.items():
            running = machine.running
            if running is None or not machine.is_ready:
                continue
            held = running.partitions.stream(name) or ()
            if index < len(held):
                partition = held[index]
                if partition.log is not None and not partition.deleted:
                    found[node] = partition
        return found

    def _replicas_on(self, node: int) -> Iterator[tuple[int, Partition]]:
        machine = self._machines[node]
        if machine.running is None or not machine.is_ready:
            return  # a node that stops closes its logs
        streams = machine.running.partitions.streams()
        for name in self._plans:
            for partition in streams.get(name, ()):
                if partition.log is not None and not partition.deleted:
                    yield node, partition

    # -- at the end ---------------------------------------------------------------------------

    def committed_end(self, key: Key) -> int:
        """The end of what any node has for committed."""
        return self._committed.ends.get(key, 0)

    def committed_records(self, key: Key) -> Mapping[int, StoredRecord]:
        """Those of a compacted stream that were read, by offset."""
        return self._committed.records.get(key, {})

    def at_end(
        self,
        publishers: Sequence[Writer],
        reads: ReadContents,
        *,
        unrepaired: Collection[Key],
    ) -> None:
        """All replicas have everything: compare them, and what was acknowledged and read. Nobody
        knows what is left of the `unrepaired` partitions.

        Raises: InvariantBroken.
        """
        held: dict[Key, dict[int, Partition]] = {}
        for node, partition in self.replicas():
            if key_of(partition) not in unrepaired:
                held.setdefault(key_of(partition), {})[node] = partition
        contents = FinalContents(
            self._machines, self._plans, self._committed, self.losses, self.growth,
            self._states.untold,
        )  # fmt: skip
        if self._world.plan.is_wide:
            for replicas in held.values():
                for node, partition in replicas.items():
                    check_opened_again(node, partition, self._machines[node].files)
        is_lossless = LOSSLESS.issuperset(self._world.plan.faults)
        logs = contents.check(held, publishers, is_lossless=is_lossless, unrepaired=unrepaired)
        for key, log in logs.items():
            if wrong := reads.compare(key, log.records, log.start):
                raise InvariantBroken(UNDONE, wrong)
