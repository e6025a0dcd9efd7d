"""Leads and follows partitions as their states say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from bascule.errors import (
    BasculeError,
    CorruptData,
    LogFailed,
    is_damage,
    reason_without_paths,
)
from bascule.host.api import Clock
from bascule.model import PartitionState
from bascule.replica.follower.fetcher import FollowerFetcher, PeerIdentity
from bascule.replica.follower.followed_partition import FollowedPartition, has_whole_log
from bascule.replica.follower.payload_gate import GetPayload
from bascule.replica.handover.held_messages import HoldingMemory
from bascule.replica.handover.takeover import append_held, end_appends, hold
from bascule.replica.log_writer import LogWriter
from bascule.replica.metrics import FetcherCounts
from bascule.replica.partition import Partition
from bascule.replica.roles import PartitionRole
from bascule.replica.syncing.log_syncer import LogSyncer

log = logging.getLogger("bascule.replica")

REPLICA_LAG_MS_MAX: Final = 1_000
"""A follower that has not been at its leader's end for so long is not in sync."""
SILENCE_SECONDS_MAX: Final = 1.0
"""A leader that does not answer for so long, beyond what it may wait, is reported as silent."""


class Replicator:
    """The roles of all partitions of this node, and the fetchers. Any thread may call it."""

    def __init__(
        self,
        identity: PeerIdentity,
        *,
        writer: LogWriter,
        syncer: LogSyncer,
        send_acks: Callable[[bytes], None],
        clock: Clock,
        on_leading: Callable[[Partition], None] = lambda _: None,
        on_refused: Callable[[Partition], None] | None = None,
        on_silent: Callable[[int, str], None] = lambda _, __: None,
        on_damaged: Callable[[int, Partition, int, int], None] = lambda _, __, ___, ____: None,
        fetch_payload: GetPayload = lambda _, __, ___: None,
        lag_ms_max: int = REPLICA_LAG_MS_MAX,
        silence_seconds_max: float = SILENCE_SECONDS_MAX,
    ) -> None:
        """`on_leading` is called on the log writer thread when this node leads a partition.
        `on_refused`: see `Commitment.on_refused`.

        `on_silent` is called on a thread of its own, repeatedly, with a leader that has not
        answered for `silence_seconds_max`, and the reason. `on_damaged` is called on the log writer
        thread with a leader, the partition, its leader epoch and the offset where its batches are
        damaged, again and again. `fetch_payload` gets a payload that a follower lacks. `send_acks`
        takes NATS operations.
        """
        self._identity = identity
        self._writer = writer
        self._syncer = syncer
        self._send_acks = send_acks
        self._clock = clock
        self._on_leading = on_leading
        self._on_refused = on_refused
        self._on_silent = on_silent
        self._on_damaged = on_damaged
        self._fetch_payload = fetch_payload
        self._lag_ns_max = lag_ms_max * 1_000_000
        self._silence_seconds_max = silence_seconds_max
        self._addresses: dict[int, tuple[str, int]] = {}
        self._fetchers: dict[int, FollowerFetcher] = {}
        self._followed: dict[tuple[bytes, int], tuple[FollowerFetcher, FollowedPartition]] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._memory = HoldingMemory()

    def set_peer(self, node: int, host: str, port: int) -> None:
        """The address of a node's peer listener."""
        with self._lock:
            self._addresses[node] = host, port
            fetcher = self._fetchers.get(node)
        if fetcher is not None:
            fetcher.retry_now()

    def renew(self) -> None:
        """This node has another epoch: connect to all leaders again, so that they know it."""
        with self._lock:
            fetchers = list(self._fetchers.values())
        for fetcher in fetchers:
            fetcher.renew()

    def set_role(self, partition: Partition, state: PartitionState) -> Future[None]:
        """Have a partition lead, follow or do neither, after everything queued for it before.

        The future is done when the role is in force. It raises what `Partition.set_role` raises.
        """
        return self._writer.call(lambda: self._set_role(partition, state))

    def hold(self, partition: Partition, tail_start: int | None) -> Future[None]:
        """Hold what arrives for a partition until its next role; see `replica.handover`."""
        return self._writer.call(lambda: hold(partition, self._memory, tail_start))

    def end_appends(self, partition: Partition, leader_epoch: int) -> Future[int]:
        """Append nothing more for the leader of `leader_epoch`, which copies the rest: the end of
        the log after everything queued before, or -1 if this node does not lead."""
        return self._writer.call(lambda: end_appends(partition, leader_epoch))

    def counts(self) -> dict[int, FetcherCounts]:
        """The counters of the fetchers by leader."""
        with self._lock:
            return {node: fetcher.counts for node, fetcher in self._fetchers.items()}

    def close(self) -> None:
        """Copy nothing any more. Return once all threads have ended."""
        with self._lock:
            self._is_closed = True
            fetchers = list(self._fetchers.values())
            self._fetchers.clear()
            followed = list(self._followed.values())
            self._followed.clear()
        for fetcher, each in followed:
            fetcher.forget(each)
        for fetcher in fetchers:
            fetcher.close()

    # -- on the log writer thread ---------------------------------------------------------------

    def _set_role(self, partition: Partition, state: PartitionState) -> None:
        node = self._identity.node_id
        partition.commitment.send_kept = self._send_acks
        if self._on_refused is not None:
            partition.commitment.on_refused = partial(self._on_refused, partition)
        try:
            acks = partition.set_role(state, node, lag_ns_max=self._lag_ns_max)
        except (BasculeError, OSError) as error:
            if isinstance(error, LogFailed | CorruptData):
                # The disk failed while the log was synced to lead, or what it says is not what was
                # written: reconciliation cannot help.
                reason, damage = reason_without_paths(error), is_damage(error)
                self._send_acks(partition.fail(str(error), reason=reason, is_damage=damage))
            append_held(partition)
            self._follow(partition)
            raise
        acks += append_held(partition)
        if acks:
            self._send_acks(acks)
        self._end_copy(partition, state)
        self._follow(partition)
        if partition.role is PartitionRole.LEADER and partition.failure is None:
            self._on_leading(partition)
            if partition.needs_sync:
                self._syncer.request(partition)

    def _end_copy(self, partition: Partition, state: PartitionState) -> None:
        """A replica that has every committed record is no partial copy any more."""
        store = partition.log
        if store is None or partition.state != state or partition.failure is not None:
            return
        if partition.deleted or not has_whole_log(state, self._identity.node_id):
            return
        try:
            store.partial_copy.end()
        except OSError as error:  # out of sync it would be copied again: slow, and safe
            log.warning(
                "mark of a copy not removed",
                extra={
                    "stream": partition.definition.name,
                    "partition": partition.index,
                    "error": str(error),
                },
            )

    def _follow(self, partition: Partition) -> None:
        """Follow the leader of the state in force, and nobody else."""
        key = partition.definition.id, partition.index
        state = partition.state
        with self._lock:
            found = self._followed.get(key)
            is_same = (
                found is not None
                and found[1].is_in_force
                and found[1].partition is partition
                and state is not None
                and found[0].leader == state.leader
            )
            if is_same:
                assert found is not None
                found[0].on_state(found[1])
                return
            if found is not None:
                del self._followed[key]
                found[0].forget(found[1])
            partition.on_position = None
            if self._is_closed or state is None or partition.role is not PartitionRole.FOLLOWER:
                return
            fetcher = self._fetcher(state.leader)
            followed = FollowedPartition(
                partition, state.leader_epoch, node_id=self._identity.node_id
            )
            self._followed[key] = fetcher, followed
        partition.on_position = lambda _: fetcher.on_position(followed)
        fetcher.follow(followed)

    def _fetcher(self, leader: int) -> FollowerFetcher:
        """The fetcher of a leader; the lock is held."""
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = FollowerFetcher(
                leader,
                self._identity,
                address=lambda: self._addresses.get(leader),
                writer=self._writer,
                syncer=self._syncer,
                send_acks=self._send_acks,
                on_silent=self._on_silent,
                on_damaged=self._on_damaged,
                fetch_payload=self._fetch_payload,
                clock=self._clock,
                silence_seconds_max=self._silence_seconds_max,
            )
        return fetcher
