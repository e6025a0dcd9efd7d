"""The thread that copies logs from one other node."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from typing import Final, cast

from bascule.cluster_identity import ClusterIdentity, ForeignPeer
from bascule.cluster_version import LOG_DETAILS, NEWEST
from bascule.errors import (
    BasculeError,
    Broken,
    CorruptData,
    RemoteProtocolError,
    UnexpectedEpoch,
    UnexpectedOffset,
)
from bascule.host.api import Clock
from bascule.log_connection import LogConnection
from bascule.replica.follower.followed_partition import (
    EXPECTED_ERRORS,
    FollowedPartition,
    WholeBatches,
    whole_batches,
)
from bascule.replica.follower.payload_gate import GetPayload, before_missing
from bascule.replica.follower.receive_buffers import ReceiveBuffer, ReceiveBuffers
from bascule.replica.follower.unheard import Unheard
from bascule.replica.log_writer import LogWriter
from bascule.replica.metrics import FetcherCounts
from bascule.replica.partition import Partition
from bascule.replica.roles.commitment import LogFlags
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.storage.compaction.segment_replacement import CleanedPart
from bascule.storage.epochs import Epoch, LeaderEpochs
from bascule.wire.codec import decode
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.peer.control import PeerHelloRequest, PeerHelloResponse
from bascule.wire.messages.peer.replica_fetch import (
    ForgottenPartition,
    ReplicaFetchPartition,
    ReplicaFetchPartitionResponse,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)

log = logging.getLogger("bascule.replica")

FETCH_WAIT_MS: Final = 500
"""How long the leader holds a request without news."""
FETCH_BYTES: Final = 4 << 20
"""Record bytes of one response."""
IN_FLIGHT_MAX: Final = 2
REPORTS_MAX: Final = 1_000
"""Partitions in one request, of some 50 bytes each: no send fills the socket's buffer."""
BEHIND_BYTES: Final = 1 << 20
"""After a response of this size the follower is behind, and asks for more before it has synced. So
it is after one whose records end below what the leader has committed."""
REPORT_SECONDS_MAX: Final = 0.02
"""How long the next request waits for the sync that its report is about."""
SMALL_BYTES: Final = 64 << 10
"""A response of up to this size is received into memory that the thread keeps."""
RETRY_SECONDS_MIN: Final = 0.02
RETRY_SECONDS_MAX: Final = 0.5
Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who connects, and what it says of itself."""

    node_id: int
    cluster: ClusterIdentity
    node_epoch: Callable[[], int]
    """That of this process; -1 before it has registered."""
    cluster_version: Callable[[], int] = lambda: NEWEST
    """The one in force, as this node knows."""


def _version(cluster_version: int) -> int:
    """The version of ReplicaFetch that every node of the cluster knows."""
    return 1 if cluster_version >= LOG_DETAILS else 0


class FollowerFetcher:
    """Fetches the partitions that one node leads. Any thread may call its methods."""

    def __init__(
        self,
        leader: int,
        identity: PeerIdentity,
        *,
        address: Callable[[], tuple[str, int] | None],
        writer: LogWriter,
        syncer: LogSyncer,
        send_acks: Callable[[bytes], None],
        on_silent: Callable[[int, str], None],
        on_damaged: Callable[[int, Partition, int, int], None] = lambda _, __, ___, ____: None,
        fetch_payload: GetPayload = lambda _, __, ___: None,
        clock: Clock,
        silence_seconds_max: float,
    ) -> None:
        """`address` gives that of the leader's peer listener. `on_silent` is called on this
        fetcher's thread while the leader, by its number, has not answered for
        `silence_seconds_max`, with the reason. For the others see `Replicator`."""
        self.leader = leader
        self.counts = FetcherCounts()
        self._identity = identity
        self._address = address
        self._writer = writer
        self._syncer = syncer
        self._send_acks = send_acks
        self._on_silent = on_silent
        self._on_damaged = on_damaged
        self._fetch_payload = fetch_payload
        self._clock = clock
        self._silence_seconds_max = silence_seconds_max
        self._followed: dict[Key, FollowedPartition] = {}
        self._buffers = ReceiveBuffers()
        self._small = memoryview(bytearray(SMALL_BYTES))
        self._lock = threading.Lock()
        """Guards the next fields, and sending."""
        self._connection: LogConnection | None = None
        self._in_flight = 0
        self._changed: dict[Key, FollowedPartition] = {}
        self._forgotten: dict[Key, None] = {}
        self._retries: dict[Key, FollowedPartition] = {}
        self._unheard = Unheard(identity.node_id)
        self._timer: threading.Timer | None = None
        self._is_renewing = False
        """Whether this node ends the connection to begin another one."""
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fetch-{leader}", daemon=True)
        self._thread.start()

    # -- what is followed -----------------------------------------------------------------------

    def follow(self, followed: FollowedPartition) -> None:
        """Copy a partition from now on. Called on the log writer thread."""
        with self._lock:
            self._followed[followed.key] = followed
            self._forgotten.pop(followed.key, None)
            self._unheard.begin(followed.key, self._clock.monotonic_ns())
            is_connected = self._connection is not None
        self._wake.set()
        if is_connected:
            self._begin(followed)

    def forget(self, followed: FollowedPartition) -> None:
        """Copy it no longer."""
        followed.has_ended = True
        with self._lock:
            if self._followed.get(followed.key) is followed:
                del self._followed[followed.key]
                self._changed.pop(followed.key, None)
                self._retries.pop(followed.key, None)
                self._unheard.forget(followed.key)
                self._forgotten[followed.key] = None

    def on_state(self, followed: FollowedPartition) -> None:
        """Another state of the partition is in force, in the same leader epoch."""
        with self._lock:
            if self._followed.get(followed.key) is followed:
                self._unheard.on_state(followed, self._clock.monotonic_ns())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is followed."""
        return not self._followed

    def on_position(self, followed: FollowedPartition) -> None:
        """A sync has ended, or the start of the log has moved. Any thread may call it."""
        self._note_changed(followed)

    def close(self) -> None:
        """Return once the thread has ended."""
        self._stopping.set()
        self._wake.set()
        with self._lock:
            if self._connection is not None:
                self._connection.abort()
            if self._timer is not None:
                self._timer.cancel()
        self._thread.join()

    def renew(self) -> None:
        """Connect again: this node has another epoch, which a connection states as it begins."""
        with self._lock:
            self._is_renewing = True
            if self._connection is not None:
                self._connection.abort()

    def retry_now(self) -> None:
        """Connect without waiting: the leader's address has changed, or it is back."""
        self._wake.set()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        pause, was_lost = RETRY_SECONDS_MIN, False
        heard_ns = self._clock.monotonic_ns()
        while not self._stopping.is_set():
            if not self._followed:
                self._wake.wait()
                self._wake.clear()
                heard_ns = self._clock.monotonic_ns()
                continue
            try:
                self._connect()
                while not self._stopping.is_set():
                    self._receive()
                    heard_ns = self._clock.monotonic_ns()
                    self._ask_again(heard_ns)
                    if was_lost:
                        log.info("copying from a node again", extra={"leader": self.leader})
                    pause, was_lost = RETRY_SECONDS_MIN, False
            except (BasculeError, OSError) as error:
                self._disconnect()
                if self._stopping.is_set():
                    return
                if self._is_renewing:
                    continue
                self.counts.failures += 1
                if not was_lost:
                    extra = {"leader": self.leader, "error": str(error)}
                    log.warning("cannot copy from a node", extra=extra)
                was_lost = True
                silent_ns = self._clock.monotonic_ns() - heard_ns
                if silent_ns >= self._silence_seconds_max * 1e9:
                    self._on_silent(self.leader, str(error))
                self._wake.wait(pause)
                self._wake.clear()
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            except Exception:  # boundary: a bug ends one connection, not the thread
                log.exception("fetcher failed")
                self._disconnect()
                self._stopping.wait(RETRY_SECONDS_MAX)
        self._disconnect()

    def _connect(self) -> None:
        """Connect, and begin an attempt of every partition. Raises: Broken, RemoteProtocolError."""
        self._is_renewing = False
        address = self._address()
        if address is None:
            raise Broken(f"the address of node {self.leader} is not known")
        identity = self._identity
        epoch = identity.node_epoch()
        if epoch < 0:
            raise Broken("this node has not registered yet")
        connection = LogConnection(*address, timeout=self._silence_seconds_max, negotiates=False)
        try:
            self._say_hello(connection, epoch)
            # The leader holds a request without news: that is no silence.
            connection.set_timeout(self._silence_seconds_max + FETCH_WAIT_MS / 1000)
            with self._lock:
                if self._is_renewing:
                    raise Broken("this node has got another epoch since the hello")
                self._connection, self._in_flight = connection, 0
                self._changed.clear()
                self._forgotten.clear()
                everything = list(self._followed.values())
                self._unheard.begin_all(self._followed, self._clock.monotonic_ns())
                self._send()
        except BaseException:
            connection.close()
            raise
        self.counts.connects += 1
        self._begin_all(everything)

    def _say_hello(self, connection: LogConnection, epoch: int) -> None:
        """Raises: Broken, RemoteProtocolError; ForeignPeer for a node of another cluster."""
        number, cluster = self._identity.node_id, self._identity.cluster
        tells_id = cluster.tells_id
        id = cluster.id if tells_id else ""
        hello = PeerHelloRequest(cluster.name, number, self.leader, epoch, id)
        connection.send(hello, version=int(tells_id))
        response = cast(PeerHelloResponse, connection.receive())
        try:
            cluster.check_id(response.cluster_id)
        except ForeignPeer as error:
            cluster.on_misled(error, node=self.leader, address=connection.address)
            raise
        if response.error_code:
            raise RemoteProtocolError(response.error_message)

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _begin(self, followed: FollowedPartition) -> None:
        """Begin an attempt. On the log writer thread.

        On a full disk it waits: a follower that reports counts as one that can append.
        """
        if followed.is_in_force and self._writer.is_disk_full:
            self._retry_later(followed, RETRY_SECONDS_MAX)
        elif followed.begin():
            with self._lock:
                if self._followed.get(followed.key) is followed:
                    self._unheard.begin(followed.key, self._clock.monotonic_ns())
            self._note_changed(followed)
        elif not followed.is_in_force:
            self.forget(followed)

    def _begin_all(self, followed: Iterable[FollowedPartition]) -> None:
        chosen = list(followed)

        def begin() -> None:
            for each in chosen:
                with self._reported(each):
                    self._begin(each)

        if chosen:
            self._writer.call(begin)

    def _ask_again(self, now_ns: int) -> None:
        """Begin the attempts anew about which the leader has said nothing for long.

        It does not lead them yet, as a rule. A partition must not wait for an answer that is lost.
        """
        with self._lock:
            chosen = self._unheard.take_due(now_ns, self._followed)
        if chosen:
            first = chosen[0].partition
            extra = {
                "leader": self.leader,
                "partitions": len(chosen),
                "stream": first.definition.name,
                "partition": first.index,
            }
            log.info("no answer about partitions; the leader is asked again", extra=extra)
            self._begin_all(chosen)

    def _note_changed(self, followed: FollowedPartition) -> None:
        """Tell the leader soon; now, if few requests are under way."""
        with self._lock:
            if self._followed.get(followed.key) is not followed or followed.attempt == 0:
                return
            self._changed[followed.key] = followed
            if self._connection is not None and self._in_flight < IN_FLIGHT_MAX:
                try:
                    self._send()
                except Broken:
                    self._connection.abort()  # the fetcher thread sees it

    def _send(self) -> None:
        """Send what has changed; the lock is held. Raises: Broken."""
        assert self._connection is not None
        reports: list[ReplicaFetchPartition] = []
        while self._changed and len(reports) < REPORTS_MAX:
            key = next(iter(self._changed))
            report = self._changed.pop(key).report()
            if report is not None:
                reports.append(report)
        forgotten = [ForgottenPartition(*key) for key in self._forgotten]
        self._forgotten.clear()
        request = ReplicaFetchRequest(FETCH_WAIT_MS, FETCH_BYTES, reports, forgotten)
        self._in_flight += 1
        self.counts.requests += 1
        self._connection.send(request, version=_version(self._identity.cluster_version()))

    def _receive(self) -> None:
        """Receive one response and act on it. Raises: Broken, RemoteProtocolError."""
        connection = self._connection
        assert connection is not None
        self._await_report(connection)
        version, size = connection.receive_size()
        buffer: ReceiveBuffer | None = None
        if size > SMALL_BYTES:
            while (buffer := self._buffers.take(timeout=1.0)) is None:
                if self._stopping.is_set():
                    return
            frame = buffer.view(size)
        else:
            frame = self._small[:size]
        try:
            connection.receive_into(frame)
            self.counts.bytes += size
            at = connection.check_head(frame)
            response = decode(ReplicaFetchResponse, version, frame, at)
            appends: list[Callable[[], None]] = []
            is_behind = False
            try:
                for each in response.partitions:
                    if (append := self._on_partition(each, buffer)) is not None:
                        appends.append(append)
                        is_behind |= self._is_behind(each)
                with self._lock:
                    self._in_flight -= 1
                    # What is appended is reported once it is synced, with the next request.
                    is_reported = bool(appends) and size < BEHIND_BYTES and not is_behind
                    if not is_reported:
                        self._send_next()
            finally:
                # Also where the connection has ended: they give the buffer back. What is small is
                # appended by this thread, which waits for the report of its sync next; a large
                # response is appended while the next one is received.
                hand_over = self._writer.run if buffer is None else self._writer.call
                for append in appends:
                    hand_over(append)
        finally:
            if buffer is not None:
                buffer.release()

    def _is_behind(self, response: ReplicaFetchPartitionResponse) -> bool:
        """Whether the leader had committed more than what has been asked for."""
        followed = self._followed.get((response.stream_id, response.partition))
        return followed is not None and followed.fetch_offset < response.high_watermark

    def _await_report(self, connection: LogConnection) -> None:
        """Leave the next request to a sync that ends soon: one request for records and report."""
        if not self._in_flight and not connection.wait_readable(REPORT_SECONDS_MAX):
            with self._lock:
                self._send_if_none()

    def _send_next(self) -> None:
        """Send a request if none is under way, or if there is news and room for one more; the lock
        is held. Raises: Broken."""
        has_room = self._in_flight == 0 or (self._changed and self._in_flight < IN_FLIGHT_MAX)
        if has_room and self._connection is not None:
            self._send()

    def _send_if_none(self) -> None:
        """Send a request if none is under way; the lock is held. Raises: Broken."""
        if self._in_flight == 0 and self._connection is not None:
            self._send()

    def _on_partition(
        self, response: ReplicaFetchPartitionResponse, buffer: ReceiveBuffer | None
    ) -> Callable[[], None] | None:
        """Act on the answer for one partition; return what the log writer has to do."""
        followed = self._followed.get((response.stream_id, response.partition))
        if followed is None or response.attempt != followed.attempt:
            return None
        attempt, epoch = response.attempt, response.diverging_epoch
        if response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = response.log_start_offset
            return self._repairing(followed, followed.restart, attempt, start)
        if response.diverging_end >= 0:
            end = response.diverging_end
            return self._repairing(followed, followed.truncate, attempt, epoch, end)
        if response.error_code:
            if response.error_code != ErrorCode.FENCED_LEADER_EPOCH:
                self._retry_later(followed)
            return None  # a fenced follower waits for its next state
        followed.on_news(response)
        with self._lock:
            self._unheard.hear(followed, self._clock.monotonic_ns())
        leader_log = CleanedPart(response.clean_offset, response.tombstones_end)
        if followed.has_to_take_over(leader_log):
            return self._repairing(followed, followed.take_over, attempt, leader_log)
        records = cast(memoryview, response.records)
        if not len(records):
            return None
        arrived = whole_batches(records)
        if arrived.has_links:
            arrived = self._before_missing_payloads(followed, records, arrived)
            if not arrived.size:
                return None
        start = followed.advance(attempt, arrived)
        if start < 0:
            return None
        with self._lock:
            self._changed[followed.key] = followed
        data = records[: arrived.size]
        if buffer is None:
            data = memoryview(bytes(data))
        else:
            buffer.retain()
        told = LeaderEpochs(tuple(Epoch(each.number, each.start) for each in response.epochs))
        flags = LogFlags(response.may_have_ids, response.may_have_gaps, told)
        return partial(self._append, followed, attempt, start, data, arrived, flags, buffer)

    def _before_missing_payloads(
        self, followed: FollowedPartition, records: memoryview, arrived: WholeBatches
    ) -> WholeBatches:
        """What may be appended now. Where nothing may be, the attempt waits for a payload."""
        found, missing = before_missing(followed.partition, records, arrived)
        if missing and not found.size:
            followed.end_attempt()
        for link in missing:
            self._fetch_payload(
                followed.partition, link, lambda error: self._on_payload(followed, error)
            )
        return found

    def _on_payload(self, followed: FollowedPartition, error: Exception | None) -> None:
        """A payload is here, or cannot be fetched now."""
        if not followed.attempt:
            self._retry_later(followed, 0.0 if error is None else RETRY_SECONDS_MAX)

    # -- on the log writer thread ---------------------------------------------------------------

    def _append(
        self,
        followed: FollowedPartition,
        attempt: int,
        start: int,
        data: memoryview,
        arrived: WholeBatches,
        flags: LogFlags,
        buffer: ReceiveBuffer | None,
    ) -> None:
        try:
            with self._reported(followed):
                if self._writer.is_disk_full:
                    raise OSError(ENOSPC, "the disk is full")
                if not followed.append(attempt, start, data, flags, arrived):
                    return
                if followed.partition.needs_sync:
                    self._syncer.request(followed.partition)
                else:
                    self._note_changed(followed)
        finally:
            if buffer is not None:
                buffer.release()

    def _repairing(
        self, followed: FollowedPartition, repair: Callable[..., bool], *arguments: object
    ) -> Callable[[], None]:
        """Repair the log on the log writer thread, then begin another attempt."""

        def run() -> None:
            with self._reported(followed):
                if repair(*arguments):
                    self._begin(followed)

        return run

    @contextmanager
    def _reported(self, followed: FollowedPartition) -> Iterator[None]:
        """What goes wrong ends the attempt; another one begins later."""
        try:
            yield
        except EXPECTED_ERRORS as error:
            self._attempt_failed(followed, error)
        except Exception:  # boundary: a bug ends one attempt, and not the copying of a partition
            log.exception("fetcher failed")
            followed.end_attempt()
            self._retry_later(followed, RETRY_SECONDS_MAX)

    def _attempt_failed(self, followed: FollowedPartition, error: Exception) -> None:
        followed.end_attempt()
        if followed.partition.failure is None and followed.partition.needs_sync:
            self._syncer.request(followed.partition)  # what came before the error is appended
        followed.fail(error, self._send_acks)
        # A flipped bit of a batch may also say that it has other offsets, or another epoch.
        is_damage = isinstance(error, CorruptData | UnexpectedOffset | UnexpectedEpoch)
        if is_damage and followed.is_damaged_again():
            partition = followed.partition
            end = 0 if partition.log is None else partition.log.end.offset
            self._on_damaged(self.leader, partition, followed.leader_epoch, end)
        self._retry_later(followed)

    # -- later attempts -------------------------------------------------------------------------

    def _retry_later(self, followed: FollowedPartition, seconds: float = 0.0) -> None:
        """Begin another attempt after a pause, at least so long.

        Not for what is followed no longer: its successor may wait for an attempt of its own.
        """
        with self._lock:
            if self._followed.get(followed.key) is not followed:
                return
            self._retries[followed.key] = followed
            self._unheard.begin(followed.key, self._clock.monotonic_ns())
            if self._timer is None and not self._stopping.is_set():
                pause = RETRY_SECONDS_MIN * (1 + min(followed.failures.count, 24))
                self._timer = threading.Timer(max(pause, seconds), self._retry)
                self._timer.daemon = True
                self._timer.start()

    def _retry(self) -> None:
        with self._lock:
            self._timer = None
            chosen = list(self._retries.values())
            self._retries.clear()
        self._begin_all(chosen)
