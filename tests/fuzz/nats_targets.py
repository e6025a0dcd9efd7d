"""The NATS side: what a server, and through it any publisher, may send."""

from __future__ import annotations

import base64
import struct
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from crc32c import crc32c

from bascule.errors import ConfigError, RemoteProtocolError
from bascule.ingest import sequencer as sequencer_module
from bascule.ingest.chunk_reader import RECEIVE_BYTES, ChunkReader
from bascule.ingest.routing import BY_KEY, BY_SUBJECT, PartitionSlot
from bascule.ingest.sequencer import Sequencer
from bascule.publish import headers as headers_module
from bascule.publish.headers import HashKey
from bascule.record import header as batch_header
from bascule.record.batch import RecordBatch
from bascule.wire import _hot as wire_hot
from bascule.wire.liftbridge import CRC32C_TABLE
from bascule.wire.nats import (
    ConnectOptions,
    NatsHandshake,
    NatsRefused,
    ServerAddress,
    ServerError,
    Step,
    decode_info,
)
from bascule.wire.nats.nkeys import decode_claims, decode_seed, parse_credentials
from fuzz.target import Target, agree, chunks, twins
from support.replicas import NamedReplica

BODY_BYTES_MAX = 4_096
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
"""The user's seed of the documentation of NKeys."""
LINE_BYTES_MAX = 4_096
ENVELOPE_MAGIC = b"\xb9\x0e\x43\xb4"
INFO = (
    b'INFO {"server_id":"ND2","version":"2.14.3","proto":1,"headers":true,"max_payload":1048576,'
    b'"client_id":7,"nonce":"abc","connect_urls":["127.0.0.1:4223","[::1]:4224"]}\r\n'
)
BLOCK = (
    b"NATS/1.0\r\nA: 1\r\nBascule-Key:  the key \r\nNats-Msg-Id: 7\r\nB:two words\t\r\nE:\r\n\r\n"
)
TERMS = (
    b"NATS/1.0\r\nNats-Msg-Id: id-1\r\nNats-Expected-Stream: s\r\n"
    b"Nats-Expected-Last-Sequence: 5\r\nNats-Expected-Last-Msg-Id: id-0\r\n"
    b"KV-Operation: DEL\r\n\r\n"
)
STATUS = b"NATS/1.0 503 No Responders\r\n\r\n"


def operation(
    subject: bytes, payload: bytes, *, sid: int = 1, reply: bytes = b"", block: bytes = b""
) -> bytes:
    sizes = b"%d" % len(payload)
    if block:
        sizes = b"%d %d" % (len(block), len(block) + len(payload))
    words = [b"HMSG" if block else b"MSG", subject, b"%d" % sid, *([reply] if reply else []), sizes]
    return b" ".join(words) + b"\r\n" + block + payload + b"\r\n"


def envelope(fields: bytes, *, checked: bool) -> bytes:
    header = 12 if checked else 8
    crc = struct.pack(">I", crc32c(fields)) if checked else b""
    return ENVELOPE_MAGIC + bytes((0, header, checked, 0)) + crc + fields


PROTOBUF = (
    b"\x0a\3key\x12\5value\x1a\6stream\x22\7s.t.u.v\x2a\2re\x32\x0a\n\1h\x12\5value"
    b"\x3a\3ack\x42\4corr\x48\2"
)
STREAM = (
    operation(b"a.b", b"plain"),
    operation(b"a.c", b"", reply=b"_INBOX.x.1"),
    operation(b"a.d", b"with headers", reply=b"r", block=BLOCK),
    operation(b"a.e", b"", block=STATUS),
    operation(b"a.f", envelope(PROTOBUF, checked=True), reply=b"r"),
    operation(b"a.g", envelope(PROTOBUF, checked=False)),
    operation(b"a.h", b"x" * 300),
    operation(b"b.1", b"by key", sid=2, block=BLOCK),
    operation(b"b.2", b"by subject", sid=3, reply=b"r", block=TERMS),
)


class Scripted:
    """A transport that hands out what the test says, as much at a time as it says."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = deque(pieces)

    def receive_into(self, view: memoryview) -> int:
        if not self._pieces:
            return 0
        piece = self._pieces.popleft()
        if len(piece) > len(view):
            self._pieces.appendleft(piece[len(view) :])
            piece = piece[: len(view)]
        view[: len(piece)] = piece
        return len(piece)


class Collector:
    """Takes what a chunk reader finds, as bytes."""

    def __init__(self) -> None:
        self.found: list[object] = []
        self.body_bytes_max = BODY_BYTES_MAX

    def on_received(self, count: int) -> None:
        assert count > 0

    def on_control_line(self, line: bytes) -> None:
        self.found.append(line)
        if line[:4].upper() == b"INFO":
            decode_info(line)
        elif line[:4].upper() == b"-ERR":
            str(ServerError.decode(line))

    def deliver(self, buf: bytearray, messages: array[int], count: int, wire_bytes: int) -> bool:
        self.found += messages_of(buf, messages, count)
        return False

    def pause(self, seconds: float) -> None: ...


def messages_of(buf: bytes | bytearray, messages: array[int], count: int) -> list[object]:
    found: list[object] = []
    for n in range(count):
        sid, subject_at, subject, reply_at, reply, headers, body_at, body = messages[
            8 * n : 8 * n + 8
        ]
        assert 0 <= headers <= body <= BODY_BYTES_MAX
        assert body_at + body <= len(buf)
        found.append(
            (
                sid,
                bytes(buf[subject_at : subject_at + subject]),
                bytes(buf[reply_at : reply_at + reply]),
                headers,
                bytes(buf[body_at : body_at + body]),
            )
        )
    return found


def read_all(data: bytes, chunk_seed: int) -> tuple[list[object], bool]:
    """What a reader makes of `data` in such chunks, and whether it ended the connection."""
    owner = Collector()
    reader = ChunkReader(owner, Scripted(chunks(data, chunk_seed)), b"")  # type: ignore[arg-type]
    try:
        while reader.read_once():
            assert len(reader._buffer) <= 3 * RECEIVE_BYTES + len(data)
    except RemoteProtocolError:
        return owner.found, True
    return owner.found, False


def run_parser(data: bytes) -> None:
    """However the bytes are cut, the same messages come out, and only a protocol error."""
    seed, data = (data[0], data[1:]) if data else (0, b"")
    assert read_all(data, seed) == read_all(data, 0)
    results: list[object] = []
    for hot in twins("wire"):
        messages, state = array("i", bytes(4 * 8 * 64)), array("q", bytes(32))
        count = hot.parse_messages(
            data, 0, len(data), BODY_BYTES_MAX, LINE_BYTES_MAX, messages, state
        )
        results.append((messages_of(data, messages, count), list(state[:3])))
    agree("parse_messages", results)


def run_handshake(data: bytes) -> None:
    seed, data = (data[0], data[1:]) if data else (0, b"")
    address = ServerAddress("127.0.0.1", 4222)
    options = ConnectOptions(name="fuzz", nkey_seed=SEED if seed % 2 else None)
    try:
        handshake = NatsHandshake(
            options, address, version="0", read=lambda path: path, now_s=lambda: 0
        )
        for piece in chunks(data, seed):
            step = handshake.receive(piece)
            handshake.to_send()
            if step is Step.START_TLS:
                handshake.tls_started()
            if step is Step.READY:
                return
    except (RemoteProtocolError, NatsRefused, ConfigError) as error:
        assert SEED not in str(error)


def run_credentials(data: bytes) -> None:
    """A credentials file is one, or a ConfigError that gives nothing of it away."""
    text = data.decode("utf-8", "replace")
    try:
        found = parse_credentials(text, origin="the file")
        if found.seed:
            decode_seed(found.seed, origin="the file").sign("nonce")
        decode_claims(found.jwt, origin="the file")
    except ConfigError as error:
        for word in text.split():
            assert len(word) < 20 or word not in str(error)


class Room:
    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))


HOT_MODULES: tuple[tuple[ModuleType, str, str], ...] = (
    (sequencer_module, "_hot", "ingest"),
    (sequencer_module, "envelope_hot", "wire/liftbridge"),
    (sequencer_module, "routing_hot", "ingest/routing"),
    (headers_module, "_hot", "publish/headers"),
)
"""Where the sequencer looks for compiled code, and the package that code is of."""


@contextmanager
def sequencing_with(twin: int) -> Iterator[None]:
    """The compiled twins (0) or the interpreted ones (1) everywhere."""
    before = [(module, name, getattr(module, name)) for module, name, _ in HOT_MODULES]
    for module, name, package in HOT_MODULES:
        setattr(module, name, twins(package)[twin])
    try:
        yield
    finally:
        for module, name, hot in before:
            setattr(module, name, hot)


def run_ingest(data: bytes) -> None:
    """What was parsed becomes well-formed batches of the very payloads that were sent."""
    buf = bytearray(data)
    messages, state = array("i", bytes(4 * 8 * 64)), array("q", bytes(32))
    count = wire_hot.parse_messages(
        buf, 0, len(buf), BODY_BYTES_MAX, LINE_BYTES_MAX, messages, state
    )
    parsed: list[Any] = messages_of(buf, messages, count)
    consumed = state[0]
    results: list[object] = []
    for twin in (0, 1):
        with sequencing_with(twin):
            sequencer = Sequencer(batch_bytes_max=600, hash_key=HashKey(bytes(16)))
            sequencer.routes.set_slot(0, PartitionSlot(NamedReplica(0), 1_000))
            sequencer.routes.set_route(1, (0,))
            for number in (1, 2, 3):
                sequencer.routes.set_slot(
                    number,
                    PartitionSlot(
                        NamedReplica(number),
                        1_000,
                        key_from_subject=number == 3,
                        implied_subject=b"" if number == 1 else b"b.%d" % (number - 1),
                        keeps_reply=number == 2,
                    ),
                )
            sequencer.routes.set_route(2, (1, 2), by=BY_KEY)
            sequencer.routes.set_route(3, (2, 3), by=BY_SUBJECT)
            room = Room(sequencer.bytes_needed(messages, count, consumed))
            routed, end = sequencer.sequence(
                buf, array("i", messages), count, wire_bytes=consumed, slab=room, start=0
            )
            assert end <= len(room.view)
            batches = [batch for _, own in routed for batch in own]
            slots = [replica.index for replica, own in routed for _ in own]
            stored = [check_batch(batch) for batch in batches]
            kept = [bytes(batch.data[61:]) for batch in batches]
            asked = [(bytes(d.ack_entries), bytes(d.refused_entries)) for d in batches]
            headers = [
                list(
                    headers_module.read_publish_headers(
                        d.data, d.record_count, HashKey(bytes(16))
                    ).rows
                )
                for d in batches
                if d.record_count
            ]
        results.append((slots, stored, kept, asked, headers))
    agree("sequence", results)
    first = [own for slot, own in zip(slots, stored, strict=True) if slot == 0]
    values = [value for own in first for value in own]
    for (_, _, _, headers, body), value in zip(
        [message for message in parsed if message[0] == 1 and len(message[4]) <= 1_000],
        values if len(values) == sum(m[0] == 1 for m in parsed) else [],
        strict=False,
    ):
        payload = body[headers:]
        assert value is None or value == payload or ENVELOPE_MAGIC in payload, (value, payload)


def check_batch(batch: Any) -> list[bytes | None]:
    """The values of a batch's records, which must be well-formed."""
    if not batch.record_count:
        assert len(batch.data) == 0
        return []
    batch_header.seal(
        batch.data, record_count=batch.record_count, base_timestamp=5, max_timestamp=5
    )
    records = list(RecordBatch(batch.data))
    assert len(records) == batch.record_count
    return [record.value for record in records]


def run_envelope(data: bytes) -> None:
    """Twins agree on what is an envelope, and all they name lies inside the message."""
    if data[:1] == b"\1" and len(data) >= 13:  # with the right CRC, so that the fields are read
        fields = data[13:]
        data = data[1:9] + struct.pack(">I", crc32c(fields)) + fields
    else:
        data = data[1:]
    messages = array("i", (1, 0, 0, 0, 0, 0, 0, len(data)))
    results: list[object] = []
    for hot in twins("wire/liftbridge"):
        rows = array("q", bytes(8 * hot.ENVELOPE_FIELDS))
        headers = bytearray(2 * len(data))
        found = hot.parse_envelopes(data, messages, 1, CRC32C_TABLE, rows, headers)
        if found:
            for at, length in zip(rows[2:10:2], rows[3:10:2], strict=True):
                assert length < 0 or 0 <= at <= at + length <= len(data)
            assert 0 <= rows[1] <= rows[1] + rows[11] <= len(headers)
        results.append((found, list(rows) if found else [], bytes(headers) if found else b""))
    agree("parse_envelopes", results)


def _handshake_seeds() -> list[bytes]:
    tls = b'INFO {"tls_required":true}\r\n'
    whole = [INFO + b"PONG\r\n", INFO + b"PING\r\nPONG\r\nMSG a 1 0\r\n\r\n", tls + b"PONG\r\n"]
    whole += [INFO + b"-ERR 'Authorization Violation'\r\n"]
    return [b"\0" + data for data in whole] + [b"\3" + data for data in whole]


def _parser_seeds() -> list[bytes]:
    lines = b"PING\r\n+OK\r\n" + INFO + b"-ERR 'Slow Consumer'\r\n"
    return [
        bytes([n]) + data
        for n in (0, 1, 3)
        for data in (b"".join(STREAM), lines + STREAM[2], *STREAM)
    ]


def _envelope_seeds() -> list[bytes]:
    extra = PROTOBUF + b"\x98\x06\1\xa1\x06" + bytes(8) + b"\xad\x06" + bytes(4)
    return [
        bytes([fixed]) + envelope(fields, checked=checked)
        for fields in (PROTOBUF, extra, b"", PROTOBUF * 3)
        for checked, fixed in ((True, 0), (True, 1), (False, 0))
    ]


def _credentials() -> list[bytes]:
    claims = b'{"name":"u","sub":"UABC","exp":5,"nats":{"type":"user","bearer_token":false}}'
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (b"{}", claims, b"sig")]
    return [
        b"-----BEGIN NATS USER JWT-----\n" + b".".join(parts) + b"\n------END NATS USER JWT------\n"
        b"-----BEGIN USER NKEY SEED-----\n" + SEED.encode() + b"\n------END USER NKEY SEED------\n"
    ]


TARGETS = [
    Target("nats-credentials", _credentials, run_credentials),
    Target("nats-parser", _parser_seeds, run_parser),
    Target("nats-handshake", _handshake_seeds, run_handshake),
    Target("ingest", lambda: [b"".join(STREAM), *STREAM], run_ingest),
    Target("liftbridge-envelope", _envelope_seeds, run_envelope),
]
