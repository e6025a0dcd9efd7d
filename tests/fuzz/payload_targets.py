"""Data streaming: what a client or a node sends on a socket, and chunks of NATS publishers."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence

import msgspec
from crc32c import crc32c

from bascule.datastream.protocol.chunk_messages import encode_answer, error_of, read_chunk_head
from bascule.datastream.protocol.received import ReceivedPayload
from bascule.errors import PayloadDamaged, PayloadGap, RemoteProtocolError
from bascule.ingest.routing import PartitionSlot
from bascule.ingest.sequencer import Sequencer
from bascule.publish.headers import HashKey
from bascule.publish.payload_chunks import PayloadChunk
from bascule.publish.unstamped_batch import Replica
from bascule.record.payload_links import PAYLOAD_BYTES_MAX, RESERVED_PREFIX, is_payload_id
from bascule.wire import _hot as wire_hot
from bascule.wire.datastream import frames, messages
from bascule.wire.datastream.frames import (
    FRAME_BYTES_MAX,
    SIZE_BYTES,
    DataHead,
    StreamFrameReader,
    decode_ack,
    decode_data_head,
    decode_message,
    encode_ack,
    encode_data_head,
    encode_message,
)
from fuzz.nats_targets import (
    BODY_BYTES_MAX,
    LINE_BYTES_MAX,
    Room,
    messages_of,
    operation,
    sequencing_with,
)
from fuzz.target import Target, agree, chunks
from support.replicas import NamedReplica

ID = "0123456789abcdef" * 2
BODIES: dict[int, type[msgspec.Struct]] = {
    frames.HELLO: messages.StreamHello,
    frames.OPEN: messages.OpenPayload,
    frames.OPENED: messages.PayloadOpened,
    frames.CLOSE: messages.ClosePayload,
    frames.CLOSED: messages.PayloadClosed,
    frames.FAILED: messages.PayloadFailed,
    frames.FETCH: messages.FetchPayload,
    frames.FETCHED: messages.PayloadFetched,
    frames.ELSEWHERE: messages.ReplicasElsewhere,
}


class Receiver:
    """Reads frames as a connection does: the bytes of packets do not pass through the reader."""

    def __init__(self) -> None:
        self.found: list[object] = []
        self.content = bytearray()
        self._reader = StreamFrameReader()
        self._received = ReceivedPayload(ID)
        self._head: DataHead | None = None
        """Of a packet whose bytes have not come."""

    def receive(self, pieces: Iterator[bytes]) -> None:
        """Raises: RemoteProtocolError, PayloadGap, PayloadDamaged."""
        data = bytearray()
        for piece in pieces:
            data += piece
            while data or self._head is not None:
                if self._head is not None:
                    length = self._head.length
                    if len(data) < length:
                        break  # the rest of the packet is on its way
                    self._take(self._head, bytes(data[:length]))
                    self._head = None
                    del data[:length]
                    continue
                wanted = self._reader.wanted
                assert 0 < wanted <= FRAME_BYTES_MAX + SIZE_BYTES
                frame = self._reader.feed(data[:wanted])
                del data[:wanted]
                if frame is not None and frame[0] == frames.DATA:
                    self._head = decode_data_head(frame[1])
                elif frame is not None:
                    self._read(*frame)

    def _take(self, head: DataHead, packet: bytes) -> None:
        before = self._received.position
        new = packet[self._received.skip(head) :]
        self._received.on_packet(head, crc=crc32c(packet), new_crc=crc32c(new))
        self.content += new
        assert self._received.position == before + len(new) == len(self.content)
        assert self._received.crc == crc32c(bytes(self.content))
        self.found.append(head)

    def _read(self, kind: int, frame: bytearray) -> None:
        if kind == frames.ACK:
            self.found.append(decode_ack(frame))
        elif kind in BODIES:
            message = decode_message(frame, BODIES[kind])
            self.found.append(message)
            if isinstance(message, messages.ClosePayload):
                payload = self._received.check_whole(message.size, message.crc)
                assert payload.size == len(self.content)
            if isinstance(message, messages.StreamHello):
                messages.check_version(message)
        else:
            self.found.append(kind)


def received(data: bytes, seed: int) -> tuple[list[object], bytes, str]:
    receiver, error = Receiver(), ""
    try:
        receiver.receive(chunks(data, seed))
    except (RemoteProtocolError, PayloadGap, PayloadDamaged) as raised:
        error = str(raised)
    return receiver.found, bytes(receiver.content), error


def run_frames(data: bytes) -> None:
    """However the bytes are cut, the same frames and content come out, and only errors that end
    one connection. What counts of a payload is what its checksums say."""
    seed, data = (data[0], data[1:]) if data else (0, b"")
    assert received(data, seed) == received(data, 0)


def run_chunks(data: bytes) -> None:
    """Twins agree on what is a chunk. Its head says all that it has to, or is refused."""
    buf = bytearray(data)
    parsed, state = array("i", bytes(4 * 8 * 64)), array("q", bytes(32))
    count = wire_hot.parse_messages(buf, 0, len(buf), BODY_BYTES_MAX, LINE_BYTES_MAX, parsed, state)
    results: list[object] = []
    for twin in (0, 1):
        found: list[PayloadChunk] = []

        def take(_: Replica, taken: Sequence[PayloadChunk], found: list[PayloadChunk]) -> None:
            found += taken

        with sequencing_with(twin):
            sequencer = Sequencer(
                batch_bytes_max=600,
                hash_key=HashKey(bytes(16)),
                take_chunks=lambda replica, taken, found=found: take(replica, taken, found),
            )
            sequencer.routes.set_slot(0, PartitionSlot(NamedReplica(0), 1_000))
            sequencer.routes.set_route(1, (0,))
            room = Room(sequencer.bytes_needed(parsed, count, state[0]))
            sequencer.sequence(
                buf, array("i", parsed), count, wire_bytes=state[0], slab=room, start=0
            )
        results.append(found)
        for chunk in found:
            check_chunk(chunk)
    agree("chunks of payloads", results)
    assert len(found) <= len(messages_of(buf, parsed, count))


def check_chunk(chunk: PayloadChunk) -> None:
    try:
        head = read_chunk_head(chunk.block, len(chunk.body))
    except RemoteProtocolError as error:
        answer = encode_answer(b"reply", "s", error=error_of(error))
        assert json.loads(answer.split(b"\r\n")[1])["error"]["code"] == 400
        return
    assert is_payload_id(head.id)
    assert (head.offset < 0) != (head.size < 0)
    assert head.offset + len(chunk.body) < PAYLOAD_BYTES_MAX
    assert head.size < PAYLOAD_BYTES_MAX
    assert not (head.size >= 0 and chunk.body)
    assert head.crc is None or 0 <= head.crc < 1 << 32
    assert not [name for name, _ in head.headers if name.lower().startswith(RESERVED_PREFIX)]


def packet(position: int, data: bytes, flags: int = 0) -> bytes:
    return encode_data_head(position, len(data), crc32c(data), flags) + data


def _frame_seeds() -> list[bytes]:
    hello = encode_message(frames.HELLO, messages.StreamHello())
    opened = encode_message(
        frames.OPEN,
        messages.OpenPayload(
            ID, "models", 0, "models.a", b"key", [("A", b"1")], 9, "chain", False, [(1, [2, 3])]
        ),
    )
    close = encode_message(frames.CLOSE, messages.ClosePayload(9, crc32c(b"abcdefghi")))
    whole = packet(0, b"abcdef") + packet(3, b"defghi", frames.SYNC) + packet(9, b"", frames.SYNC)
    address = messages.ReplicaAddress(1, "a:1", "rack")
    answers = [
        messages.PayloadOpened(5, 7, 1 << 24, 0, [(1, [2])], "why", [address]),
        messages.PayloadClosed({"seq": 1, "payload": {"id": ID, "bytes": 9}}, [1, 2]),
        messages.PayloadFailed("Broken", "it is lost", {"node": 3}),
        messages.PayloadFetched(ID, 9, 7, 0, 9, True),
        messages.ReplicasElsewhere(0, [address]),
    ]
    kinds = {type: kind for kind, type in BODIES.items()}
    answered = b"".join(encode_message(kinds[type(each)], each) for each in answers)
    fetch = encode_message(frames.FETCH, messages.FetchPayload("models", 0, offset=3, start=1))
    return [
        bytes([seed]) + data
        for seed in (0, 1, 3)
        for data in (
            hello + opened + whole + close,
            hello + answered + encode_ack(9, 5),
            hello + fetch + encode_ack(1, 0),
            whole,
        )
    ]


def _chunk_seeds() -> list[bytes]:
    session = b"NATS/1.0\r\nBascule-Payload-Session: " + ID.encode() + b"\r\n"
    parts = [
        operation(b"a.b", b"abc", reply=b"r", block=session + b"Bascule-Payload-Offset: 0\r\n\r\n"),
        operation(
            b"a.b",
            b"def",
            block=session + b"Bascule-Payload-Offset: 3\r\nBascule-Payload-CRC32C: 0a0B0c0D\r\n"
            b"Bascule-Key: k\r\n\r\n",
        ),
        operation(
            b"a.b",
            b"",
            reply=b"r",
            block=session + b"Bascule-Payload-Close: 6\r\nNats-Msg-Id: 7\r\n\r\n",
        ),
        operation(b"a.b", b"plain", reply=b"r"),
    ]
    both = b"Bascule-Payload-Offset: 6\r\nBascule-Payload-Close: 6\r\n\r\n"  # refused
    return [b"".join(parts), *parts[:3], operation(b"a.b", b"", reply=b"r", block=session + both)]


TARGETS = [
    Target("payload-frames", _frame_seeds, run_frames),
    Target("payload-chunks", _chunk_seeds, run_chunks),
]
