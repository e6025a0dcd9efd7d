"""Turn the messages of a chunk into unstamped batches, one for each partition."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final, Protocol

from bascule.ingest import _hot
from bascule.ingest.routing import PartitionSlot, Routes, SubjectListener
from bascule.ingest.routing import _hot as routing_hot
from bascule.publish.headers import HashKey, read_publish_headers
from bascule.publish.payload_chunks import PayloadChunk, TakeChunks
from bascule.publish.unstamped_batch import Replica, UnstampedBatch
from bascule.record.header import HEADER_BYTES
from bascule.wire.liftbridge import CRC32C_TABLE
from bascule.wire.liftbridge import _hot as envelope_hot

MESSAGES_MAX: Final = 8192
"""Messages parsed at a time; their arrays fit the processor's cache."""

MESSAGE_OVERHEAD_BYTES: Final = 64
"""A record is at most this much larger than the NATS operation of its message, its subject once
more, and 1/128 of the operation; see `_hot.build_records`."""


class Slab(Protocol):
    """Memory for batches, reused once all of them are written."""

    view: memoryview


@dataclass(slots=True)
class SequencerCounts:
    """For metrics. Counts only grow."""

    messages: int = 0
    batches: int = 0
    envelopes: int = 0
    header_blocks_malformed: int = 0
    messages_refused: int = 0
    messages_unrouted: int = 0
    """Delivered for a subscription that has ended meanwhile."""


@dataclass(slots=True)
class _Scratch:
    """Reused between chunks; grows to the largest."""

    ack_entries: bytearray = field(default_factory=bytearray)
    refused: bytearray = field(default_factory=bytearray)
    envelope_headers: bytearray = field(default_factory=bytearray)
    nexts: array[int] = field(default_factory=lambda: array("i", bytes(4 * MESSAGES_MAX)))
    touched: array[int] = field(default_factory=lambda: array("i", bytes(4 * MESSAGES_MAX)))
    envelopes: array[int] = field(
        default_factory=lambda: array("q", bytes(8 * envelope_hot.ENVELOPE_FIELDS * MESSAGES_MAX))
    )
    expected: array[int] = field(default_factory=lambda: array("q", bytes(16 * MESSAGES_MAX)))
    found: array[int] = field(default_factory=lambda: array("q", bytes(8 * 9)))
    chunks: array[int] = field(default_factory=lambda: array("i", bytes(4 * MESSAGES_MAX)))
    state: array[int] = field(default_factory=lambda: array("q", bytes(8 * 11)))

    def grow(self, size: int) -> None:
        if len(self.ack_entries) < size:
            self.ack_entries = bytearray(size)
            self.refused = bytearray(size)


class Sequencer:
    """Sorts parsed messages by partition and writes their records. One thread uses it."""

    def __init__(
        self, *, batch_bytes_max: int, hash_key: HashKey, take_chunks: TakeChunks | None = None
    ) -> None:
        """`batch_bytes_max` bounds the records of a batch; a larger message is a batch of its own.

        `hash_key` keys the hashes of message ids. `take_chunks` gets the chunks of payloads;
        without it they are refused as messages with an unsupported header.
        """
        self._take_chunks = take_chunks
        self._batch_bytes_max = batch_bytes_max
        self._hash_key = hash_key
        self._heads = array("i", [-1])
        self.routes = Routes()
        self._scratch = _Scratch()
        self.counts = SequencerCounts()

    @staticmethod
    def bytes_needed(messages: array[int], count: int, wire_bytes: int) -> int:
        """Slab bytes that `count` messages in `wire_bytes` bytes of operations need at most."""
        return (
            wire_bytes
            + (wire_bytes >> 7)
            + _hot.subject_bytes(messages, count)
            + count * (MESSAGE_OVERHEAD_BYTES + HEADER_BYTES)
        )

    def sequence(
        self,
        buf: bytearray,
        messages: array[int],
        count: int,
        *,
        wire_bytes: int,
        slab: Slab,
        start: int,
    ) -> tuple[list[tuple[Replica, list[UnstampedBatch]]], int]:
        """Write the batches of `count` parsed messages to `slab` from `start` on.

        Returns each replica with its batches, in the order in which the replicas first appear, and
        the end of the batches. The slab has at least `bytes_needed` from `start` on.
        """
        scratch = self._scratch
        scratch.grow(wire_bytes + count * MESSAGE_OVERHEAD_BYTES)
        envelopes, envelope_headers = self._find_envelopes(buf, messages, count, wire_bytes)
        arrays = self.routes.arrays
        slots = self.routes.slots
        routing_hot.assign_slots(
            buf, messages, count, envelopes, envelope_hot.ENVELOPE_FIELDS, *arrays
        )
        if len(self._heads) < len(slots):
            self._heads = array("i", [-1] * (2 * len(slots)))
        heads = self._heads
        found = routing_hot.group_by_slot(messages, count, heads, scratch.nexts, scratch.touched)
        self.counts.messages += count
        routed: list[tuple[Replica, list[UnstampedBatch]]] = []
        taken, at = 0, start
        # `touched` was filled from the last message to the first.
        for number in reversed(scratch.touched[:found]):
            first = heads[number]
            heads[number] = -1
            slot = slots[number] if number < len(slots) else None
            if slot is None:
                continue
            if isinstance(slot, SubjectListener):
                heard = self._hand_over(buf, messages, first, slot)
                # Not messages of a stream.
                self.counts.messages -= heard
                taken += heard
                continue
            batches: list[UnstampedBatch] = []
            while first >= 0:
                batch, at, first = self._build(
                    buf, messages, first, slot, envelopes, envelope_headers, slab, at
                )
                taken += self._pass_chunks(buf, messages, slot)
                if batch.record_count or batch.refused_count:
                    taken += batch.record_count + batch.refused_count
                    batches.append(batch)
            if batches:
                routed.append((slot.replica, batches))
            self.counts.batches += len(batches)
        self.counts.messages_unrouted += count - taken
        return routed, at

    def _hand_over(
        self, buf: bytearray, messages: array[int], first: int, listener: SubjectListener
    ) -> int:
        """Pass the payloads of one slot to its listener; return how many."""
        count = 0
        while first >= 0:
            *_, header_bytes, at, size = messages[8 * first : 8 * first + 8]
            at, end = at + header_bytes, at + size
            listener.on_message(bytes(buf[at : min(end, at + listener.bytes_max + 1)]))
            count += 1
            first = self._scratch.nexts[first]
        return count

    def _pass_chunks(self, buf: bytearray, messages: array[int], slot: PartitionSlot) -> int:
        """Pass on copies of the chunks that `_build` has found; return how many."""
        count = self._scratch.state[10]
        if count:
            assert self._take_chunks is not None
            view, chunks = memoryview(buf), []
            for index in self._scratch.chunks[:count]:
                row = messages[8 * index : 8 * index + 8]
                _, subject, subject_bytes, reply, reply_bytes, block_bytes, at, size = row
                chunks.append(
                    PayloadChunk(
                        bytes(view[subject : subject + subject_bytes]),
                        bytes(view[reply : reply + reply_bytes]) if slot.acks else b"",
                        bytes(view[at : at + block_bytes]),
                        bytes(view[at + block_bytes : at + size]),
                    )
                )
            self._take_chunks(slot.replica, chunks)
            # They are no messages of the log.
            self.counts.messages -= count
        return count

    def _find_envelopes(
        self, buf: bytearray, messages: array[int], count: int, wire_bytes: int
    ) -> tuple[array[int], bytearray]:
        scratch = self._scratch
        if len(scratch.envelope_headers) < 2 * wire_bytes:
            scratch.envelope_headers = bytearray(2 * wire_bytes)
        if envelope_hot.parse_envelopes(
            buf, messages, count, CRC32C_TABLE, scratch.envelopes, scratch.envelope_headers
        ):
            return scratch.envelopes, scratch.envelope_headers
        return _NO_ENVELOPES, _NO_HEADERS

    def _build(
        self,
        buf: bytearray,
        messages: array[int],
        first: int,
        slot: PartitionSlot,
        envelopes: array[int],
        envelope_headers: bytearray,
        slab: Slab,
        at: int,
    ) -> tuple[UnstampedBatch, int, int]:
        scratch, state, counts = self._scratch, self._scratch.state, self.counts
        state[4] = state[5] = state[6] = state[7] = 0
        records = _hot.build_records(
            buf, messages, scratch.nexts, first, slot.message_bytes_max, slot.key_from_subject,
            slot.implied_subject, slot.keeps_reply, slot.ack_policy, self._batch_bytes_max,
            envelopes, envelope_headers, slab.view, at + HEADER_BYTES,
            scratch.ack_entries, scratch.refused, scratch.expected, scratch.found,
            scratch.chunks if self._take_chunks is not None else _NOTHING, state,
        )  # fmt: skip
        (
            end,
            ack_entries_end,
            refused_end,
            following,
            found,
            malformed,
            refused,
            asking,
            expecting,
            policies,
            _,
        ) = state
        counts.envelopes += found
        counts.header_blocks_malformed += malformed
        counts.messages_refused += refused
        if not slot.acks:
            ack_entries_end = refused_end = 0
        batch = UnstampedBatch(
            data=slab.view[at:end] if records else slab.view[at:at],
            record_count=records,
            ack_entries=bytes(memoryview(scratch.ack_entries)[:ack_entries_end]),
            refused_entries=bytes(memoryview(scratch.refused)[:refused_end]),
            refused_count=refused,
            ack_policies=policies,
        )
        if asking or expecting:
            expected = scratch.expected[: 2 * expecting]
            batch.headers = read_publish_headers(
                batch.data, records, self._hash_key, expected=expected
            )
        return batch, end if records else at, following


_NO_ENVELOPES: Final = array("q")
_NOTHING: Final = array("i")
_NO_HEADERS: Final = bytearray()
