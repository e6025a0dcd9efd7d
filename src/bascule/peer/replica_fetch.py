"""ReplicaFetch: serves the logs of the partitions that this node leads to their followers.

The handler does not read record bytes: slices of segment files leave by sendfile. Followers get
what is appended, synced and committed or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from bascule.errors import BasculeError, Closed, OffsetOutOfRange
from bascule.host.api import Clock
from bascule.model import Cleanup, PartitionState
from bascule.peer.catch_up_throttle import CatchUpThrottle
from bascule.peer.listener import PeerSession
from bascule.peer.record_slices import plan_records
from bascule.peer.replica_session import FetchedPartition, Key, ReplicaSession
from bascule.replica.metrics import ReplicaFetchCounts
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.purgatory import Purgatory
from bascule.replica.roles.batch_positions import position_of
from bascule.storage.partition_log import FileSlice, PartitionLog
from bascule.storage.segment import FileSlices
from bascule.wire.error_codes import ErrorCode, code_of
from bascule.wire.messages.peer.replica_fetch import (
    EpochStart,
    ReplicaFetchPartition,
    ReplicaFetchPartitionResponse,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

FETCH_BYTES_MAX: Final = 16 << 20
"""Most record bytes of one response, whatever a follower asks for."""
WAIT_MS_MAX: Final = 10_000
READ_THREADS: Final = 2
STUCK_NS_MAX: Final = 5_000_000_000
"""A log writer or a sync that is at the same thing for so long hangs: many times what a loaded disk
takes."""
STUCK_POLL_SECONDS: Final = 0.1
REMOVAL_POLL_SECONDS: Final = 0.05
"""Before a log is looked at again whose segments are being replaced, which takes some syncs."""
YIELD_LOOKS: Final = 200
"""Partitions and segments looked at before the event loop may run other connections."""
FURTHER_SEGMENTS_MAX: Final = 1_024
"""Segments of a response beyond the first of each partition: each has a file open until it is
sent."""


class WantedIsr(NamedTuple):
    """A change of an in-sync replica set that its leader asks for."""

    partition: Partition
    state: PartitionState
    """The state that it changes: the leader epoch and the version are its fence."""
    isr: tuple[int, ...]
    node_epochs: Mapping[int, int]
    """The incarnations of the followers in `isr`, as they fetch."""


class ReplicaFetchHandler:
    """Answers ReplicaFetch requests, and knows which followers are in sync. Used on one event
    loop."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        clock: Clock,
        send_acks: Callable[[bytes], None],
        stuck_ns: Callable[[], int] = lambda: 0,
        catch_up_rate: Callable[[], int] = lambda: 0,
    ) -> None:
        """`send_acks` takes NATS operations with acks; the event loop calls it. `stuck_ns` returns
        for how long the log writer or a sync has been at the same thing. `catch_up_rate` is the
        operator's limit of bytes a second for replicas that are not in sync, 0: none."""
        self.counts = ReplicaFetchCounts()
        self._partitions = partitions
        self._clock = clock
        self._send_acks = send_acks
        self._stuck_ns = stuck_ns
        self.throttle = CatchUpThrottle(catch_up_rate, clock)
        """Payloads for such replicas count as well."""
        self._is_stuck = self._is_closed = False
        self._purgatory = Purgatory()
        self._threads = ThreadPoolExecutor(READ_THREADS, "replica-reads")
        self._sessions: dict[PeerSession, ReplicaSession] = {}
        self._current: dict[int, PeerSession] = {}
        """The latest session of each node."""
        self._heard_ns: dict[int, int] = {}
        self._unsettled: set[Partition] = set()

    def close(self) -> None:
        """Answer the requests that wait; later ones do not wait."""
        self._is_closed = True
        self._purgatory.close()
        self._threads.shutdown(wait=False)

    # -- requests -------------------------------------------------------------------------------

    def handle(
        self, request: ReplicaFetchRequest, peer: PeerSession
    ) -> Awaitable[ReplicaFetchResponse]:
        """Take over what a follower reports, now; answer when there is something to say to it."""
        session = self._session(peer)
        self.counts.requests += 1
        self.counts.reports += len(request.partitions)
        self._heard_ns[peer.node_id] = self._clock.monotonic_ns()
        for forgotten in request.forgotten:
            self._forget(session, (forgotten.stream_id, forgotten.partition), peer)
        responses = [
            refusal
            for report in request.partitions
            if (refusal := self._on_report(session, report, peer)) is not None
        ]
        return self._answer(session, request, peer, responses)

    async def _answer(
        self,
        session: ReplicaSession,
        request: ReplicaFetchRequest,
        peer: PeerSession,
        responses: list[ReplicaFetchPartitionResponse],
    ) -> ReplicaFetchResponse:
        """`responses` and what else there is to say, once there is something."""
        deadline = 0.0
        wait_ms = min(max(request.max_wait_ms, 0), WAIT_MS_MAX)
        bytes_max = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        while True:
            # News may wait for records; see `ReplicaSession`.
            if session.changed or not wait_ms:
                responses += await self._look(session, bytes_max, peer)
            if responses or not wait_ms or peer.has_more:
                break
            deadline = deadline or asyncio.get_running_loop().time() + wait_ms / 1000
            if not await self._purgatory.wait(
                (session, peer),
                unless=lambda: bool(session.changed) or peer.has_more,
                deadline=deadline,
            ):
                wait_ms = 0
        self._heard_ns[peer.node_id] = self._clock.monotonic_ns()
        await self._wait_while_stuck()
        return ReplicaFetchResponse(partitions=responses)

    async def _wait_while_stuck(self) -> None:
        """Answer nobody while the disk hangs.

        This node can store nothing, and would go on leading: the followers have to notice.
        """
        while not self._is_closed and (stuck_ns := self._stuck_ns()) >= STUCK_NS_MAX:
            if not self._is_stuck:
                self._is_stuck = True
                extra = {"seconds": round(stuck_ns / 1e9, 1)}
                log.error("the disk hangs; followers get no answers", extra=extra)
            await asyncio.sleep(STUCK_POLL_SECONDS)
        if self._is_stuck:
            self._is_stuck = False
            log.info("the disk works again")

    def _session(self, peer: PeerSession) -> ReplicaSession:
        session = self._sessions.get(peer)
        if session is None:
            session = self._sessions[peer] = ReplicaSession(self._unsettled.add)
            current = self._current.get(peer.node_id)
            if current is None or current.number < peer.number:
                # Not where an older connection had something to say yet: it is about to end.
                self._current[peer.node_id] = peer
            peer.on_closed.append(partial(self._on_closed, peer))
        return session

    def _on_closed(self, peer: PeerSession) -> None:
        session = self._sessions.pop(peer)
        is_current = self._current.get(peer.node_id) is peer
        if is_current:
            del self._current[peer.node_id]
        for fetched in session.close():
            if is_current:
                fetched.partition.commitment.on_forgotten(peer.node_id, peer.node_epoch)
                self._unsettled.add(fetched.partition)

    def _forget(self, session: ReplicaSession, key: Key, peer: PeerSession) -> None:
        fetched = session.forget(key)
        if fetched is not None and self._current.get(peer.node_id) is peer:
            fetched.partition.commitment.on_forgotten(peer.node_id, peer.node_epoch)
            self._unsettled.add(fetched.partition)

    def _on_report(
        self, session: ReplicaSession, report: ReplicaFetchPartition, peer: PeerSession
    ) -> ReplicaFetchPartitionResponse | None:
        """Note what has changed on the follower; an error if the partition is not fetched here."""
        key = report.stream_id, report.partition
        found = self._partitions.stream_by_id(report.stream_id)
        if found is None or not 0 <= report.partition < len(found):
            return _refusal(report, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        fetched = session.fetched.get(key)
        if fetched is None or fetched.attempt != report.attempt:
            session.begin(key, found[report.partition], report)
            return None
        fetched.report = report
        if fetched.is_checked:
            self._count_position(fetched, peer)
        if report.fetch_offset > fetched.sent_from and fetched.fetch_offset < 0:
            fetched.fetch_offset = report.fetch_offset
            session.note_asked(fetched)
        return None

    def _count_position(self, fetched: FetchedPartition, peer: PeerSession) -> None:
        partition, report = fetched.partition, fetched.report
        # Of another epoch nothing counts; the next look at the partition says so.
        acks = partition.on_fetch(
            peer.node_id, peer.node_epoch,
            leader_epoch=report.leader_epoch, log_start=report.log_start,
            log_end=report.log_end, synced_end=report.synced_end,
        )  # fmt: skip
        self._unsettled.add(partition)
        if acks:
            self._send_acks(acks)

    # -- responses ------------------------------------------------------------------------------

    async def _look(
        self, session: ReplicaSession, bytes_max: int, peer: PeerSession
    ) -> list[ReplicaFetchPartitionResponse]:
        """What there is to say of the partitions that have changed."""
        responses: list[ReplicaFetchPartitionResponse] = []
        left, looks, further = bytes_max, 0, FURTHER_SEGMENTS_MAX
        for fetched in session.take_changed():
            looks += 1
            if looks >= YIELD_LOOKS:
                looks = 0
                await asyncio.sleep(0)
            if session.fetched.get(fetched.key) is not fetched:
                continue
            response = await self._check(session, fetched, peer)
            if session.fetched.get(fetched.key) is not fetched:
                continue
            if response is None and fetched.is_checked:
                response = await self._read(session, fetched, left, further, peer.node_id)
                if response is not None and isinstance(response.records, FileSlice | FileSlices):
                    left -= response.records.length
                    if isinstance(response.records, FileSlices):
                        looks += len(response.records.slices) - 1
                        further -= len(response.records.slices) - 1
            elif response is not None:
                self._forget(session, fetched.key, peer)
            if response is not None:
                responses.append(response)
        self.counts.bytes += bytes_max - left
        return responses

    async def _check(
        self, session: ReplicaSession, fetched: FetchedPartition, peer: PeerSession
    ) -> ReplicaFetchPartitionResponse | None:
        """An error if this node does not lead the partition as the follower thinks.

        Compares the logs at the beginning of an attempt. Until this node has heard of the leader
        epoch that the follower follows, nothing is said.
        """
        partition, report = fetched.partition, fetched.report
        store = partition.log
        if partition.deleted or self._is_replaced(fetched):
            return _refusal(report, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if report.leader_epoch > partition.leader_epoch:
            return None  # a change of the partition's role wakes the session
        if report.leader_epoch < partition.leader_epoch:
            return _refusal(report, ErrorCode.FENCED_LEADER_EPOCH)
        if partition.failure is not None or store is None:
            return _refusal(report, ErrorCode.KAFKA_STORAGE_ERROR)
        if not partition.is_leader:
            return _refusal(report, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if fetched.is_checked:
            return None
        if not partition.commitment.accepts(peer.node_id, peer.node_epoch):
            if peer.node_id in (() if partition.state is None else partition.state.replicas):
                self.counts.stale += 1
                return _refusal(report, ErrorCode.STALE_BROKER_EPOCH)
            return _refusal(report, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        diverging = await self._compare(store, fetched)
        if diverging is None:
            # Counted first: what is replaced after that waits for this follower.
            self._count_position(fetched, peer)
            if partition.commitment.may_begin_copy(report.log_end):
                try:
                    await self._look_at_removed(store, fetched, peer.node_id)
                except (BasculeError, OSError) as error:
                    return self._read_failed(session, fetched, error)
                fetched.is_checked = True
            else:
                session.note_later(fetched.key, REMOVAL_POLL_SECONDS)
        return diverging

    async def _look_at_removed(
        self, store: PartitionLog, fetched: FetchedPartition, node: int
    ) -> None:
        """Note what compaction has removed: a replica out of sync may go on with its copy of
        another leader's log if that had lost as much."""
        partition = fetched.partition
        if partition.state is None or node in partition.state.isr:
            return
        if Cleanup.COMPACT in partition.definition.config.cleanup or store.gaps_allowed:
            look = partial(store.replacement.cleaned_part, log_end=store.end.offset)
            fetched.cleaned = await self._on_thread(look)

    def _is_replaced(self, fetched: FetchedPartition) -> bool:
        stream_id, index = fetched.key
        found = self._partitions.stream_by_id(stream_id)
        return found is None or found[index] is not fetched.partition

    async def _compare(
        self, store: PartitionLog, fetched: FetchedPartition
    ) -> ReplicaFetchPartitionResponse | None:
        """Where the follower's log leaves this one; None where it is the beginning of it."""
        report = fetched.report
        if report.last_fetched_epoch >= 0:
            epoch, end = _epoch_end(store, report.last_fetched_epoch)
            if 0 <= epoch < report.last_fetched_epoch or end < report.log_end:
                self.counts.truncations += 1
                response = _refusal(report, ErrorCode.NONE)
                response.diverging_epoch, response.diverging_end = epoch, end
                return response
        start = store.start_offset
        if report.log_end < start:
            start = await self._first_offset(store)
        if not start <= report.log_end <= store.end.offset:
            response = _refusal(report, ErrorCode.OFFSET_OUT_OF_RANGE)
            response.log_start_offset = start
            return response
        return None

    async def _first_offset(self, store: PartitionLog, start: int | None = None) -> int:
        """The first offset of the batch in which the log starts: batches are sent as a whole."""
        start = store.start_offset if start is None else start
        look = partial(position_of, store, start, nowait=False)
        try:
            found = await self._on_thread(look)
        except (BasculeError, OSError):
            return start  # the next attempt meets the same error when it reads
        assert found is not None, "only nowait finds nothing"
        return found.offset

    async def _read(
        self,
        session: ReplicaSession,
        fetched: FetchedPartition,
        bytes_left: int,
        further: int,
        node: int,
    ) -> ReplicaFetchPartitionResponse | None:
        """Records, and what else is new of the partition; None if nothing is."""
        partition, store = fetched.partition, fetched.partition.log
        assert store is not None
        piece: FileSlice | FileSlices | None = None
        if 0 <= fetched.fetch_offset < store.end.offset:
            state = partition.state
            throttle, is_catching_up = self.throttle, state is not None and node not in state.isr
            is_move = state is not None and state.is_in_no_hurry
            if is_catching_up:
                bytes_left = throttle.allowed(bytes_left, is_move=is_move)
            if is_catching_up and bytes_left <= 0 and throttle.is_spent(is_move=is_move):
                session.note_later(fetched.key, throttle.wait_seconds(is_move=is_move))
            elif bytes_left <= 0:
                session.changed[fetched.key] = None
            else:
                try:
                    offset = fetched.fetch_offset
                    piece = await self._plan_read(store, offset, bytes_left, 1 + further)
                    if is_catching_up:
                        throttle.spend(piece.length, is_move=is_move)
                    else:
                        throttle.note_in_sync(piece.length)
                except (BasculeError, OSError) as error:
                    return self._read_failed(session, fetched, error)
                if session.fetched.get(fetched.key) is not fetched:
                    return None
        if piece is not None and not piece.length:
            piece = None  # the log ends with removed records; what follows is sent when it comes
        news = fetched.news
        if piece is None and news == fetched.told:
            return None
        fetched.told = news
        epochs: list[EpochStart] = []
        if piece is not None and store.gaps_allowed:
            later = store.epochs.after(fetched.fetch_offset)
            epochs = [EpochStart(*each) for each in later.entries]
        if piece is not None:
            fetched.sent_from, fetched.fetch_offset = fetched.fetch_offset, -1
        return ReplicaFetchPartitionResponse(
            *fetched.key,
            fetched.attempt,
            high_watermark=news.high_watermark,
            log_start_offset=news.start_offset,
            version=news.replicated.version,
            replicated_offset=news.replicated.offset,
            may_have_ids=partition.may_have_ids,
            may_have_gaps=store.gaps_allowed,
            clean_offset=fetched.cleaned.clean_offset,
            tombstones_end=fetched.cleaned.tombstones_end,
            epochs=epochs,
            records=b"" if piece is None else piece,
        )

    async def _plan_read(
        self, store: PartitionLog, offset: int, bytes_max: int, segments_max: int
    ) -> FileSlice | FileSlices:
        start = store.start_offset
        if offset < start:
            if offset < await self._first_offset(store, start):
                raise OffsetOutOfRange(offset, start, store.end.offset)
            offset = start
        read = partial(
            plan_records, store, offset, bytes_max=bytes_max, end=store.end,
            segments_max=segments_max,
        )  # fmt: skip
        piece = read(nowait=True)
        if piece is None:
            piece = await self._on_thread(read)
        assert piece is not None, "only nowait finds nothing"
        return piece

    async def _on_thread(self, function: Callable[[], T]) -> T:
        """Raises: Closed while the node stops, and what the function raises."""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, function)
        except RuntimeError as error:
            raise Closed(f"the node stops: {error}") from None
        return await running

    def _read_failed(
        self, session: ReplicaSession, fetched: FetchedPartition, error: Exception
    ) -> ReplicaFetchPartitionResponse:
        partition = fetched.partition
        session.forget(fetched.key)
        response = _refusal(fetched.report, code_of(error))
        if isinstance(error, OffsetOutOfRange):
            response.error_code = ErrorCode.UNKNOWN_SERVER_ERROR  # the next attempt compares again
        elif partition.failed_reads.on_failure(error):
            name, index = partition.definition.name, partition.index
            extra = {"stream": name, "partition": index, "error": str(error)}
            log.warning("read for a follower failed", extra=extra)
        return response

    # -- the in-sync replica sets ---------------------------------------------------------------

    def watch(self, partition: Partition) -> None:
        """This node leads the partition from now on. Any thread may call it."""
        self._unsettled.add(partition)

    def wanted_isrs(self) -> Iterator[WantedIsr | None]:
        """The changes to propose now. Call it a few times in `lag_ns_max`.

        Looks only at partitions in which something has changed or is under way, and yields once for
        each of them: the caller may do other work meanwhile.
        """
        heard = MappingProxyType(
            {node: at for node, at in self._heard_ns.items() if node in self._current}
        )
        # A copy: other threads add partitions, and an iteration would notice.
        for partition in self._unsettled.copy():
            # Before the look: the log writer may give the partition another ISR meanwhile.
            self._unsettled.discard(partition)
            commitment = partition.commitment
            isr = commitment.wanted_isr(heard)
            if isr is not None or not commitment.is_settled:
                self._unsettled.add(partition)
            if isr is not None and partition.state is not None:
                yield WantedIsr(partition, partition.state, isr, commitment.node_epochs(isr))
            else:
                yield None


def _epoch_end(store: PartitionLog, last_epoch: int) -> tuple[int, int]:
    """The largest epoch of the log up to `last_epoch`, and its end.

    Epoch -1 and the start of the first epoch if all epochs of the log are later: a log that ends
    there or below does not contradict this one.
    """
    # The end first: between the two the log writer may begin an epoch and append to it, and what
    # follows the epoch before would count as that one's.
    log_end = store.end.offset
    epochs = store.epochs
    epoch, end = epochs.end_of(last_epoch, end_offset=log_end)
    if epoch >= 0:
        return epoch, end
    return -1, epochs.entries[0].start if epochs.entries else log_end


def _refusal(report: ReplicaFetchPartition, code: ErrorCode) -> ReplicaFetchPartitionResponse:
    return ReplicaFetchPartitionResponse(
        report.stream_id, report.partition, report.attempt, code, records=b""
    )
