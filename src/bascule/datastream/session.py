"""One payload that this node receives, and forwards to its successors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Protocol

from crc32c import crc32c

from bascule.datastream.disk.paced_thread import PacedThread
from bascule.datastream.disk.write_back import WriteBack
from bascule.datastream.limits import DataStreamCounts
from bascule.datastream.ports import PayloadPlace
from bascule.datastream.protocol import routes
from bascule.datastream.protocol.progress import Reached, TreeProgress
from bascule.datastream.protocol.received import ReceivedPayload
from bascule.datastream.protocol.routes import Route
from bascule.datastream.successor import Successor
from bascule.datastream.transport.reactor import Reactor
from bascule.errors import BasculeError, Broken, DiskFull, PayloadDamaged
from bascule.host.api import File
from bascule.record.payload_links import Payload
from bascule.storage.payloads.part_marks import CONFIRMED_AT, SYNCED_AT, encode_mark
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import DataHead, decode_message
from bascule.wire.datastream.messages import OpenPayload, PayloadClosed

log = logging.getLogger(__name__)

PACKETS_KEPT: Final = 256
"""Heads of packets, so that they are forwarded with the checksum with which they came. What is
older is read again."""
SYNC_BYTES: Final = 64 << 20
"""A sync begins after so many bytes that were written back, so that the one at the end is short."""
ROOM_BYTES: Final = 4 << 20
"""Between two looks at the room on the disk."""
Key = tuple[bytes, int, str]


class Upstream(Protocol):
    """Who sends the payload."""

    def acknowledge(self, reached: Reached) -> None: ...
    def set_paused(self, paused: bool) -> None: ...
    def closed(self, nodes: list[int]) -> None: ...
    def failed(self, error: Exception) -> None: ...


class SessionOwner(Protocol):
    """What a session needs of the node's data streaming; implemented by `service`."""

    @property
    def node_id(self) -> int: ...
    @property
    def counts(self) -> DataStreamCounts: ...
    @property
    def write_back_thread(self) -> PacedThread: ...
    @property
    def unwritten_max(self) -> int: ...

    def connect(
        self,
        session: Session,
        node: int,
        route: Route,
        on_lost: Callable[[Successor, Exception], None],
    ) -> Successor:
        """Raises: Broken, OSError."""
        ...

    def on_detached(self, session: Session) -> None: ...
    def on_received(self, session: Session, count: int) -> None: ...
    def on_rate(self, node: int, bytes_per_s: int) -> None: ...
    def on_whole(self, key: Key) -> None: ...
    def on_ended(self, session: Session) -> None: ...


def opened_again(id: str) -> Broken:
    """Its log was closed, and is another one now."""
    return Broken(f"the replica of payload {id} was closed, and opened again")


def taken_over(id: str) -> Broken:
    """Somebody else sends it."""
    return Broken(f"payload {id} is sent over another connection now")


def _no_majority(found: int, needed: int, count: int) -> Broken:
    return Broken(f"{found} of {count} replicas take the payload, a majority is {needed}")


class Session:
    """Belongs to the thread of the reactor."""

    def __init__(
        self,
        service: SessionOwner,
        reactor: Reactor,
        pool: Executor,
        place: PayloadPlace,
        opening: OpenPayload,
        payloads: PayloadFiles,
        *,
        window: int,
    ) -> None:
        self.place = place
        self.opening = opening
        """Of whoever has sent it last; the record is as it says."""
        self.key: Key = (place.stream_id, place.partition, opening.id)
        self.received = ReceivedPayload(opening.id)
        self.progress = TreeProgress()
        self.file: File | None = None
        self.closing: Payload | None = None
        """The payload, once its sender has said that this is all."""
        self.is_whole = False
        self.route: Route = ()
        self.attempt = -1
        self.used_at_ns = 0
        self.begins_anew = opening.begins_anew
        self.sync_asked = -1
        """The position at which the sender has asked for a sync."""
        self._service = service
        self._reactor = reactor
        self._pool = pool
        self.payloads = payloads
        self._window = window
        self._upstream: Upstream | None = None
        self._successors: dict[int, Successor] = {}
        self._nodes: list[int] = []
        """Other nodes that have the payload whole."""
        self._packets: dict[int, DataHead] = {}
        self._acknowledged = Reached(-1, -1)
        self._is_paused = False
        self._marks: File | None = None
        self._write_back = self._write_back_from(0)
        self._is_finishing = False
        self._is_syncing = False
        self._sync_wanted = 0
        self._room_checked = 0
        self._has_reported = False
        self.has_ended = False

    # -- who sends ------------------------------------------------------------------------------

    @property
    def is_being_finished(self) -> bool:
        """Whether its sender has said that this is all, and its file is not whole yet. That ends by
        itself. Until then nobody else may write to a file of this id: `PayloadFiles.finish` would
        have it count as whole."""
        return self.closing is not None and not self.is_whole

    @property
    def is_being_closed(self) -> bool:
        """Whether nobody else can take it over yet: its file is being finished, or its sender waits
        for the nodes below this one, and would never be answered. That ends, since nodes that make
        no progress are left out. A sender that has its answer, or is gone, needs it no more."""
        if self.closing is None:
            return False
        return self.is_being_finished or not (self.is_detached or self._has_reported)

    def is_sent_since(self, attempt: int) -> bool:
        """Whether somebody sends it now whose attempt is a later one."""
        return not self.is_detached and attempt < self.attempt

    def attach(
        self, upstream: Upstream, place: PayloadPlace, opening: OpenPayload, route: Route
    ) -> None:
        """Receive from `upstream` from now on, and forward along `route`. The record will be as
        `opening` says. Raises: Broken, DiskFull, OSError."""
        self._check_open()
        self.place, self.opening = place, opening
        before, self._upstream = self._upstream, upstream
        if before is not None and before is not upstream:
            before.failed(taken_over(self.opening.id))
        count = self.place.replica_count
        needed = count // 2 + 1 if opening.quorum else 0
        if len(self.place.replicas) < needed:
            raise _no_majority(len(self.place.replicas), needed, count)
        if not self.is_whole:
            self.payloads.check_room(max(self.opening.size - self.received.position, 0))
            if self.received.position:
                self._open_file()
        if self.attempt >= 0:
            self.begins_anew = False  # only the first sender says so
        self.attempt = opening.attempt
        self._acknowledged, self._is_paused = Reached(-1, -1), False
        self._has_reported = False
        for each in tuple(self._successors.values()):
            each.close()
        self._successors.clear()
        self._nodes.clear()
        self.progress = TreeProgress(quorum=needed)
        self.route = route
        self._connect(routes.next_nodes(route, self._service.node_id))

    def adopt_part(self, position: int, crc: int) -> None:
        """A part of the payload is in the file already, from before a restart."""
        self.received = ReceivedPayload(self.opening.id, position=position, crc=crc)
        self._write_back = self._write_back_from(position)
        self._sync_wanted = position

    def _write_back_from(self, position: int) -> WriteBack:
        thread = self._service.write_back_thread
        return WriteBack(self._reactor, thread, on_step=self._on_written_back, start=position)

    def adopt_whole(self, payload: Payload, file: File) -> None:
        """The payload is whole here already: it is only forwarded and closed."""
        self.received = ReceivedPayload(payload.id, position=payload.size, crc=payload.crc)
        self.received.on_synced(payload.size)
        self.is_whole, self.file = True, file

    def detach(self, upstream: Upstream) -> None:
        """`upstream` has gone; another one may go on."""
        if self._upstream is upstream:
            self._upstream = None
            if self.closing is None:
                for each in tuple(self._successors.values()):
                    each.close()
                self._successors.clear()
                if not self.received.position and not self.has_ended:
                    self.abandon()  # there is nothing to go on with
                else:
                    self._service.on_detached(self)

    def abandon(self) -> None:
        """End it, and remove what was received."""
        self.end()
        if not self.is_whole:
            self._discard()

    @property
    def is_detached(self) -> bool:
        """Whether nobody sends."""
        return self._upstream is None

    @property
    def waits_for_sender(self) -> bool:
        """Whether only its sender can bring it forward: all nodes of the tree have written what
        has come, and nobody has said that this is all."""
        if self.closing is not None or self._is_paused:
            return False
        return self._acknowledged.written >= self.received.position

    def skip(self, head: DataHead) -> int:
        """How much of a packet is here already.

        Raises: PayloadGap; PayloadDamaged where the payload is whole, or is being closed, and ends
        before the packet does.
        """
        skipped = self.received.skip(head)
        if (self.is_whole or self.closing is not None) and skipped < head.length:
            size, least = self.received.position, head.position + head.length
            raise PayloadDamaged(self.opening.id, "size", str(size), f"{least} or more")
        return skipped

    def write(self, position: int, piece: memoryview) -> None:
        """Write bytes of the packet at hand. Raises: Broken once it has ended; OSError."""
        self._open_file().write_at(position, piece)

    def _check_open(self) -> None:
        """Raises: Broken once it has ended: the files may be those of another session by then."""
        if self.has_ended:
            raise taken_over(self.opening.id)

    def _open_file(self) -> File:
        """The file. There is none before the first byte. Raises: Broken once it has ended;
        OSError."""
        self._check_open()
        if self.file is None:
            self.file = self.payloads.create(self.opening.id)
        return self.file

    def _mark(self, at: int, position: int, crc: int) -> None:
        """Note how much of the file is right. Raises: Broken once it has ended; OSError."""
        self._check_open()
        if self._marks is None:
            self._marks = self.payloads.create_marks(self.opening.id)
        self._marks.write_at(at, encode_mark(position, crc))

    def on_packet(self, head: DataHead, *, crc: int, new_crc: int) -> None:
        """A packet has come as a whole. Raises: PayloadDamaged; Broken once it has ended."""
        start = self.received.position
        if self.received.on_packet(head, crc=crc, new_crc=new_crc):
            length = self.received.position - start
            self._service.on_received(self, length)
            self._packets[start] = DataHead(head.flags, start, new_crc, length)
            if len(self._packets) > PACKETS_KEPT:
                del self._packets[next(iter(self._packets))]
            try:
                self._mark(CONFIRMED_AT, self.received.position, self.received.crc)
            except OSError as error:
                self.fail(error)
                return
        if self.received.position - self._room_checked >= ROOM_BYTES:
            self._room_checked = self.received.position
            try:
                self.payloads.check_room()
            except (DiskFull, OSError) as error:
                self.fail(error)
                return
        if head.flags & frames.SYNC:
            self.sync_asked = self.received.position
            self._sync_wanted = self.received.position
            self._sync()
        if self.file is not None:
            self._write_back.advance(self.file, self.received.position)
        for each in tuple(self._successors.values()):
            each.forward()
        self.report()

    def on_close(self, size: int, crc: int) -> None:
        """The sender says that this is all. Raises: PayloadGap, PayloadDamaged; Broken once it has
        ended."""
        payload = self.received.check_whole(size, crc)
        if self.closing is None:
            self._check_open()
            self.closing = payload
            if not self.is_whole:
                self._finish_if_written_back(payload)
        for each in tuple(self._successors.values()):
            each.forward()
        self._close_if_whole()

    # -- forwarding -----------------------------------------------------------------------------

    def _connect(self, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            route = routes.below(self.route, node)
            try:
                successor = self._service.connect(self, node, route, self._on_lost)
            except (OSError, BasculeError) as error:
                self._leave_out(node, route, error)
                continue
            self._successors[node] = successor
            self.progress.on_successor(node, Reached(0, 0))

    def _on_lost(self, successor: Successor, error: Exception) -> None:
        """A node below this one is gone, or its disk: go on with those below it."""
        if self._successors.get(successor.node) is not successor or self.has_ended:
            return
        del self._successors[successor.node]
        self._leave_out(successor.node, routes.as_route(successor.route), error)
        self.report()
        self._close_if_whole()

    def _leave_out(self, node: int, route: Route, error: Exception) -> None:
        self.progress.remove(node)
        self._service.counts.successors_lost += 1
        log.warning(
            "data streaming: a node is left out; it fetches the payload later",
            extra={
                "stream": self.place.stream,
                "partition": self.place.partition,
                "payload": self.opening.id,
                "node": node,
                "error": str(error),
            },
        )
        self._connect(routes.next_nodes(route, node))
        if not self.progress.has_quorum and not self.has_ended and self.closing is None:
            count = self.place.replica_count
            self.fail(_no_majority(len(self._successors) + 1, count // 2 + 1, count))

    def on_forwarded(self, count: int) -> None:
        """So many bytes go to a node below."""
        self._service.counts.bytes_forwarded += count

    def on_rate(self, node: int, bytes_per_s: int) -> None:
        """What was sent to a node below in a second in which there was more to send."""
        self._service.on_rate(node, bytes_per_s)

    def on_successor(self, successor: Successor, reached: Reached) -> None:
        """A node below says how far it is."""
        self.progress.on_successor(successor.node, reached)
        successor.forward()
        self.report()

    def on_successor_closed(self, successor: Successor, frame: bytearray) -> list[int]:
        """A node below, and all below it, have the payload whole; those nodes."""
        nodes = decode_message(frame, PayloadClosed).nodes
        self._nodes += nodes
        payload = self.closing
        if payload is not None:
            self.progress.on_successor(successor.node, Reached(payload.size, payload.size))
        self.report()
        self._close_if_whole()
        return nodes

    def packet_at(self, position: int) -> DataHead | None:
        """The packet that began there, as far as it is known."""
        return self._packets.get(position)

    def prepare_packet(
        self, position: int, length: int, ready: Callable[[DataHead | None, Exception | None], None]
    ) -> None:
        """Read bytes again for their checksum, on a thread of the pool, then call `ready`."""
        file = self.file
        assert file is not None

        def read() -> None:
            head: DataHead | None = None
            error: Exception | None = None
            try:
                data = file.read_at(position, length)
                if len(data) != length:
                    raise Broken(f"{len(data)} bytes at {position}, expected {length}")
                head = DataHead(0, position, crc32c(data), length)
            except (OSError, BasculeError) as caught:
                error = caught
            self._reactor.call(lambda: ready(head, error))

        self._pool.submit(read)

    # -- the disk -------------------------------------------------------------------------------

    def _sync(self) -> None:
        """Sync what is written, unless a sync runs; then again after it."""
        file = self.file
        if self._is_syncing or file is None:
            return  # without a file nothing has come yet
        self._is_syncing = True
        position, crc = self.received.position, self.received.crc

        def run() -> None:
            error: OSError | None = None
            try:
                file.sync()
            except OSError as caught:
                error = caught
            self._reactor.call(lambda: self._on_synced(position, crc, error))

        self._pool.submit(run)

    def _on_synced(self, position: int, crc: int, error: OSError | None) -> None:
        self._is_syncing = False
        if self.has_ended or self.is_whole:
            return
        if error is None and self.closing is None:
            try:
                self._mark(SYNCED_AT, position, crc)
            except OSError as caught:
                error = caught
        if error is not None:
            self.closing = None
            self.fail(error)
            return
        self.received.on_synced(position)
        if self.closing is not None:
            self._finish_if_written_back(self.closing)
        elif position < self._sync_wanted:
            self._sync()
        self.report()

    def _on_written_back(self, error: OSError | None) -> None:
        """A step has ended."""
        if self.has_ended or self.is_whole:
            return
        if error is not None:
            self.closing = None
            self.fail(error)
            return
        written = self._write_back.position
        if written - self._sync_wanted >= SYNC_BYTES and self.closing is None:
            self._sync_wanted = written
            self._sync()
        if self.file is not None:
            self._write_back.advance(self.file, self.received.position)
        if self.closing is not None:
            self._finish_if_written_back(self.closing)
        self.report()

    def _finish_if_written_back(self, payload: Payload) -> None:
        """The sync at the end is to find little to write: it is one of the whole rest at once. It
        begins after the last one has ended: of two at once, one is told of an error of the disk."""
        is_busy = self._is_finishing or self._is_syncing
        if not is_busy and not self._write_back.unwritten(payload.size):
            self._is_finishing = True
            self._finish(payload)

    def _finish(self, payload: Payload) -> None:
        try:
            file = self._open_file()
        except OSError as error:
            self.closing = None
            self.fail(error)
            return

        def run() -> None:
            error: OSError | None = None
            try:
                self.payloads.finish(file, payload)
            except OSError as caught:
                error = caught
            self._reactor.call(lambda: self._on_finished(payload, error))

        self._pool.submit(run)

    def _on_finished(self, payload: Payload, error: OSError | None) -> None:
        if self.has_ended:
            return
        self._is_finishing = False
        if error is not None:
            self.closing = None
            self.fail(error)
            return
        self.is_whole = True
        self.received.on_synced(payload.size)
        self._service.on_whole(self.key)
        self.report()
        self._close_if_whole()

    # -- answers --------------------------------------------------------------------------------

    def report(self) -> None:
        """Acknowledge what the tree has; let the sender wait where it is too far ahead."""
        upstream = self._upstream
        if upstream is None:
            return
        own = Reached(self.received.position, self.received.synced)
        reached = self.progress.reached(own)
        if reached != self._acknowledged:
            self._acknowledged = reached
            upstream.acknowledge(reached)
        is_far = own.written - reached.written >= self._window
        if not self.is_whole and (unwritten := self._write_back.unwritten(own.written)):
            is_far = is_far or unwritten >= self._service.unwritten_max
        if is_far != self._is_paused:
            self._is_paused = is_far
            upstream.set_paused(is_far)

    def _close_if_whole(self) -> None:
        """Answer CLOSE once this node and all below it have everything."""
        if self.closing is None or not self.is_whole or self._has_reported:
            return
        if any(not each.is_closed for each in self._successors.values()):
            return
        self._has_reported = True
        if self._upstream is not None:
            self._upstream.closed([self._service.node_id, *self._nodes])

    def fail(self, error: Exception) -> None:
        """This payload cannot be received here: end, and tell the sender why."""
        upstream, self._upstream = self._upstream, None
        had_ended = self.has_ended
        self.end()
        if isinstance(error, OSError | DiskFull) and not had_ended:
            self._discard()
        if upstream is not None:
            upstream.failed(error)

    def _discard(self) -> None:
        """Give the room back."""
        try:
            self.payloads.discard(self.opening.id)
        except OSError as error:
            log.warning("data streaming: a file cannot be removed", extra={"error": str(error)})

    def end(self) -> None:
        """Nothing is received any more. The file stays; the service decides on it."""
        if self.has_ended:
            return
        self.has_ended = True
        for each in tuple(self._successors.values()):
            each.close()
        self._successors.clear()
        self._write_back.close()
        self.file = self._marks = None
        self._service.on_ended(self)
