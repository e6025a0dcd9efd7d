"""One payload that NATS clients send in chunks: this node is its primary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from crc32c import crc32c

from bascule.datastream.limits import DataStreamCounts
from bascule.datastream.ports import PayloadPlace
from bascule.datastream.protocol.chunk_messages import (
    ChunkHead,
    encode_answer,
    encode_reply,
    error_of,
)
from bascule.datastream.protocol.progress import NOTHING, Reached
from bascule.datastream.session import Session
from bascule.datastream.transport.reactor import Reactor
from bascule.errors import BasculeError, Broken, LimitExceeded, PayloadDamaged
from bascule.publish.acks import AckError
from bascule.record.payload_links import Payload
from bascule.wire.datastream.frames import PACKET_BYTES, DataHead
from bascule.wire.datastream.messages import OpenPayload

WAITING_MAX: Final = 4_096
"""Answers that a payload may owe; a chunk that wants one more is not taken."""
WAITING_BYTES: Final = 512
"""What an answer that is owed counts for, beside its subject."""
CLOSERS_MAX: Final = 16
"""Repeated last messages that are answered."""


class TakenChunk(NamedTuple):
    """A chunk, and how it is answered."""

    head: ChunkHead
    subject: str
    body: bytes
    reply: bytes
    publish: Callable[[bytes], None]
    cost: int
    """Bytes of memory that it counts for, until it is done with."""


class _OwedAnswer(NamedTuple):
    """To a chunk that is written here."""

    end: int
    """The tree has to have everything below it."""
    reply: bytes
    publish: Callable[[bytes], None]
    cost: int


class ChunkOwner(Protocol):
    """What a payload needs of the others; implemented by `chunked_payloads`."""

    @property
    def counts(self) -> DataStreamCounts: ...
    def link(
        self, place: PayloadPlace, opening: OpenPayload, payload: Payload, nodes: list[int]
    ) -> Future[dict[str, Any]]: ...
    def on_done(self, cost: int) -> None: ...
    def on_ended(self, payload: ChunkedPayload) -> None: ...


class ChunkedPayload:
    """The `Upstream` of its session. Belongs to the thread of the reactor."""

    def __init__(
        self, owner: ChunkOwner, reactor: Reactor, place: PayloadPlace, opening: OpenPayload
    ) -> None:
        self.opening = opening
        self.place = place
        self.session: Session | None = None
        self.used_at_ns = 0
        self._owner = owner
        self._reactor = reactor
        self._early: deque[TakenChunk] = deque()
        """Those that came before the session was ready."""
        self._waiting: deque[_OwedAnswer] = deque()
        """To those that the tree has not written yet."""
        self._closers: list[TakenChunk] = []
        self._looks = ((reactor.now_ns(), 0),) * 2
        """When it was looked at the last two times, and what had come by then."""
        self._reached = NOTHING
        self._is_paused = False
        """Whether no chunk is answered, since too much is in memory only."""
        self._has_ended = False
        self._failure: Exception | None = None

    @property
    def is_closing(self) -> bool:
        """Whether its publisher has said that this is all."""
        return bool(self._closers) or (
            self.session is not None and self.session.closing is not None
        )

    @property
    def has_ended(self) -> bool:
        """Whether all that wait have been answered. Nothing is received any more."""
        return self._has_ended

    @property
    def _position(self) -> int:
        return 0 if self.session is None else self.session.received.position

    def on_look(self, now_ns: int) -> None:
        """Called again and again."""
        self._looks = self._looks[1], (now_ns, self._position)

    def rate(self, now_ns: int) -> tuple[int, float]:
        """Since when, in nanoseconds, and how many new bytes a second have come since then."""
        began_ns, position = self._looks[0]
        since_ns = max(now_ns - began_ns, 1)
        return since_ns, (self._position - position) * 1e9 / since_ns

    def take(self, chunk: TakenChunk) -> None:
        """Write a chunk, or finish; later, if the session is not ready."""
        if self._has_ended:
            self._refuse(chunk, self._failure or Broken("the payload was given up"))
            self._owner.on_done(chunk.cost)
            return
        if self.session is None:
            self._early.append(chunk)
            return
        held = 0
        try:
            if chunk.head.size >= 0:
                held = self._close(chunk, self.session)
            else:
                held = self._write(chunk, self.session)
        except (BasculeError, OSError) as error:
            self._refuse(chunk, error)
        finally:
            self._owner.on_done(chunk.cost - held)

    def on_ready(self, session: Session) -> None:
        """The session is there: take what has come meanwhile."""
        self.session = session
        self._looks = ((self._reactor.now_ns(), session.received.position),) * 2
        session.report()
        while self._early and not self._has_ended:
            self.take(self._early.popleft())

    def _refuse(self, chunk: TakenChunk, error: Exception) -> None:
        self._owner.counts.nats_chunks_refused += 1
        position = -1 if self.session is None else self.session.received.position
        self._answer(chunk, next=position, error=error_of(error))

    def _answer(self, chunk: TakenChunk, *, next: int = -1, error: AckError | None = None) -> None:
        self._send(chunk.reply, chunk.publish, next=next, error=error)

    def _send(
        self,
        reply: bytes,
        publish: Callable[[bytes], None],
        *,
        next: int = -1,
        error: AckError | None = None,
    ) -> None:
        if reply:
            id, stream = self.opening.id, self.place.stream
            publish(encode_answer(reply, stream, id=id, next=next, error=error))

    def _write(self, chunk: TakenChunk, session: Session) -> int:
        """What memory is kept for its answer.

        Raises: PayloadGap, PayloadDamaged, LimitExceeded, Broken, DiskFull, OSError.
        """
        body, offset = memoryview(chunk.body), chunk.head.offset
        skipped = session.skip(DataHead(0, offset, 0, len(body)))
        if chunk.reply and len(self._waiting) >= WAITING_MAX:
            raise LimitExceeded("unanswered chunks", WAITING_MAX, len(self._waiting) + 1)
        whole = None
        if chunk.head.crc is not None:
            whole = crc32c(chunk.body)
            if whole != chunk.head.crc:
                where = f"checksum of {len(body)} bytes at {offset}"
                raise PayloadDamaged(
                    self.opening.id, where, f"{whole:08x}", f"{chunk.head.crc:08x}"
                )
        end = offset + len(body)
        for at in range(skipped, len(body), PACKET_BYTES):
            piece = body[at : at + PACKET_BYTES]
            crc = crc32c(piece) if whole is None or len(piece) < len(body) else whole
            try:
                session.write(offset + at, piece)
            except OSError as error:
                session.fail(error)
            else:
                head = DataHead(0, offset + at, crc, len(piece))
                session.on_packet(head, crc=crc, new_crc=crc)
            if session.has_ended:  # the disk has failed, and `failed` was called
                raise self._failure or Broken("the payload was given up")
        if not chunk.reply:
            return 0
        held = min(WAITING_BYTES + len(chunk.reply), chunk.cost)
        self._waiting.append(_OwedAnswer(end, chunk.reply, chunk.publish, held))
        self._answer_reached()
        return held

    def _close(self, chunk: TakenChunk, session: Session) -> int:
        """What memory is kept until it is answered.

        Raises: PayloadGap, PayloadDamaged, LimitExceeded, Broken.
        """
        if len(self._closers) >= CLOSERS_MAX:
            raise LimitExceeded("last messages of a payload", CLOSERS_MAX, CLOSERS_MAX + 1)
        size = chunk.head.size
        if self.session is not None and session.closing is None:
            self.opening.subject, self.opening.key = chunk.subject, chunk.head.key
            self.opening.headers = chunk.head.headers
        self._closers.append(chunk)
        try:
            crc = session.received.crc if chunk.head.crc is None else chunk.head.crc
            session.on_close(size, crc)
        except BasculeError:
            self._closers.remove(chunk)
            raise
        return chunk.cost

    def _answer_reached(self) -> None:
        written = self._reached.written
        while self._waiting and self._waiting[0].end <= written and not self._is_paused:
            owed = self._waiting.popleft()
            self._send(owed.reply, owed.publish, next=written)
            self._owner.on_done(owed.cost)

    # -- Upstream -------------------------------------------------------------------------------

    def acknowledge(self, reached: Reached) -> None:
        """Of the session: the tree has what is below."""
        self._reached = reached
        self._answer_reached()

    def set_paused(self, paused: bool) -> None:
        """Of the session. A NATS subscription cannot wait: publishers that want answers wait for
        those. What others send is in the file, and is forwarded from there."""
        self._is_paused = paused
        self._answer_reached()

    def closed(self, nodes: list[int]) -> None:
        """Of the session: `nodes` have the payload whole."""
        session = self.session
        assert session is not None
        assert session.closing is not None
        try:
            linking = self._owner.link(self.place, self.opening, session.closing, nodes)
        except BasculeError as error:
            self._end(error)
            return
        linking.add_done_callback(
            lambda done: self._reactor.call(partial(self._on_linked, done)) and None
        )

    def _on_linked(self, done: Future[dict[str, Any]]) -> None:
        if self._has_ended:
            return
        try:
            ack = done.result()
        except Exception as error:  # boundary: what the leader says goes to the publisher
            self._end(error)
            return
        for chunk in self._closers:
            if chunk.reply:
                chunk.publish(encode_reply(chunk.reply, dict(ack)))
            self._owner.on_done(chunk.cost)
        self._closers.clear()
        self._end(None)

    def failed(self, error: Exception) -> None:
        """Of the session: it has ended, or is another sender's now."""
        self.session, self._failure = None, error
        self._end(error)

    def leave(self) -> None:
        """Nobody goes on with it. What was received stays for a while."""
        session, self.session = self.session, None
        if session is not None:
            session.detach(self)
        self._end(Broken("nothing has come for long"))

    def refuse(self, error: Exception) -> None:
        """There is no session for it."""
        self._failure = error
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        """Answer all that wait, and forget it."""
        if self._has_ended:
            return
        self._has_ended = True
        session, self.session = self.session, None
        if session is not None:
            session.end()
        said = error_of(error or Broken("the payload is closed"))
        for owed in self._waiting:
            self._send(owed.reply, owed.publish, error=said)
            self._owner.on_done(owed.cost)
        for chunk in (*self._closers, *self._early):
            self._answer(chunk, error=said)
            self._owner.on_done(chunk.cost)
        self._waiting.clear()
        self._closers.clear()
        self._early.clear()
        self._owner.on_ended(self)
