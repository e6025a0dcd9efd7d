"""From the bytes of a NATS connection to records: the sequencer on both twins."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.ingest import sequencer as sequencer_module
from bascule.ingest.routing import PartitionSlot, SubjectListener
from bascule.ingest.sequencer import Sequencer
from bascule.model import AckPolicy
from bascule.publish import headers as headers_module
from bascule.publish.acks import ACK_POLICIES, ALL, LEADER, NONE, AckFormat
from bascule.publish.headers import HashKey
from bascule.publish.payload_chunks import PayloadChunk
from bascule.publish.unstamped_batch import Replica, UnstampedBatch
from bascule.record import header as batch_header
from bascule.record.batch import Record, RecordBatch
from bascule.wire import _hot as wire_hot
from support.replicas import NamedReplica

Load = Callable[[str], ModuleType]


HASH_KEY = HashKey(bytes(range(16)))


class Room:
    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))


def sequence(data: bytes, **options: Any) -> tuple[Sequencer, list[UnstampedBatch]]:
    sequencer, routed = route(data, **options)
    return sequencer, [batch for _, batches in routed for batch in batches]


def route(
    data: bytes,
    *,
    sids: tuple[int, ...] = (1,),
    limit: int = 1 << 20,
    batch_max: int = 1 << 20,
    by_subject: bool = False,
    implied: str = "",
    keeps_reply: bool = True,
    ack_policy: int = 0,
    acks: bool = True,
    chunks: list[tuple[Replica, PayloadChunk]] | None = None,
) -> tuple[Sequencer, list[tuple[Replica, list[UnstampedBatch]]]]:
    def take(replica: Replica, found: Sequence[PayloadChunk]) -> None:
        assert chunks is not None
        chunks.extend((replica, chunk) for chunk in found)

    sequencer = Sequencer(
        batch_bytes_max=batch_max,
        hash_key=HASH_KEY,
        take_chunks=None if chunks is None else take,
    )
    for sid in sids:
        sequencer.routes.set_slot(
            sid + 3,
            PartitionSlot(
                NamedReplica(sid + 3),
                limit,
                key_from_subject=by_subject,
                implied_subject=implied.encode(),
                keeps_reply=keeps_reply,
                ack_policy=ack_policy,
                acks=acks,
            ),
        )
        sequencer.routes.set_route(sid, (sid + 3,))
    messages, state = array("i", bytes(4 * 8 * 512)), array("q", bytes(32))
    buf = bytearray(data)
    count = wire_hot.parse_messages(buf, 0, len(buf), 1 << 24, 4096, messages, state)
    assert state[0] == len(buf)
    room = Room(sequencer.bytes_needed(messages, count, len(buf)) + 50)
    routed, end = sequencer.sequence(buf, messages, count, wire_bytes=len(buf), slab=room, start=50)
    assert end <= len(room.view)
    return sequencer, routed


def records(batch: UnstampedBatch) -> list[Record]:
    batch_header.seal(
        batch.data, record_count=batch.record_count, base_timestamp=5, max_timestamp=5
    )
    return list(RecordBatch(batch.data))


def msg(
    subject: str, payload: bytes, *, sid: int = 1, reply: str = "", block: bytes = b""
) -> bytes:
    answer = f" {reply}" if reply else ""
    if block:
        line = f"HMSG {subject} {sid}{answer} {len(block)} {len(block) + len(payload)}\r\n"
    else:
        line = f"MSG {subject} {sid}{answer} {len(payload)}\r\n"
    return line.encode() + block + payload + b"\r\n"


@pytest.fixture(autouse=True)
def on_twin(hot: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer_module, "_hot", hot("ingest"))
    monkeypatch.setattr(sequencer_module, "envelope_hot", hot("wire/liftbridge"))
    monkeypatch.setattr(sequencer_module, "routing_hot", hot("ingest/routing"))
    monkeypatch.setattr(headers_module, "_hot", hot("publish/headers"))


def test_each_message_is_one_record() -> None:
    block = b"NATS/1.0\r\nA: 1\r\nbascule-key:  the key \r\nB:two words\t\r\nA: 3\r\nE:\r\n\r\n"
    _, (batch,) = sequence(
        msg("a.b", b"plain")
        + msg("a.c", b"", reply="in.box")
        + msg("a.d", b"with", block=block, reply="r")
    )
    assert records(batch) == [
        Record(0, 5, None, b"plain", (("subject", b"a.b"),)),
        Record(1, 5, None, b"", (("subject", b"a.c"), ("reply", b"in.box"))),
        Record(
            2, 5, b"the key", b"with",
            (
                ("subject", b"a.d"), ("reply", b"r"), ("A", b"1"), ("B", b"two words"),
                ("A", b"3"), ("E", b""),
            ),
        ),
    ]  # fmt: skip
    assert batch.ack_entries == (
        b"\0" + (1).to_bytes(4, "little") + b"\6\0in.box" + b"\0\2\0\0\0" + b"\1\0r"
    )


def test_a_subject_that_is_header_and_key_has_room_for_both() -> None:
    subject = "keys." + "k" * 400
    _, (batch,) = sequence(msg(subject, b"") * 200 + msg("keys.a", b"v"), by_subject=True)
    key = subject.encode()
    *first, last = records(batch)
    assert first == [Record(n, 5, key, b"", (("subject", key),)) for n in range(200)]
    assert last == Record(200, 5, b"keys.a", b"v", (("subject", b"keys.a"),))


@pytest.mark.parametrize(("count", "name_bytes", "value_bytes"), [(3_000, 64, 64), (1, 8_192, 64)])
def test_many_long_headers_have_room(count: int, name_bytes: int, value_bytes: int) -> None:
    line = b"n" * name_bytes + b":" + b"v" * value_bytes + b"\r\n"
    block = b"NATS/1.0\r\n" + line * count + b"\r\n"
    _, (batch,) = sequence(msg("a", b"", block=block))
    (record,) = records(batch)
    assert record.headers[1:] == (("n" * name_bytes, b"v" * value_bytes),) * count


def test_a_header_called_reply_cannot_pass_for_the_reply_subject() -> None:
    block = b"NATS/1.0\r\nreply: fake\r\n\r\n"
    _, (batch,) = sequence(msg("a", b"x", block=block) + msg("a", b"y", block=block, reply="real"))
    first, second = records(batch)
    assert first.headers == (("subject", b"a"), ("reply", None), ("reply", b"fake"))
    assert second.headers == (("subject", b"a"), ("reply", b"real"), ("reply", b"fake"))


def test_a_plain_message_on_the_implied_subject_has_no_headers() -> None:
    data = msg("a.b", b"plain") + msg("a.b", b"asks", reply="in.box") + msg("a.c", b"other")
    _, (batch,) = sequence(data + msg("a.bc", b"x"), implied="a.b", keeps_reply=False)
    assert [record.headers for record in records(batch)] == [
        (), (), (("subject", b"a.c"),), (("subject", b"a.bc"),),
    ]  # fmt: skip
    assert batch.ack_entries == b"\0" + (1).to_bytes(4, "little") + b"\6\0in.box"
    sizes = [
        len(sequence(msg("a.b", b"v", reply="r" * 30), **options)[1][0].data)
        for options in ({"implied": "a.b", "keeps_reply": False}, {})
    ]
    assert sizes[0] == 61 + 7 + 1, "seven fields of a byte and the value"
    assert sizes[1] - sizes[0] == (1 + 7 + 1 + 3) + (1 + 5 + 1 + 30)


def test_the_reply_subject_is_kept_on_request() -> None:
    _, (batch,) = sequence(msg("a", b"x", reply="r"), implied="a", keeps_reply=True)
    assert records(batch)[0].headers == (("reply", b"r"),)
    _, (batch,) = sequence(msg("a", b"x", reply="r"), keeps_reply=False)
    assert records(batch)[0].headers == (("subject", b"a"),)


def test_a_header_called_subject_cannot_pass_for_the_subject() -> None:
    forged = b"NATS/1.0\r\nsubject: fake\r\n\r\n"
    later = b"NATS/1.0\r\nA: 1\r\nsubject: own\r\n\r\n"
    cased = b"NATS/1.0\r\nSubject: own\r\n\r\n"
    behind = b"NATS/1.0\r\nreply: x\r\nsubject: own\r\n\r\n"
    data = b"".join(msg("a", b"x", block=each) for each in (forged, later, cased, behind))
    _, (batch,) = sequence(data, implied="a", keeps_reply=False)
    assert [record.headers for record in records(batch)] == [
        (("subject", b"a"), ("subject", b"fake")),
        (("A", b"1"), ("subject", b"own")),
        (("Subject", b"own"),),
        (("reply", None), ("reply", b"x"), ("subject", b"own")),
    ]
    _, (batch,) = sequence(msg("a", b"x", block=forged, reply="r"), implied="a")
    assert records(batch)[0].headers == (("subject", b"a"), ("reply", b"r"), ("subject", b"fake"))


def test_an_envelopes_header_cannot_pass_for_subject_or_reply() -> None:
    def envelope(name: bytes) -> bytes:
        entry = b"\x0a" + bytes([len(name)]) + name + b"\x12\x01x"
        return b"\xb9\x0e\x43\xb4\0\x08\0\0\x1a\x01v\x4a" + bytes([len(entry)]) + entry

    block = b"NATS/1.0\r\nA: 1\r\n\r\n"
    data = b"".join(
        [
            msg("a", envelope(b"subject")),
            msg("a", envelope(b"reply")),
            msg("a", envelope(b"replies")),
            msg("a", envelope(b"subject"), block=block),
            msg("a", envelope(b"reply"), reply="r"),
        ]
    )
    _, (batch,) = sequence(data, implied="a", keeps_reply=False)
    assert [record.headers for record in records(batch)] == [
        (("subject", b"a"), ("subject", b"x")),
        (("reply", None), ("reply", b"x")),
        (("replies", b"x"),),
        (("A", b"1"), ("subject", b"x")),
        (("reply", None), ("reply", b"x")),
    ]
    assert all(record.value == b"v" for record in records(batch))


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n: no name\r\n\r\n",
        b"NATS/1.0\r\nn\xc3\xa4me: x\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n",
        b"NATS/1.0\r\nA: 1\r\n\r\nrest",
        b"XATS/1.0\r\nA: 1\r\n\r\n",
    ],
)
def test_a_malformed_header_block_is_kept_whole(block: bytes) -> None:
    sequencer, (batch,) = sequence(msg("a", b"x", block=block))
    (record,) = records(batch)
    assert record.headers == (("subject", b"a"), ("Nats-Header-Block", block))
    assert record.value == b"x"
    assert sequencer.counts.header_blocks_malformed == 1


def asked_in(lines: bytes) -> int:
    """The flags of a message with such a header block; 0 without a row."""
    _, (batch,) = sequence(msg("a", b"x", block=b"NATS/1.0\r\n" + lines + b"\r\n"))
    assert records(batch)[0].headers[1][0] == "Nats-Header-Block"
    assert batch.headers is not None
    return batch.headers.rows[1] if batch.headers.count else 0


@pytest.mark.parametrize(
    "odd", [b"Order Type: v", b"Gr\xc3\xb6\xc3\x9fe: 5", b"no colon", b": no name", b"\t: x"]
)
@pytest.mark.parametrize(
    "asking",
    [
        b"Nats-Msg-Id: 7", b"NATS-TTL: 1s", b"nats-incr: +1", b"Nats-New", b"Nats-Msg-Id : 7",
        b"Bascule-Key: k", b"bascule-ACK: none", b"Bascule-Payload-Session: s", b"Nats-\xff: 1",
        b"KV-Operation: DEL",
    ],
)  # fmt: skip
def test_what_a_malformed_header_block_asks_for_is_refused(odd: bytes, asking: bytes) -> None:
    unsupported = headers_module._hot.UNSUPPORTED
    for lines in (
        asking + b"\r\n" + odd,
        odd + b"\r\n" + asking,
        b"A: 1\r\n" * 9 + asking + b"\r\nx",
    ):
        assert asked_in(lines + b"\r\n") == unsupported, lines
        assert asked_in(lines) == unsupported, "its end is missing"
    assert asked_in(b"A: 1\r\n\r\n" + asking + b"\r\n") == unsupported, "it has two ends"


@pytest.mark.parametrize(
    "lines",
    [
        b"Order Type: v", b"Nats-Trace-Dest: x\r\nno colon", b"Nats-Stream : x",
        b"A: Nats-Msg-Id\r\nb",
        b" Nats-Msg-Id: 7", b"A: \nNats-Msg-Id: 7\r\nno colon", b"Bascule-Keyring: k\r\nno colon",
        b"Nats-: 1\r\n: x", b"KV-Operations: DEL\r\n: x", b": x\r\nNats-Header-Block: x",
    ],
)  # fmt: skip
def test_a_malformed_header_block_that_asks_for_nothing_is_stored(lines: bytes) -> None:
    assert asked_in(lines + b"\r\n") == 0


def test_subscriptions_get_batches_of_their_own_in_order() -> None:
    data = b"".join(msg("s", b"%d" % n, sid=n % 3 + 1) for n in range(30)) + msg("s", b"x", sid=9)
    sequencer, routed = route(data, sids=(1, 2, 3))
    assert sorted(replica.index for replica, _ in routed) == [4, 5, 6]
    for replica, (batch,) in routed:
        values = [int(r.value or b"") for r in records(batch)]
        assert values == list(range(replica.index - 4, 30, 3))
    assert sequencer.counts.messages == 31
    assert sequencer.counts.messages_unrouted == 1


def test_a_route_that_ended_takes_nothing() -> None:
    sequencer = Sequencer(batch_bytes_max=1 << 20, hash_key=HASH_KEY)
    sequencer.routes.set_slot(0, PartitionSlot(NamedReplica(0), 10))
    sequencer.routes.set_route(1, (0,))
    sequencer.routes.set_route(1, ())
    data = bytearray(msg("s", b"x"))
    messages, state = array("i", bytes(4 * 8 * 4)), array("q", bytes(32))
    count = wire_hot.parse_messages(data, 0, len(data), 99, 99, messages, state)
    batches, _ = sequencer.sequence(
        data, messages, count, wire_bytes=len(data), slab=Room(500), start=0
    )
    assert batches == []
    assert sequencer.counts.messages_unrouted == 1


def test_a_message_over_the_limit_is_refused_and_the_rest_is_kept() -> None:
    data = msg("a", b"x" * 11, reply="big") + msg("a", b"x" * 10, reply="fits")
    sequencer, (batch,) = sequence(data, limit=10)
    assert batch.record_count == 1
    assert batch.refused_count == sequencer.counts.messages_refused == 1
    assert batch.refused_entries == b"\0" + (11).to_bytes(4, "little") + b"\3\0big"
    _, (alone,) = sequence(msg("a", b"x" * 11), limit=10)
    assert (alone.record_count, len(alone.data), alone.refused_entries) == (0, 0, b"")


def test_who_sent_messages_over_the_limit_is_told_their_sizes() -> None:
    data = b"".join(msg("a", b"x" * size, reply=f"in.{size}") for size in (11, 70_000, 10))
    _, (batch,) = sequence(data, limit=10)
    acks = AckFormat(stream="s", subject="a", partition=0, replicas=1, synced=True)
    replies = acks.too_large(batch.refused_entries, 10, count=batch.refused_count).split(b"\r\n")
    for size, head, body in zip((11, 70_000), replies[::2], replies[1::2], strict=False):
        assert head == b"PUB in.%d %d" % (size, len(body))
        said = json.loads(body)
        text = f"message of {size} bytes exceeds the stream's limit of 10 bytes"
        assert (said["error"]["err_code"], said["error"]["description"]) == (10054, text)
        assert (said["stream"], said["seq"]) == ("s", 0)
    assert len(replies) == 5


def block_of(*lines: str) -> bytes:
    return b"\r\n".join([b"NATS/1.0", *(line.encode() for line in lines), b"", b""])


SESSION = "Bascule-Payload-Session: " + "ab" * 16


def test_chunks_of_payloads_are_no_records_and_keep_their_order() -> None:
    first = block_of(SESSION, "Bascule-Payload-Offset: 0")
    second = block_of("Nats-Msg-Id: x", SESSION.upper(), "Bascule-Payload-Offset: 2")
    chunks: list[tuple[Replica, PayloadChunk]] = []
    sequencer, routed = route(
        msg("a", b"one", reply="r1")
        + msg("a", b"AB", block=first, reply="r2")
        + msg("b", b"C", block=second)
        + msg("a", b"two", reply="r3", block=block_of("Nats-Msg-Id: y"))
        + msg("c", b"other", block=first, sid=2),
        sids=(1, 2),
        chunks=chunks,
    )
    ((replica, (batch,)),) = routed
    assert replica.index == 4
    assert [record.value for record in records(batch)] == [b"one", b"two"]
    assert batch.headers is not None
    assert batch.headers.count == 1
    assert [(each.index, chunk) for each, chunk in chunks] == [
        (4, PayloadChunk(b"a", b"r2", first, b"AB")),
        (4, PayloadChunk(b"b", b"", second, b"C")),
        (5, PayloadChunk(b"c", b"", first, b"other")),
    ]
    assert sequencer.counts.messages == 2
    assert sequencer.counts.messages_unrouted == 0


def test_a_chunk_may_be_larger_than_a_message_and_is_not_answered_without_acks() -> None:
    block = block_of(SESSION, "Bascule-Payload-Offset: 0")
    chunks: list[tuple[Replica, PayloadChunk]] = []
    sequencer, routed = route(
        msg("a", b"x" * 100, block=block, reply="r"), limit=10, acks=False, chunks=chunks
    )
    assert routed == []
    assert [chunk.reply for _, chunk in chunks] == [b""]
    assert sequencer.counts.messages_refused == 0


def test_many_chunks_among_small_batches() -> None:
    block = block_of(SESSION, "Bascule-Payload-Offset: 0")
    data = b"".join(
        msg("a", b"%d" % n, block=b"" if n % 3 else block, reply="r") for n in range(300)
    )
    chunks: list[tuple[Replica, PayloadChunk]] = []
    _, routed = route(data, batch_max=200, chunks=chunks)
    found = [int(r.value or b"") for _, batches in routed for b in batches for r in records(b)]
    assert found == [n for n in range(300) if n % 3]
    assert [int(chunk.body) for _, chunk in chunks] == list(range(0, 300, 3))


@pytest.mark.parametrize("name", ["Bascule-Payload-Sessions", "Bascule-Payload-Offset"])
def test_other_headers_of_payloads_are_refused(name: str) -> None:
    chunks: list[tuple[Replica, PayloadChunk]] = []
    _, ((_, (batch,)),) = route(
        msg("a", b"x", block=block_of(f"{name}: 1"), reply="r"), chunks=chunks
    )
    assert chunks == []
    assert batch.headers is not None
    assert batch.headers.rows[1] & headers_module._hot.UNSUPPORTED


def test_without_data_streaming_chunks_are_refused() -> None:
    _, (batch,) = sequence(msg("a", b"x", block=block_of(SESSION), reply="r"))
    assert batch.headers is not None
    assert batch.headers.rows[1] & headers_module._hot.UNSUPPORTED


def test_batches_are_bounded() -> None:
    data = b"".join(msg("a", b"x" * 100) for _ in range(50)) + msg("a", b"y" * 5000)
    _, batches = sequence(data, batch_max=1000)
    assert sum(d.record_count for d in batches) == 51
    assert all(len(d.data) <= 1000 + 61 for d in batches[:-1])
    assert batches[-1].record_count == 1


@pytest.mark.parametrize("name", [b"Bascule-Payload-Id", b"bascule-PAYLOAD-bytes"])
def test_a_header_that_claims_a_payload_is_found_in_a_block_and_in_an_envelope(name: bytes) -> None:
    entry = b"\x0a" + bytes([len(name)]) + name + b"\x12\x01x"
    envelope = b"\xb9\x0e\x43\xb4\0\x08\0\0\x1a\x01v\x4a" + bytes([len(entry)]) + entry
    block = b"NATS/1.0\r\n" + name + b": x\r\n\r\n"
    for message in (msg("a", envelope), msg("a", b"v", block=block)):
        _, (batch,) = sequence(message)
        assert batch.headers is not None
        assert batch.headers.count == 1
        assert batch.headers.rows[1] == headers_module._hot.UNSUPPORTED
    _, (batch,) = sequence(msg("a", b"v", block=b"NATS/1.0\r\nBascule-Payload: x\r\n\r\n"))
    assert batch.headers is None


def test_an_envelope_is_unpacked_and_its_policy_kept() -> None:
    def envelope(fields: bytes) -> bytes:
        return b"\xb9\x0e\x43\xb4\0\x08\0\0" + fields

    full = b"\x12\x01k\x1a\x01v\x4a\x08\x0a\x02h1\x12\x02v1\x52\x02in\x5a\x02id"
    none = b"\x12\x01k\x52\x02in\x60\x02"
    broken = envelope(b"\x12\x09k")
    data = (
        msg("a", envelope(full), reply="ignored")
        + msg("a", envelope(none))
        + msg("a", envelope(b"\x1a\x01w"), reply="r")
        + msg("a", broken, reply="s")
    )
    sequencer, (batch,) = sequence(data)
    found = records(batch)
    assert found[0] == Record(
        0, 5, b"k", b"v", (("subject", b"a"), ("reply", b"ignored"), ("h1", b"v1"))
    )
    assert found[1] == Record(1, 5, b"k", None, (("subject", b"a"),))
    assert found[2] == Record(2, 5, None, b"w", (("subject", b"a"), ("reply", b"r")))
    assert found[3].value == broken
    assert sequencer.counts.envelopes == 3
    assert batch.ack_entries == (
        b"\3\0\0\0\0" + b"\2\0in" + b"\2\0id" + b"\0" + b"\1\0a"
        + b"\5\1\0\0\0" + b"\2\0in" + b"\0\0" + b"\2" + b"\1\0a"
        + b"\2\2\0\0\0" + b"\1\0r" + b"\0\3\0\0\0" + b"\1\0s"
    )  # fmt: skip
    assert batch.ack_policies == ALL | LEADER | NONE


@pytest.mark.parametrize("default", AckPolicy)
def test_a_message_may_name_its_ack_policy(default: AckPolicy) -> None:
    def block(value: bytes) -> bytes:
        return b"NATS/1.0\r\nBascule-Ack: %s\r\n\r\n" % value

    lifted = b"\xb9\x0e\x43\xb4\0\x08\0\0" + b"\x1a\x01v\x52\x02in"
    named = [b"all", b"leader", b"none", b"Leader"]
    data = b"".join(msg("a", b"x", block=block(value), reply="r") for value in named)
    data += msg("a", b"x", reply="r") + msg("a", b"x")
    data += b"".join(msg("a", lifted + policy) for policy in (b"", b"\x60\1", b"\x60\2"))
    data += msg("a", lifted + b"\x60\2", block=block(b"all"))
    _, (batch,) = sequence(data, ack_policy=ACK_POLICIES[default])
    found, entries = {}, batch.ack_entries
    while entries:
        number = int.from_bytes(entries[1:5], "little")
        found[number] = (entries[0] & 1, entries[0] >> 1)
        size = 7 + int.from_bytes(entries[5:7], "little") + (entries[0] & 1) * 6
        entries = entries[size:]
    every, leader, none = 0, 1, 2
    assert found == {
        0: (0, every), 1: (0, leader), 2: (0, none), 3: (0, leader), 4: (0, ACK_POLICIES[default]),
        6: (1, leader), 7: (1, every), 8: (1, none), 9: (1, every),
    }  # fmt: skip


def test_any_message_comes_out_as_it_went_in() -> None:
    names = st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"),
        min_size=1, max_size=70,
    ).filter(lambda n: n.lower() != "bascule-key")  # fmt: skip
    values = st.text(st.characters(min_codepoint=32, max_codepoint=0x17F), max_size=70).map(
        lambda v: v.strip(" \t").encode()
    )
    names |= st.sampled_from(("reply", "subject", "Reply"))
    subjects = st.text("ab.*X", min_size=1, max_size=130) | st.sampled_from("abX")
    message = st.tuples(
        subjects, st.binary(max_size=9000), st.just("") | subjects,
        st.none() | st.lists(st.tuples(names, values), max_size=5), st.none() | values,
    )  # fmt: skip

    @given(
        st.lists(message, min_size=1, max_size=6), st.just("") | st.sampled_from("abX"),
        st.booleans(),
    )  # fmt: skip
    def check(
        drawn: list[tuple[str, bytes, str, list[tuple[str, bytes]] | None, bytes | None]],
        implied: str,
        keeps_reply: bool,
    ) -> None:
        data, wanted = b"", []
        for number, (subject, payload, reply, headers, key) in enumerate(drawn):
            block = b""
            if headers is not None:
                lines = [n.encode() + b": " + v for n, v in headers]
                if key is not None:
                    lines.insert(len(lines) // 2, b"Bascule-Key: " + key)
                block = b"\r\n".join([b"NATS/1.0", *lines, b"", b""])
            data += msg(subject, payload, reply=reply, block=block)
            kept: list[tuple[str, bytes | None]] = list(headers or [])
            own = kept[0][0] if kept else ""
            if keeps_reply and reply:
                kept.insert(0, ("reply", reply.encode()))
            elif own == "reply":
                kept.insert(0, ("reply", None))
            if subject != implied or own == "subject":
                kept.insert(0, ("subject", subject.encode()))
            key = key if headers is not None else None
            wanted.append(Record(number, 5, key, payload, tuple(kept)))
        _, (batch,) = sequence(data, implied=implied, keeps_reply=keeps_reply)
        assert records(batch) == wanted

    check()


def test_a_listener_gets_the_payloads_of_its_subscription_in_order() -> None:
    heard: list[bytes] = []
    sequencer = Sequencer(batch_bytes_max=1 << 20, hash_key=HASH_KEY)
    sequencer.routes.set_slot(0, PartitionSlot(NamedReplica(0), 1 << 20))
    sequencer.routes.set_slot(1, SubjectListener(heard.append, bytes_max=8))
    for sid in (1, 2):
        sequencer.routes.set_route(sid, (sid - 1,))
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    data = b"".join(
        [
            msg("a", b"stored"),
            msg("_own", b"one", sid=2),
            msg("_own", b"two", sid=2, block=block, reply="r"),
            msg("a", b"too"),
            msg("_own", b"", sid=2),
            msg("_own", b"12345678", sid=2),
            msg("_own", b"1234567890", sid=2),
        ]
    )
    messages, state = array("i", bytes(4 * 8 * 512)), array("q", bytes(32))
    buf = bytearray(data)
    count = wire_hot.parse_messages(buf, 0, len(buf), 1 << 24, 4096, messages, state)
    room = Room(sequencer.bytes_needed(messages, count, len(buf)))
    ((_, batches),), _ = sequencer.sequence(
        buf, messages, count, wire_bytes=len(buf), slab=room, start=0
    )
    assert heard == [b"one", b"two", b"", b"12345678", b"123456789"]
    assert [record.value for batch in batches for record in records(batch)] == [b"stored", b"too"]
    counts = sequencer.counts
    assert (counts.messages, counts.messages_unrouted) == (2, 0)
