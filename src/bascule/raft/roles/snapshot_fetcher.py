"""Fetching a snapshot: its chunks, from everyone who has it, a few at a time from each."""

from __future__ import annotations

import zlib

from bascule.raft.config import NEVER
from bascule.raft.messages import Chunk, ChunkReply, ChunkRequest, Snapshot, SnapshotOffer
from bascule.raft.roles.core import Core, Purpose


class Collector:
    """The snapshot that is being fetched.

    A source that does not answer within a heartbeat, has another snapshot, or sends a chunk that
    is not the leader's, is asked nothing more until the leader's next offer names it again.
    """

    __slots__ = ("_asked", "_chunks", "_core", "_offer", "_silent")

    def __init__(self, core: Core, offer: SnapshotOffer) -> None:
        self._core = core
        self._offer = offer
        self._chunks: dict[int, bytes] = {}
        self._asked: dict[int, tuple[int, int]] = {}
        """Chunk number -> (source, tick) of the request that is out."""
        self._silent: set[int] = set()

    @property
    def index(self) -> int:
        return self._offer.index

    @property
    def count(self) -> int:
        return len(self._offer.checksums)

    @property
    def fetched(self) -> int:
        """Chunks that are here."""
        return len(self._chunks)

    @property
    def is_complete(self) -> bool:
        return len(self._chunks) == self.count

    def fits(self, offer: SnapshotOffer) -> bool:
        """Whether `offer` is of the same snapshot."""
        mine = self._offer
        return (mine.index, mine.index_term, mine.checksums) == (
            offer.index, offer.index_term, offer.checksums,
        )  # fmt: skip

    def renew(self, offer: SnapshotOffer) -> None:
        """The leader offers it again and says who has it now."""
        self._offer = offer
        self._silent.clear()
        self.ask()

    def ask(self) -> None:
        """Ask every source that answers for what nobody was asked for, up to its window."""
        core = self._core
        if self.is_complete:
            return
        missing = [
            number
            for number in range(self.count)
            if number not in self._chunks and number not in self._asked
        ]
        out = [source for source, _ in self._asked.values()]
        free = {
            source: core.config.chunk_requests_max - out.count(source)
            for source in self._offer.sources
            if source not in self._silent and source != core.id
        }
        while missing and any(room > 0 for room in free.values()):
            for source in free:
                if missing and free[source] > 0:
                    free[source] -= 1
                    number = missing.pop(0)
                    self._asked[number] = (source, core.now)
                    core.send(ChunkRequest(core.id, source, core.term, self.index, number))

    def expire(self) -> None:
        """Take back what was asked a heartbeat ago and not answered."""
        core = self._core
        late = core.now - 2 * core.config.heartbeat_ticks
        for number, (source, tick) in list(self._asked.items()):
            if tick <= late:
                self._give_up(source, number)
        self.ask()

    def next_expiry(self) -> int:
        """The tick at which something asked is late."""
        if not self._asked:
            return NEVER
        return min(tick for _, tick in self._asked.values()) + 2 * self._core.config.heartbeat_ticks

    def _give_up(self, source: int, number: int) -> None:
        del self._asked[number]
        self._silent.add(source)

    def on_chunk(self, message: ChunkReply) -> Snapshot | None:
        """A chunk came; the snapshot where it was the last one. It is on its way to the disk."""
        number, data = message.number, message.data
        if message.index != self.index or not 0 <= number < self.count or number in self._chunks:
            return None
        asked = self._asked.get(number)
        if data is None or zlib.crc32(data) != self._offer.checksums[number]:
            if asked is not None and asked[0] == message.source:
                self._give_up(message.source, number)
                self.ask()
            return None
        self._asked.pop(number, None)
        self._chunks[number] = data
        offer, core = self._offer, self._core
        core.persist_chunk(
            Chunk(offer.index, offer.index_term, offer.members, number, self.count, data)
        )
        if not self.is_complete:
            self.ask()
            return None
        chunks = tuple(self._chunks[number] for number in range(self.count))
        snapshot = Snapshot(offer.index, offer.index_term, offer.members, chunks)
        core.persist_snapshot(snapshot, Purpose.FETCHED)
        return snapshot

    def abandon(self) -> None:
        """What was fetched may go: another snapshot takes its place, or this node leads now.

        Where the log went past its index meanwhile, this node takes the very same snapshot itself,
        and these are that one's chunks: they stay.
        """
        if self.index > self._core.log.commit:
            self._core.delete_chunks(self.index, self.count)
