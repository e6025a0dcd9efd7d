"""Sends one payload, from any replica of its partition to all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

from crc32c import crc32c

from bascule.errors import (
    BasculeError,
    Broken,
    Closed,
    DiskFull,
    Indeterminate,
    LimitExceeded,
    PayloadDamaged,
    PayloadGap,
    RemoteProtocolError,
    UnknownStream,
)
from bascule.payload_connection.ack import PayloadAck
from bascule.payload_connection.connection import PayloadConnection
from bascule.payload_connection.packet import Content, Packet
from bascule.payload_connection.places import Answers, Places
from bascule.wire.datastream import frames
from bascule.wire.datastream.checksums import combine
from bascule.wire.datastream.frames import (
    PACKET_BYTES,
    decode_ack,
    decode_message,
    encode_data_head,
    encode_message,
)
from bascule.wire.datastream.messages import (
    ClosePayload,
    OpenPayload,
    PayloadClosed,
    PayloadOpened,
    ReplicaAddress,
    ReplicasElsewhere,
)

CONNECT_SECONDS_MAX: Final = 3.0
RETRY_SECONDS: Final = 0.05
WATCH_SECONDS: Final = 1.0
SILENT_WATCHES_MAX: Final = 4
"""A node says something each second. One that has said nothing at so many looks is taken for lost.
Looks are counted, not time: the program may have kept the event loop busy in between."""
OnProgress: TypeAlias = Callable[[int], None]
"""Called with the bytes that every node of the tree has written."""


class PayloadWriter:
    """Use it as `async with`; the end of the block closes the payload, an error abandons it.

    What is not acknowledged yet is kept, at most one window of it. Where the node that is sent to
    goes away, another replica says how far the payload is there, and the rest is sent to that one.
    """

    def __init__(
        self,
        bootstrap: Callable[[], str],
        opening: OpenPayload,
        *,
        timeout: float,
        on_progress: OnProgress | None = None,
    ) -> None:
        """`timeout`: how long no progress is made before it fails, in seconds."""
        self.id = opening.id
        self.route: tuple[tuple[int, tuple[int, ...]], ...] = ()
        """Each node that forwards, and those that it forwards to; known once it is open."""
        self.why = ""
        """Why this route was chosen."""
        self.ack: PayloadAck | None = None
        """Once it is closed."""
        self._bootstrap = bootstrap
        self._opening = opening
        self._timeout = timeout
        self._on_progress = on_progress
        self._places: Places | None = None
        self._connection: PayloadConnection | None = None
        self._listening: asyncio.Task[None] | None = None
        self._window = PACKET_BYTES
        self._packets: deque[Packet] = deque()
        """Those that are not acknowledged."""
        self._partial = bytearray()
        self._written = 0
        """The end of the last packet."""
        self._crc = 0
        self._acknowledged = 0
        self._sent = 0
        """Where the next packet begins that was not sent over the connection at hand."""
        self._skip_to = 0
        """What nodes have from before this writer: not sent again."""
        self._skipped_crc = 0
        """CRC-32C of that."""
        self._whole_size = -1
        """The size of the payload, where a node has it whole; -1: none is known to have."""
        self._synced = 0
        self._sync_wanted = 0
        """Where the last `sync` was asked for."""
        self._head = ""
        """The address of the first node of the route that was asked for."""
        self._replanned = ""
        """Why that route was given up."""
        self._progress_at = 0.0
        self._has_sent_close = False
        self._is_repeated = False
        """Whether the last node has brought nothing forward."""
        self._last_error: Exception | None = None
        self._changed = asyncio.Event()
        self._lost: Exception | None = None
        self._closed: dict[str, Any] | None = None
        self._attempt = 0
        self._silent_watches = 0
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PayloadWriter:
        self._progress_at = asyncio.get_running_loop().time()
        await self._connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort()

    @property
    def position(self) -> int:
        """Bytes written so far. After a resumption it begins with what the nodes have."""
        return self._written + len(self._partial)

    @property
    def acknowledged(self) -> int:
        """Bytes that every node of the tree has written."""
        return self._acknowledged

    @property
    def resume_position(self) -> int:
        """What the nodes have had of this payload when it was opened: an earlier writer with the
        same id has sent it. The content has to be written from the beginning; it is compared, and
        not sent again."""
        return self._skip_to

    async def write(self, data: Content) -> None:
        """Send bytes; waits while too many are not acknowledged. The memory may be used again.

        Where it is cancelled, `position` says how much it has taken: that is kept, and sent by the
        next call.

        Raises: Broken if no node takes them within the timeout; PayloadDamaged if what was sent
        before under this id has other content; DiskFull.
        """
        if self._closed is not None or self._attempt < 0:
            raise Closed(f"payload {self.id} is closed")
        view = memoryview(data).cast("B")
        while len(view):
            if not self._partial and len(view) >= PACKET_BYTES:
                await self._send(bytes(view[:PACKET_BYTES]))
                view = view[PACKET_BYTES:]
                continue
            room = PACKET_BYTES - len(self._partial)
            self._partial += view[:room]
            view = view[room:]
            if len(self._partial) == PACKET_BYTES:
                await self._send_partial()

    async def write_from(
        self, source: str | Path | Iterable[Content] | AsyncIterable[Content]
    ) -> None:
        """Send a file, or what an iterator gives. Raises: as `write`; OSError."""
        if isinstance(source, str | Path):
            with await asyncio.to_thread(open, source, "rb") as file:
                while data := await asyncio.to_thread(file.read, PACKET_BYTES):
                    await self.write(data)
        elif isinstance(source, AsyncIterable):
            async for piece in source:
                await self.write(piece)
        else:
            for piece in source:
                await self.write(piece)

    async def sync(self) -> None:
        """Return once what was written is on the disks of all nodes of the tree. Raises: as
        `write`."""
        await self._send_partial()
        self._sync_wanted = self._written
        await self._ask_sync()
        await self._until(lambda: self._synced >= self._written)

    async def close(self) -> PayloadAck:
        """Have the record of the payload appended; return its ack.

        Raises: as `write`; PublishRejected if the record is refused; Indeterminate if it may or may
        not be stored: open a payload with the same id again, and close it.
        """
        if self.ack is not None:
            return self.ack
        if self._attempt < 0:
            raise Closed(f"payload {self.id} was abandoned")
        try:
            await self._send_partial()
            await self._finish()
        finally:
            self._hang_up()
        assert self._closed is not None
        self.ack = PayloadAck.from_json(self._closed)
        return self.ack

    def abort(self) -> None:
        """Abandon it. The nodes drop it after a while; a writer with the same id may go on."""
        self._attempt = -1
        self._hang_up()

    def _hang_up(self) -> None:
        self._stop_listening()
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._packets.clear()

    def _stop_listening(self) -> None:
        for task in (self._listening, self._watching):
            if task is not None:
                task.cancel()
        self._listening = self._watching = None

    # -- sending --------------------------------------------------------------------------------

    async def _send_partial(self) -> None:
        data, self._partial = bytes(self._partial), bytearray()
        if data:
            await self._send(data)

    async def _send(self, data: Content) -> None:
        crc = crc32c(data)
        packet = Packet(self._written, data, crc, self._crc)
        self._crc = combine(self._crc, crc, len(data))
        self._written += len(data)
        self._compare_skipped(packet)
        self._packets.append(packet)
        await self._until(lambda: self._written - self._acknowledged <= self._window)
        await self._transmit(packet)

    def _compare_skipped(self, packet: Packet) -> None:
        """Compare what is not sent with what the nodes have. Raises: PayloadDamaged."""
        end = self._skip_to
        if packet.position < end <= self._written:
            data = memoryview(packet.data)[: end - packet.position]
            self._check_crc(end, combine(packet.crc_before, crc32c(data), len(data)))
        self._check_end()

    def _check_end(self) -> None:
        """Nothing can be added to a payload that is whole. Raises: PayloadDamaged."""
        if 0 <= self._whole_size < self._written:
            found, least = str(self._whole_size), f"{self._written} or more"
            raise PayloadDamaged(self.id, "size", found, least)

    def _check_crc(self, position: int, crc: int) -> None:
        if crc != self._skipped_crc:
            where = f"checksum of the first {position} bytes"
            raise PayloadDamaged(self.id, where, f"{self._skipped_crc:08x}", f"{crc:08x}")

    async def _transmit(self, packet: Packet) -> None:
        """Send a packet, unless the nodes have it from before this writer."""
        if packet.end <= self._skip_to:
            self._sent = self._written
            return
        await self._send_rest()

    async def _send_rest(self) -> None:
        """Send what was not sent yet; to another node where this one is gone. Raises: as
        `_recover`."""
        connection = self._connection
        if connection is None or self._lost is not None:
            await self._recover()
            return
        try:
            await self._send_kept(connection)
        except Broken as error:
            self._lose(error)
            await self._recover()

    async def _send_kept(self, connection: PayloadConnection) -> None:
        """Send what was not sent over this connection: a call that was cancelled may have left
        more than one packet. Raises: Broken."""
        for packet in tuple(self._packets):
            if packet.position >= self._sent:
                await self._send_whole(connection, packet.encode_head(), packet.data)
                self._sent = packet.end

    async def _send_whole(self, connection: PayloadConnection, *parts: Content) -> None:
        """Send a frame. Where only a part of it may have been sent nothing can follow on this
        connection, and its node has done nothing wrong. Raises: Broken."""
        try:
            for part in parts:
                await connection.send(part)
        except Broken:
            raise
        except BaseException:  # it was cancelled
            self._stop_listening()
            connection.close()
            self._connection = None
            self._lose(Broken("a frame was cut off"))
            raise

    async def _ask_sync(self) -> None:
        """Ask for a sync of what was sent."""
        connection = self._connection
        if connection is None or self._lost is not None:
            await self._recover()  # which asks again
            return
        try:
            await self._send_kept(connection)
            sync = encode_data_head(self._sync_wanted, 0, 0, frames.SYNC)
            await self._send_whole(connection, sync)
        except Broken as error:
            self._lose(error)

    async def _finish(self) -> None:
        """Send CLOSE until it is answered. Raises: as `close`."""
        began = asyncio.get_running_loop().time()
        while self._closed is None:
            try:
                await self._send_rest()
                assert self._connection is not None
                close = ClosePayload(self._written, self._crc)
                self._has_sent_close = True
                await self._connection.send(encode_message(frames.CLOSE, close))
                await self._until_closed()
            except (Broken, DiskFull, LimitExceeded, PayloadGap) as error:
                self._lose(error)
                if not self._has_sent_close:
                    raise
                if self._without_progress(began) > 2 * self._timeout:
                    raise Indeterminate(
                        f"the record of payload {self.id} may or may not be stored: {error}"
                    ) from error

    async def _until_closed(self) -> None:
        """Wait for the answer to CLOSE; the bytes before it may still be on their way. Raises:
        Broken; what a node says."""
        began = asyncio.get_running_loop().time()
        while self._closed is None:
            if self._lost is not None:
                raise self._lost
            if self._without_progress(began) > self._timeout:
                raise Broken(f"no answer to the end of the payload for {self._timeout} s")
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(WATCH_SECONDS, self._timeout)):
                    await self._changed.wait()

    def _note_progress(self) -> None:
        self._progress_at = asyncio.get_running_loop().time()

    def _without_progress(self, began: float) -> float:
        """For how many seconds nothing has gone on, since `began` at most."""
        return asyncio.get_running_loop().time() - max(began, self._progress_at)

    def _check_progress(self, began: float) -> None:
        """Raises: Broken if nothing has gone on for too long, since `began` at least."""
        if self._without_progress(began) > self._timeout:
            last = self._lost or self._last_error or "the nodes are silent"
            raise Broken(f"payload {self.id}: no progress for {self._timeout} s: {last}")

    async def _until(self, is_met: Callable[[], bool]) -> None:
        """Wait for acknowledgements. Raises: Broken without progress; what a node says."""
        began = asyncio.get_running_loop().time()
        while not is_met():
            self._check_progress(began)
            if self._lost is not None:
                await self._recover()
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    # -- connections ----------------------------------------------------------------------------

    async def _connect(self) -> None:
        """OpenPayload the payload at a replica. A node that does not know the stream may have just
        started; if no node knows it at the beginning there is none. Raises: Broken; what a node
        says."""
        if self._places is None:
            self._places = Places(self._bootstrap())
            self._opening.prefers_follower = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while True:
            order = self._places.order
            answers = Answers(order)
            for address in order:
                may_begin_elsewhere = self._opening.prefers_follower or bool(self._opening.route)
                try:
                    elsewhere = await self._open_at(address)
                except (Broken, DiskFull, LimitExceeded, PayloadGap, UnknownStream) as caught:
                    # A node of a release before says so that it receives too many payloads.
                    answers.on_failed(address, caught)
                    self._on_failed(address, caught)
                    continue
                if elsewhere is None:
                    return
                if not may_begin_elsewhere or len(elsewhere) != 1:
                    answers.on_elsewhere(elsewhere)  # else there may be more replicas
                break
            error = answers.last
            if answers.is_full or (answers.is_unknown and self._attempt == 0):
                raise error
            if loop.time() > deadline:
                if answers.full is not None:
                    raise answers.full  # others are lost
                raise Broken(f"no replica takes payload {self.id}: {error}") from error
            await asyncio.sleep(RETRY_SECONDS)

    def _on_failed(self, address: str, error: Exception) -> None:
        """A node does not take the payload, or not any more."""
        assert self._places is not None
        self._last_error = error
        self._places.on_failed(address)
        if self._opening.route and address == self._head:
            self._replanned = f"the route cannot begin at its first node ({error}); "
            self._opening.route, self._opening.topology = [], "auto"

    async def _open_at(self, address: str) -> list[ReplicaAddress] | None:
        """Open the payload there; None, or the nodes to ask instead. Raises: Broken; what the node
        says."""
        assert self._places is not None
        connection = await PayloadConnection.connect(address, timeout=CONNECT_SECONDS_MAX)
        try:
            self._opening.attempt = self._attempt
            await connection.send(encode_message(frames.OPEN, self._opening))
            opened = await self._answer(connection)
            if isinstance(opened, ReplicasElsewhere):
                if len(opened.replicas) == 1:  # the one to begin at
                    self._opening.prefers_follower = False
                    self._head = opened.replicas[0].address if self._opening.route else ""
                self._places.learn(opened.replicas, leader_last=True)
                self._opening.partition = opened.partition
                connection.close()
                return opened.replicas
            self._check(opened)
        except BaseException:
            connection.close()
            raise
        self._attempt += 1
        self._opening.partition = opened.partition
        self._opening.begins_anew = self._opening.prefers_follower = False
        self._places.learn(opened.replicas, leader_last=True)
        self._places.prefer(address)
        self.route = tuple((node, tuple(successors)) for node, successors in opened.route)
        self.why, self._window = self._replanned + opened.why, opened.window
        if self._opening.route:
            self._head = address
        self._connection, self._lost, self._sent = connection, None, 0
        self._silent_watches = 0
        self._listening = asyncio.create_task(self._listen(connection))
        self._watching = asyncio.create_task(self._watch(connection))
        return None

    async def _answer(self, connection: PayloadConnection) -> PayloadOpened | ReplicasElsewhere:
        """What a node says to OPEN. It may read what it has first, and says that it is alive.
        Raises: Broken; what the node says."""
        while True:
            try:
                async with asyncio.timeout(WATCH_SECONDS * SILENT_WATCHES_MAX):
                    kind, frame = await connection.next_frame()
            except TimeoutError:
                raise Broken(f"{connection.address} does not answer") from None
            if kind == frames.OPENED:
                return decode_message(frame, PayloadOpened)
            if kind == frames.ELSEWHERE:
                return decode_message(frame, ReplicasElsewhere)
            if kind != frames.ACK:
                raise RemoteProtocolError(f"a frame of kind {kind:#04x}")

    def _check(self, opened: PayloadOpened) -> None:
        """Compare what a node has with what was sent. Raises: PayloadDamaged, PayloadGap."""
        if opened.is_whole:
            self._whole_size = opened.position
            self._check_end()
        if opened.position > self._written:
            # From before this writer: compared once as much has been written.
            if opened.position > self._skip_to:
                self._skip_to, self._skipped_crc = opened.position, opened.crc
            return
        if opened.position < self._acknowledged:
            raise PayloadGap(self.id, self._acknowledged, opened.position)
        found = self._crc_at(opened.position)
        if found is not None and found != opened.crc:
            where = f"checksum of the first {opened.position} bytes"
            raise PayloadDamaged(self.id, where, f"{opened.crc:08x}", f"{found:08x}")

    def _crc_at(self, position: int) -> int | None:
        if position == self._written:
            return self._crc
        for packet in self._packets:
            if packet.position == position:
                return packet.crc_before
        return None

    async def _recover(self) -> None:
        """Go on at another node, with what is not acknowledged. Raises: Broken."""
        began = asyncio.get_running_loop().time()
        while True:
            self._check_progress(began)
            self._drop_connection()
            if self._is_repeated:
                await asyncio.sleep(RETRY_SECONDS)
            self._is_repeated = True
            await self._connect()
            connection = self._connection
            assert connection is not None
            try:
                await self._send_kept(connection)
                if self._sync_wanted > self._synced:
                    sync = encode_data_head(self._sync_wanted, 0, 0, frames.SYNC)
                    await self._send_whole(connection, sync)
            except Broken as error:
                self._lose(error)
                continue
            return

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._on_failed(self._connection.address, self._lost or Broken("it is lost"))
            self._connection.close()
            self._connection = None
        self._stop_listening()

    def _lose(self, error: Exception) -> None:
        if self._lost is None:
            self._lost = error
        self._changed.set()

    async def _listen(self, connection: PayloadConnection) -> None:
        """Take what the node says until the payload is closed."""
        try:
            while True:
                kind, frame = await connection.next_frame()
                if connection is not self._connection:
                    return
                self._silent_watches = 0
                if kind == frames.ACK:
                    self._on_ack(*decode_ack(frame))
                elif kind == frames.CLOSED:
                    self._closed = decode_message(frame, PayloadClosed).ack
                    self._changed.set()
                    return
                else:
                    raise RemoteProtocolError(f"a frame of kind {kind:#04x}")
        except BasculeError as error:
            if connection is self._connection:
                self._lose(error)

    async def _watch(self, connection: PayloadConnection) -> None:
        """End the connection of a node that is silent. Who sends to it is woken by that."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self._silent_watches += 1
            if self._silent_watches > SILENT_WATCHES_MAX:
                self._lose(Broken(f"{connection.address} is silent"))
                connection.close()
                return

    def _on_ack(self, written: int, synced: int) -> None:
        if written > self._acknowledged or synced > self._synced:
            self._note_progress()
            self._is_repeated = False
        self._synced = max(self._synced, synced)
        if written > self._acknowledged:
            self._acknowledged = written
            packets = self._packets
            while packets and packets[0].end <= written:
                packets.popleft()
            if self._on_progress is not None:
                self._on_progress(written)
        self._changed.set()
