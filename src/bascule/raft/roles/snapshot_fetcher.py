"""Fetching a snapshot in chunks from all members that have it."""

from __future__ import annotations

import zlib

from bascule.raft.config import NEVER
from bascule.raft.messages import Chunk, ChunkReply, ChunkRequest, RaftSnapshot, SnapshotOffer
from bascule.raft.roles.core import Core, SnapshotOrigin


class SnapshotFetcher:
    """Fetches the chunks of one offered snapshot.

    At most `chunk_requests_max` requests to each source are out. A source fails if it does not
    reply within two heartbeats, has another snapshot, or sends a chunk whose checksum is not the
    leader's. It gets no more requests until the leader's next offer.
    """

    __slots__ = ("_chunks", "_core", "_failed_sources", "_offer", "_requested")

    def __init__(self, core: Core, offer: SnapshotOffer) -> None:
        self._core = core
        self._offer = offer
        self._chunks: dict[int, bytes] = {}
        self._requested: dict[int, tuple[int, int]] = {}
        """Chunk number -> (source, tick) of the request that is out."""
        self._failed_sources: set[int] = set()

    @property
    def index(self) -> int:
        """The last index of the snapshot."""
        return self._offer.index

    @property
    def count(self) -> int:
        """Chunks of the snapshot."""
        return len(self._offer.checksums)

    @property
    def fetched(self) -> int:
        """Chunks that have arrived."""
        return len(self._chunks)

    @property
    def is_complete(self) -> bool:
        return len(self._chunks) == self.count

    def is_offer_of_same(self, offer: SnapshotOffer) -> bool:
        """Whether `offer` is of the snapshot that is being fetched."""
        mine = self._offer
        return (mine.index, mine.index_term, mine.checksums) == (
            offer.index, offer.index_term, offer.checksums,
        )  # fmt: skip

    def on_repeated_offer(self, offer: SnapshotOffer) -> None:
        """The leader offered the snapshot again; its sources may have changed."""
        self._offer = offer
        self._failed_sources.clear()
        self.request_chunks()

    def request_chunks(self) -> None:
        """Request missing chunks from all sources that have not failed, up to the window of
        each."""
        core = self._core
        if self.is_complete:
            return
        missing = [
            number
            for number in range(self.count)
            if number not in self._chunks and number not in self._requested
        ]
        busy = [source for source, _ in self._requested.values()]
        free = {
            source: core.config.chunk_requests_max - busy.count(source)
            for source in self._offer.sources
            if source not in self._failed_sources and source != core.id
        }
        while missing and any(room > 0 for room in free.values()):
            for source in free:
                if missing and free[source] > 0:
                    free[source] -= 1
                    number = missing.pop(0)
                    self._requested[number] = (source, core.now)
                    core.send(ChunkRequest(core.id, source, core.term, self.index, number))

    def expire_requests(self) -> None:
        """Give up requests that were not answered within two heartbeats, and request the chunks
        from other sources."""
        core = self._core
        late = core.now - 2 * core.config.heartbeat_ticks
        for number, (source, tick) in list(self._requested.items()):
            if tick <= late:
                self._fail_request(source, number)
        self.request_chunks()

    def next_expiry(self) -> int:
        """The tick at which the oldest request expires, or `NEVER`."""
        if not self._requested:
            return NEVER
        oldest = min(tick for _, tick in self._requested.values())
        return oldest + 2 * self._core.config.heartbeat_ticks

    def _fail_request(self, source: int, number: int) -> None:
        del self._requested[number]
        self._failed_sources.add(source)

    def on_chunk(self, message: ChunkReply) -> RaftSnapshot | None:
        """Take a chunk and add it to the next write. Returns the snapshot if it is complete."""
        number, data = message.number, message.data
        if message.index != self.index or not 0 <= number < self.count or number in self._chunks:
            return None
        request = self._requested.get(number)
        if data is None or zlib.crc32(data) != self._offer.checksums[number]:
            if request is not None and request[0] == message.source:
                self._fail_request(message.source, number)
                self.request_chunks()
            return None
        self._requested.pop(number, None)
        self._chunks[number] = data
        offer, core = self._offer, self._core
        core.persist_chunk(
            Chunk(offer.index, offer.index_term, offer.members, number, self.count, data)
        )
        if not self.is_complete:
            self.request_chunks()
            return None
        chunks = tuple(self._chunks[number] for number in range(self.count))
        snapshot = RaftSnapshot(offer.index, offer.index_term, offer.members, chunks)
        core.persist_snapshot(snapshot, SnapshotOrigin.FETCHED)
        return snapshot

    def abandon(self) -> None:
        """Delete the fetched chunks: another snapshot replaces this one, or this node leads now.

        If the log has committed the snapshot's index meanwhile, this node takes the same snapshot
        by itself. The fetched chunks then belong to that one and stay.
        """
        if self.index > self._core.log.commit:
            self._core.delete_chunks(self.index, self.count)
