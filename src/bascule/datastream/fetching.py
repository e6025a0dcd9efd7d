"""Gets a payload that is missing here from a node that has it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol

from crc32c import crc32c

from bascule.datastream.disk.paced_thread import PacedThread
from bascule.datastream.disk.write_back import WriteBack
from bascule.datastream.limits import DataStreamCounts
from bascule.datastream.ports import OnFetched, PayloadPlace
from bascule.datastream.protocol.received import ReceivedPayload
from bascule.datastream.transport.connection import PacketSink, StreamConnection, begin_connect
from bascule.datastream.transport.reactor import Reactor, ReactorTimer
from bascule.errors import (
    BasculeError,
    Broken,
    DiskFull,
    PayloadMissing,
    RemoteProtocolError,
    UnknownPayload,
)
from bascule.errors.plain import from_plain
from bascule.host.api import File
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import DataHead, decode_message, encode_message
from bascule.wire.datastream.messages import (
    ClosePayload,
    FetchPayload,
    PayloadFailed,
    PayloadFetched,
    StreamHello,
    check_version,
)

log = logging.getLogger(__name__)

ROOM_BYTES: Final = 4 << 20
"""Between two looks at the room on the disk."""
SILENCE_SECONDS_MAX: Final = 5.0


class FetchingOwner(Protocol):
    """What fetching needs of the node's data streaming; implemented by `service`."""

    @property
    def node_id(self) -> int: ...
    @property
    def counts(self) -> DataStreamCounts: ...
    @property
    def write_back_thread(self) -> PacedThread: ...
    @property
    def unwritten_max(self) -> int:
        """Bytes of one payload that may be in memory only."""
        ...

    def hello(self, node: int) -> StreamHello: ...
    def address_of(self, node: int) -> tuple[str, int]:
        """Raises: Broken."""
        ...


class Fetching:
    """Asks one node after the other. What has come from one is not asked of the next, if it was
    compared with the checksums of its blocks there; a node without them is trusted only with the
    whole."""

    def __init__(
        self,
        service: FetchingOwner,
        reactor: Reactor,
        pool: Executor,
        place: PayloadPlace,
        link: PayloadLink,
        payloads: PayloadFiles,
        sources: Sequence[int],
        on_ended: Callable[[Fetching, Exception | None], None],
        *,
        is_repair: bool = False,
    ) -> None:
        """`sources` are nodes that may have the payload, the best first. A repair replaces a
        damaged or lost file of this node."""
        self.place = place
        self.payload = link.payload
        self.link = link
        self.key = place.stream_id, place.partition, link.payload.id
        self.is_repair = is_repair
        self._offset = link.offset
        self.waiting: list[OnFetched] = []
        self.behind: list[Callable[[], None]] = []
        """Begin something else with the same id once this has ended: they would write to one file.
        """
        self._service = service
        self._reactor = reactor
        self._pool = pool
        self._payloads = payloads
        self._sources = list(sources)
        self._all_sources = tuple(sources)
        self._round_position = 0
        self._on_ended = on_ended
        self._received = ReceivedPayload(link.payload.id)
        self._file: File | None = None
        self._file_bytes = self._room_checked = 0
        """The size of the file, and what it was at the last look at the room on the disk."""
        self._write_back = WriteBack(
            reactor, service.write_back_thread, on_step=self._on_written_back
        )
        self._connection: StreamConnection | None = None
        self._head = DataHead(0, 0, 0, 0)
        self._write_at = 0
        self._new_crc = 0
        self._skip = 0
        self._heard = True
        self._is_paused = False
        """Whether nothing is read until the disk has written more."""
        self._whole: Payload | None = None
        """Once all has come."""
        self._timer: ReactorTimer | None = None
        self._has_ended = False
        self._is_compared = False
        """Whether the node that is asked now compares what it sends."""
        self._is_lost = is_repair and place.leader == service.node_id
        """Whether the leader has the record without the payload."""
        self._may_be_elsewhere = len(place.replicas) < place.replica_count
        """Whether a replica did not answer."""
        self._error: Exception = PayloadMissing(link.payload.id, "any replica that answers")

    @property
    def has_started(self) -> bool:
        """Whether it asks nodes; if not, it waits for a sender that has sent everything here."""
        return self._file is not None or self._has_ended

    @property
    def missing_bytes(self) -> int:
        """What it still adds to its file. One that waits for a sender adds nothing."""
        if self._file is None:
            return 0
        return max(self.payload.size - self._file_bytes, 0)

    def start(self, *, promised: int = 0) -> None:
        """Ask the first node. `promised` are the bytes that other fetches still add to the disk.

        Raises: DiskFull; Broken where the disk has room for this payload, but not beside those of
        the others; OSError. Nothing of the payload is left then.
        """
        try:
            self._file = self._payloads.create(self.payload.id)
            # A part of an earlier attempt has its room already: it is written over.
            self._file_bytes = self._room_checked = self._file.size()
            self._payloads.check_room(self.missing_bytes)
            self._check_promised(promised)
        except (BasculeError, OSError):
            self._discard()
            raise
        self._next()

    def _check_promised(self, promised: int) -> None:
        """Raises: Broken if this payload has no room beside others; OSError."""
        try:
            self._payloads.check_room(self.missing_bytes + promised)
        except DiskFull as error:
            raise Broken(
                f"payload {self.payload.id} of {self.payload.size} bytes has no room yet beside "
                f"{promised} bytes that are fetched of other payloads"
            ) from error

    def close(self) -> None:
        """Stop; nobody is told."""
        self._has_ended = True
        self._write_back.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_paused = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _next(self) -> None:
        """Ask the next node, or give up."""
        self._disconnect()
        if not self._is_compared:
            self._received = ReceivedPayload(self.payload.id)
            self._write_back.begin_anew()
        while self._has_sources():
            node = self._sources.pop(0)
            try:
                self._ask(node)
            except (OSError, BasculeError) as error:
                self._error, self._may_be_elsewhere = error, True
                continue
            return
        self._end(self._conclusion())

    def _has_sources(self) -> bool:
        """Whether there is a node to ask. All are asked again while that brings more: each may have
        another damaged block."""
        if not self._sources and self._received.position > self._round_position:
            self._round_position = self._received.position
            self._sources = list(self._all_sources)
        return bool(self._sources)

    def _conclusion(self) -> Exception:
        """Why no node has sent it: UnknownPayload if it is lost."""
        place = self.place
        if self._is_lost and not self._may_be_elsewhere:
            return UnknownPayload(place.stream, place.partition, self._offset)
        if isinstance(self._error, UnknownPayload):
            return PayloadMissing(self.payload.id, "the leader, and not all replicas answer")
        return self._error

    def _ask(self, node: int) -> None:
        """Raises: Broken, OSError."""
        connection = StreamConnection(
            self._reactor, begin_connect(self._service.address_of(node)), self
        )
        self._connection = connection
        connection.start(connecting=True)
        place = self.place
        fetch = FetchPayload(
            place.stream,
            place.partition,
            self.payload.id,
            self._offset,
            self._received.position,
        )
        self._is_compared = self._received.position > 0  # until it says that it does not
        connection.send(encode_message(frames.HELLO, self._service.hello(self._service.node_id)))
        connection.send(encode_message(frames.FETCH, fetch))
        self._heard = True
        self._timer = self._reactor.call_later(SILENCE_SECONDS_MAX, self._check)

    def _check(self) -> None:
        if not self._heard and not self._is_paused:
            self._fail(Broken("a node that has the payload is silent"))
            return
        self._heard = False
        self._timer = self._reactor.call_later(SILENCE_SECONDS_MAX, self._check)

    def _fail(self, error: Exception) -> None:
        """This node does not have it, or is gone. That the leader has lost it counts once all have
        been asked, and have answered."""
        if isinstance(error, UnknownPayload):
            self._is_lost = True
        elif not isinstance(error, PayloadMissing):
            self._may_be_elsewhere = True
        self._error = error
        if not self._has_ended:
            self._next()

    def _end(self, error: Exception | None) -> None:
        if not self._has_ended:
            self.close()
            self._on_ended(self, error)

    def _fail_here(self, error: Exception) -> None:
        """The disk of this node does not take the payload, whoever sends it."""
        if not self._has_ended:
            self.close()
            self._discard()  # before others are told: one of them may begin again
            self._on_ended(self, error)

    def _discard(self) -> None:
        """Give the room back."""
        self._file = None
        try:
            self._payloads.discard(self.payload.id)
        except OSError as error:
            log.warning("data streaming: a file cannot be removed", extra={"error": str(error)})

    # -- Handler --------------------------------------------------------------------------------

    def on_frame(self, kind: int, frame: bytearray) -> None:
        """An answer of the node."""
        self._heard = True
        if kind == frames.FETCHED:
            found = decode_message(frame, PayloadFetched)
            if Payload(found.id, found.size, found.crc) != self.payload:
                raise PayloadMissing(self.payload.id, f"a node that has {found.size} bytes of it")
            self._is_compared = found.is_compared
        elif kind == frames.CLOSE:
            close = decode_message(frame, ClosePayload)
            try:
                payload = self._received.check_whole(close.size, close.crc)
            except BasculeError:
                self._is_compared = False  # nothing of it counts
                raise
            self._disconnect()
            self._whole = payload
            self._finish_if_written_back()
        elif kind == frames.FAILED:
            failed = decode_message(frame, PayloadFailed)
            raise from_plain(failed.name, failed.text, failed.fields)
        elif kind == frames.ELSEWHERE:
            raise PayloadMissing(self.payload.id, "a node without a replica")
        elif kind == frames.HELLO:
            check_version(decode_message(frame, StreamHello))
        else:
            raise RemoteProtocolError(f"a frame of kind {kind:#04x} in answer to a fetch")

    def on_packet_begin(self, head: DataHead) -> PacketSink | None:
        self._skip = self._received.skip(head)
        self._head, self._write_at, self._new_crc = head, head.position, 0
        return self

    def write(self, piece: memoryview) -> None:
        """Bytes of the packet at hand."""
        self._heard = True
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        self._write_at += skipped
        new = piece[skipped:]
        if not new:
            return
        assert self._file is not None
        try:
            self._file.write_at(self._write_at, new)
        except OSError as error:
            self._fail_here(error)
            return
        self._write_at += len(new)
        self._new_crc = crc32c(new, self._new_crc)

    def end(self, crc: int) -> None:
        """The packet is whole. Raises: PayloadDamaged."""
        self._received.on_packet(self._head, crc=crc, new_crc=self._new_crc)
        self._service.counts.bytes_fetched += self._head.length
        self._look_for_room()
        if self._file is not None:
            self._write_back.advance(self._file, self._received.position)
            self._wait_for_disk()

    def _look_for_room(self) -> None:
        """End where too little of the disk would be left: others write to it meanwhile."""
        self._file_bytes = max(self._file_bytes, self._received.position)
        if self._file_bytes - self._room_checked >= ROOM_BYTES:
            self._room_checked = self._file_bytes
            try:
                self._payloads.check_room()
            except (DiskFull, OSError) as error:
                self._fail_here(error)

    def _wait_for_disk(self) -> None:
        """Read nothing while too much is not written."""
        is_far = self._write_back.unwritten(self._received.position) >= self._service.unwritten_max
        if self._connection is not None and is_far != self._is_paused:
            self._is_paused, self._heard = is_far, True
            if is_far:
                self._connection.pause()
            else:
                self._connection.resume()

    def _on_written_back(self, error: OSError | None) -> None:
        if error is not None:
            self._fail_here(error)
        elif self._file is not None and not self._has_ended:
            self._write_back.advance(self._file, self._received.position)
            self._wait_for_disk()
            self._finish_if_written_back()

    def on_malformed(self, error: RemoteProtocolError) -> None:
        if self._connection is not None:
            self._connection.close(error)

    def on_drained(self) -> None:
        """Nothing more is to be sent."""

    def on_closed(self, error: Exception | None) -> None:
        if error is not None and not self._has_ended:
            self._connection = None
            self._fail(error)

    def _finish_if_written_back(self) -> None:
        """The sync at the end begins after the last step, which may be told of an error instead."""
        payload, file = self._whole, self._file
        if payload is None or file is None or self._write_back.unwritten(payload.size):
            return
        self._whole = None

        def run() -> None:
            error: Exception | None = None
            try:
                self._keep(file, payload)
            except (OSError, BasculeError) as caught:
                error = caught
            self._reactor.call(lambda: self._end(None) if error is None else self._fail_here(error))

        self._pool.submit(run)

    def _keep(self, file: File, payload: Payload) -> None:
        """The payload is whole. On a thread of the pool. Raises: OSError, BasculeError."""
        if file.size() > payload.size:  # of an earlier attempt
            file.truncate(payload.size)
        if self.is_repair:
            assert self.place.store is not None
            self.place.store.repair(file, self.link)
        else:
            self._payloads.finish(file, payload)
        sums = self._received.sums.sums(payload)
        if sums is not None:
            self._payloads.save_sums(payload.id, sums)
