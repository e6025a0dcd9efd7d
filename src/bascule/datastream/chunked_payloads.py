"""The payloads that NATS clients send in chunks to the partitions that this node leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from bascule.datastream.chunked_payload import ChunkedPayload, TakenChunk
from bascule.datastream.inbound import HEADER_OVERHEAD_BYTES, PayloadReceiver
from bascule.datastream.left_sessions import LeftSessions
from bascule.datastream.ports import PayloadCluster, PayloadPlace
from bascule.datastream.protocol.chunk_messages import (
    busy,
    encode_answer,
    error_of,
    read_chunk_head,
)
from bascule.datastream.protocol.routes import PlannedRoute
from bascule.datastream.session import Key, Session, opened_again
from bascule.datastream.transport.reactor import Reactor
from bascule.errors import BasculeError, LimitExceeded, RemoteProtocolError
from bascule.host.api import Clock
from bascule.model import PartitionBy
from bascule.publish.payload_chunks import PayloadChunk
from bascule.publish.unstamped_batch import Replica
from bascule.record.payload_links import Payload
from bascule.wire.datastream.messages import OpenPayload

QUEUE_BYTES_MAX: Final = 64 << 20
"""Chunks that have come and are not written yet, and answers that are owed; further ones are not
taken."""
CHUNK_OVERHEAD_BYTES: Final = 1_024
"""What a chunk counts for beside its bytes and headers."""
PAYLOADS_MAX: Final = 512
"""Payloads that come in chunks at once; each has a file, and a connection to each successor."""
YIELD_SECONDS: Final = 1.0
"""One that was silent for so long gives way to a new one. Its next chunk takes it up again."""
SLOW_BYTES_PER_S: Final = 64 << 10
"""So does the slowest one, if it gets less: whoever keeps all places has to send 32 MiB/s."""
IDLE_SECONDS_MAX: Final = 60.0
"""One that was silent for so long is given up; its file goes as that of any unfinished payload."""
LEFT_MAX: Final = 512
"""Unfinished payloads of which the bytes are kept for their publishers; the oldest is removed."""
LOOK_SECONDS: Final = 5.0


class ChunkService(PayloadReceiver, Protocol):
    """What it needs of the node's data streaming; implemented by `service`."""

    @property
    def node_id(self) -> int: ...


class ChunkedPayloads:
    """The reading thread of NATS calls `take`; the rest belongs to the thread of the reactor."""

    def __init__(
        self, service: ChunkService, cluster: PayloadCluster, reactor: Reactor, clock: Clock
    ) -> None:
        self.counts = service.counts
        self._service = service
        self._cluster = cluster
        self._reactor = reactor
        self._clock = clock
        self._payloads: dict[Key, ChunkedPayload] = {}
        """The longest silent one first."""
        self._left = LeftSessions(service.counts)
        self._bytes_taken = 0
        """By `take` so far; only the reading thread writes it."""
        self._bytes_done = 0
        """Of these; only the reactor writes it."""
        self._is_looking = False

    def take(
        self, replica: Replica, chunks: Sequence[PayloadChunk], publish: Callable[[bytes], None]
    ) -> None:
        """Take chunks of one partition. It never waits: what exceeds the memory for them is not
        taken, and their publishers are told."""
        stream = replica.definition.name
        taken: list[tuple[PayloadChunk, int]] = []
        for chunk in chunks:
            cost = len(chunk.body) + len(chunk.block) + CHUNK_OVERHEAD_BYTES
            cost += HEADER_OVERHEAD_BYTES * chunk.block.count(b"\r\n")
            queued = self._bytes_taken - self._bytes_done
            if queued and queued + cost > QUEUE_BYTES_MAX:
                self.counts.nats_chunks_dropped += 1
                if chunk.reply:
                    error = busy("this node has too many that are not written yet")
                    publish(encode_answer(chunk.reply, stream, error=error))
                continue
            self._bytes_taken += cost
            taken.append((chunk, cost))
        if taken:
            self._reactor.call(lambda: self._receive(replica, taken, publish))

    # -- on the thread of the reactor -----------------------------------------------------------

    def _receive(
        self,
        replica: Replica,
        chunks: Sequence[tuple[PayloadChunk, int]],
        publish: Callable[[bytes], None],
    ) -> None:
        definition = replica.definition
        try:
            place = self._cluster.place_of(definition.name, replica.index)
        except BasculeError:
            place = None  # the stream is being deleted
        if place is None or place.store is None or place.leader != self._service.node_id:
            # Each node that leads a partition gets the messages of all of them.
            self._bytes_done += sum(cost for _, cost in chunks)
            return
        for chunk, cost in chunks:
            self.counts.nats_chunks += 1
            try:
                self._route(place, replica, chunk, cost, publish)
            except BasculeError as error:
                self._bytes_done += cost
                self.counts.nats_chunks_refused += 1
                if chunk.reply:
                    answer = encode_answer(chunk.reply, place.stream, error=error_of(error))
                    publish(answer)

    def _route(
        self,
        place: PayloadPlace,
        replica: Replica,
        chunk: PayloadChunk,
        cost: int,
        publish: Callable[[bytes], None],
    ) -> None:
        """Give a chunk to its payload. Raises: RemoteProtocolError, LimitExceeded."""
        config = replica.definition.config
        if config.partition_by is PartitionBy.GROUP and config.partitions > 1:
            raise RemoteProtocolError(
                "NATS distributes the chunks of a payload over the partitions of this stream"
            )
        head = read_chunk_head(chunk.block, len(chunk.body))
        subject = chunk.subject.decode("utf-8", "replace")
        key = place.stream_id, place.partition, head.id
        payload = self._payloads.pop(key, None)
        if payload is not None and not payload.is_closing:
            if payload.place.store is place.store:
                payload.place = place  # its replicas may be others now
            else:
                payload.refuse(opened_again(head.id))
                payload = None
        if payload is None:
            self._make_room()
            # Its key and headers are those of the last message: nothing else is kept of a chunk.
            opening = OpenPayload(head.id, place.stream, place.partition, subject)
            payload = ChunkedPayload(self, self._reactor, place, opening)
            self._payloads[key] = payload
            self._open(payload)
        else:
            self._payloads[key] = payload
        self.counts.nats_payloads = len(self._payloads)
        payload.used_at_ns = self._clock.monotonic_ns()
        payload.take(TakenChunk(head, subject, chunk.body, chunk.reply, publish, cost))

    def _make_room(self) -> None:
        """Where there are too many, let the longest silent payload go, or the slowest.

        Raises: LimitExceeded.
        """
        if len(self._payloads) < PAYLOADS_MAX:
            return
        now_ns = self._clock.monotonic_ns()
        for payload in self._payloads.values():
            if now_ns - payload.used_at_ns < YIELD_SECONDS * 1e9:
                break
            if not payload.is_closing:
                self._leave(payload)
                return
        slowest = self._slowest(now_ns)
        if slowest is None:
            raise LimitExceeded("payloads in chunks", PAYLOADS_MAX, len(self._payloads) + 1)
        self._leave(slowest)

    def _slowest(self, now_ns: int) -> ChunkedPayload | None:
        """The one that gets the fewest bytes, if that is too few; new ones have a second."""
        found, least = None, float(SLOW_BYTES_PER_S)
        for payload in self._payloads.values():
            if payload.session is None or payload.is_closing:
                continue
            since_ns, rate = payload.rate(now_ns)
            if since_ns >= YIELD_SECONDS * 1e9 and rate < least:
                found, least = payload, rate
        return found

    def _open(self, payload: ChunkedPayload) -> None:
        """Begin, or go on with what is here of it."""

        def ready(session: Session | None, error: Exception | None) -> None:
            if session is None:
                assert error is not None
                payload.refuse(error)
                return
            if payload.has_ended:
                return  # it has given way to another one while its part was read
            try:
                planned = self._service.plan(payload.place, payload.opening, is_node=False)
                assert isinstance(planned, PlannedRoute)
                session.attach(payload, payload.place, payload.opening, planned.route)
            except (BasculeError, OSError) as caught:
                session.detach(payload)
                payload.refuse(caught)
                return
            payload.on_ready(session)

        self._service.prepare_session(
            payload.place, payload.opening, ready, is_wanted=lambda: not payload.has_ended
        )
        if not self._is_looking:
            self._is_looking = True
            self._reactor.call_later(LOOK_SECONDS, self._look)

    def _leave(self, payload: ChunkedPayload) -> None:
        """Give up a payload. Its bytes stay for a while, unless there are many of such."""
        session = payload.session
        payload.leave()
        if session is not None:
            self._left.add(session, count_max=LEFT_MAX)

    def _look(self) -> None:
        """Give up the payloads that were silent for too long."""
        self._is_looking = False
        now_ns = self._clock.monotonic_ns()
        for payload in tuple(self._payloads.values()):
            if now_ns - payload.used_at_ns <= IDLE_SECONDS_MAX * 1e9:
                break  # so are all behind it
            if not payload.is_closing:
                self.counts.nats_expired += 1
                self._leave(payload)
        for payload in self._payloads.values():
            payload.on_look(now_ns)
        if self._payloads:
            self._is_looking = True
            self._reactor.call_later(LOOK_SECONDS, self._look)

    # -- ChunkOwner -----------------------------------------------------------------------------

    def link(
        self, place: PayloadPlace, opening: OpenPayload, payload: Payload, nodes: list[int]
    ) -> Future[dict[str, Any]]:
        """Have the record appended."""
        return self._service.link(place, opening, payload, nodes)

    def on_done(self, cost: int) -> None:
        """So many bytes of chunks, and of answers that were owed, are not needed any more."""
        self._bytes_done += cost

    def on_ended(self, payload: ChunkedPayload) -> None:
        """Of a payload."""
        key = payload.place.stream_id, payload.place.partition, payload.opening.id
        if self._payloads.get(key) is payload:
            del self._payloads[key]
        self.counts.nats_payloads = len(self._payloads)
