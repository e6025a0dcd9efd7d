"""The publisher preconditions against plain models, on both twins."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.host.real import RealRandom
from bascule.model import StreamConfig, StreamDefinition
from bascule.publish import headers as headers_module
from bascule.publish import preconditions as preconditions_module
from bascule.publish.acks import AckFormat
from bascule.publish.headers import HashKey, PublishHeaders, read_publish_headers
from bascule.publish.preconditions import BatchLimits, Preconditions
from bascule.publish.preconditions import dedupe_window as window_module
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record, RecordBatch
from bascule.record.builder import build_batch
from bascule.record.header import HEADER_BYTES, seal
from bascule.replica.dedupe_loading import load_dedupe_window
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.twins import Twin, load_twin

HASH_KEY = HashKey(bytes(range(100, 116)))
FORM = AckFormat(stream="s", subject="s.>", partition=0, replicas=1, synced=True)


@pytest.fixture(params=["compiled", "interpreted"], autouse=True)
def both_twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Twin:
    twin: Twin = request.param
    monkeypatch.setattr(preconditions_module, "_hot", load_twin("publish/preconditions", twin))
    answers = load_twin("publish/preconditions/_hot_answers", twin)
    monkeypatch.setattr(preconditions_module, "_hot_answers", answers)
    monkeypatch.setattr(window_module, "_hot", load_twin("publish/preconditions", twin))
    monkeypatch.setattr(headers_module, "_hot", load_twin("publish/headers", twin))
    return twin


def siphash13_128(key: bytes, data: bytes) -> tuple[int, int]:
    """SipHash with one and three rounds and 128 bits, written from its description."""
    mask = (1 << 64) - 1
    k0, k1 = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE,
         k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]  # fmt: skip

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & mask

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, left, turn in ((0, 1, 13, True), (2, 3, 16, False),
                                     (0, 3, 21, False), (2, 1, 17, True)):  # fmt: skip
                v[a] = (v[a] + v[b]) & mask
                v[b] = rotated(v[b], left) ^ v[a]
                if turn:
                    v[a] = rotated(v[a], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 255])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(1)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(3)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(3)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


@given(st.binary(max_size=70))
def test_ids_are_hashed_with_siphash(text: bytes) -> None:
    key = bytes(range(50, 66))
    found = tuple(number % (1 << 64) for number in HashKey(key).hash(text))
    assert found == siphash13_128(key, text)


def batch(headers: list[dict[str, str]], *, ack_entries: bytes = b"") -> UnstampedBatch:
    """A batch of records with these headers and values `0`, `1`, ..."""
    records = [
        Record(row, 0, None, b"%d" % row, (("subject", b"s"), *_encoded(each)))
        for row, each in enumerate(headers)
    ]
    batch = memoryview(build_batch(records, base_offset=0, log_append_time=True))
    made = UnstampedBatch(batch, len(records), ack_entries)
    made.headers = read_publish_headers(batch, len(records), HASH_KEY)
    return made


def _encoded(headers: dict[str, str]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value.encode()) for name, value in headers.items())


def values(found: UnstampedBatch) -> list[bytes | None]:
    if not found.record_count:
        return []
    seal(found.data, record_count=found.record_count, base_timestamp=1, max_timestamp=1)
    records = list(RecordBatch(found.data))
    assert [record.offset for record in records] == list(range(len(records)))
    return [record.value for record in records]


def preconditions(**config: int) -> Preconditions:
    made = StreamConfig("s.>", **config)  # type: ignore[arg-type]
    return Preconditions(StreamDefinition("s", b"i" * 16, 0, made), FORM, HASH_KEY)


class Model:
    """What a preconditions should do, message by message, in plain Python."""

    def __init__(self) -> None:
        self.ids: dict[str, tuple[int, int]] = {}
        self.end = 0
        self.last: str | None = None

    def takes(self, headers: dict[str, str], now_ms: int) -> bool:
        own = headers.get("Nats-Msg-Id")
        if own in self.ids and self.ids[own][1] >= now_ms - 1_000:
            return False
        if "Nats-Expected-Last-Sequence" in headers and (
            int(headers["Nats-Expected-Last-Sequence"]) != self.end
        ):
            return False
        if headers.get("Nats-Expected-Last-Msg-Id", self.last) != self.last:
            return False
        if own is not None:
            self.ids[own] = self.end, now_ms
        self.last = own
        self.end += 1
        return True


IDS = st.sampled_from([f"id-{n}" for n in range(12)])
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Nats-Msg-Id": IDS,
        "Nats-Expected-Last-Msg-Id": IDS,
        "Nats-Expected-Last-Sequence": st.integers(0, 30).map(str),
        "Other": st.just("x" * 70),
    },
)


@given(
    st.lists(
        st.tuples(
            st.just([{}]) | st.lists(HEADERS, min_size=1, max_size=12),
            st.integers(0, 700),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_a_batch_is_evaluated_like_its_messages_one_by_one(
    batches: list[tuple[list[dict[str, str]], int, bool]],
) -> None:
    evaluation, model, now_ms = preconditions(dedupe_window_ms=1_000), Model(), 10_000
    for headers, pause_ms, is_taken in batches:
        now_ms += pause_ms
        made = batch(headers)
        before, last, ids = model.end, model.last, dict(model.ids)
        if made.headers is not None and made.headers.count:
            evaluation.evaluate(made, next_offset=model.end, now_ms=now_ms)
        else:
            evaluation.accept_without_headers()
        expected = [b"%d" % row for row, each in enumerate(headers) if model.takes(each, now_ms)]
        assert values(made) == expected
        if not is_taken:
            # The disk was full: as if the batch had never been.
            evaluation.rollback(before)
            model.end, model.last, model.ids = before, last, ids


def test_a_batch_taken_back_brings_back_no_older_last_id() -> None:
    evaluation = preconditions()
    evaluation.evaluate(batch([{"Nats-Msg-Id": "a"}]), next_offset=0, now_ms=1)
    evaluation.accept_without_headers()
    evaluation.accept_without_headers()
    evaluation.rollback(2)
    late = batch([{"Nats-Expected-Last-Msg-Id": "a"}])
    evaluation.evaluate(late, next_offset=2, now_ms=1)
    assert values(late) == []


def test_rollback_of_a_batch_without_headers_restores_the_last_id() -> None:
    evaluation = preconditions()
    evaluation.evaluate(batch([{"Nats-Msg-Id": "a"}]), next_offset=0, now_ms=1)
    evaluation.accept_without_headers()
    evaluation.rollback(1)
    next_one = batch([{"Nats-Expected-Last-Msg-Id": "a"}])
    evaluation.evaluate(next_one, next_offset=1, now_ms=1)
    assert values(next_one) == [b"0"]


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.integers(0, 300), st.integers(0, 9000))
def test_limits_cut_a_batch_where_they_are_reached(
    with_id: list[bool], records_max: int, bytes_max: int
) -> None:
    made = batch([{"Nats-Msg-Id": f"{n}"} if has else {} for n, has in enumerate(with_id)])
    sizes = [len(each) for each in _records(bytes(made.data[HEADER_BYTES:]))]
    preconditions().evaluate(
        made, next_offset=7, now_ms=1, limits=BatchLimits(records=records_max, bytes=bytes_max)
    )
    expected: list[bytes] = []
    room = bytes_max
    for row, size in enumerate(sizes):
        if len(expected) < records_max and size <= room:
            expected.append(b"%d" % row)
            room -= size
    assert values(made) == expected


def _records(data: bytes) -> Iterator[bytes]:
    while data:
        raw, shift, at = 0, 0, 0
        while True:
            raw |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                break
        end = at + (raw >> 1)
        yield data[:end]
        data = data[end:]


def test_a_window_grows_and_forgets_the_oldest_beyond_its_number() -> None:
    evaluation = preconditions(dedupe_messages_max=5_000)
    for start in range(0, 20_000, 500):
        made = batch([{"Nats-Msg-Id": f"{n}"} for n in range(start, start + 500)])
        evaluation.evaluate(made, next_offset=start, now_ms=1)
        assert made.record_count == 500
    assert evaluation.ids == 5_000
    again = batch([{"Nats-Msg-Id": f"{n}"} for n in (14_999, 15_500, 19_999)])
    evaluation.evaluate(again, next_offset=20_000, now_ms=1)
    assert values(again) == [b"0"]
    assert evaluation.ids == 5_000
    assert evaluation.counts.ids_dropped_early == 15_000


def test_repetitions_push_no_ids_out_of_a_full_window() -> None:
    evaluation = preconditions(dedupe_messages_max=10)
    ids = [{"Nats-Msg-Id": f"{n}"} for n in range(10)]
    evaluation.evaluate(batch(ids), next_offset=0, now_ms=1)
    for repeated in (ids, [ids[0]], ids):
        evaluation.evaluate(again := batch(repeated), next_offset=10, now_ms=1)
        assert again.record_count == 0
    assert (evaluation.ids, evaluation.counts.ids_dropped_early) == (10, 0)


@pytest.mark.parametrize("name", ["Nats-Expected-Stream", "Nats-Expected-Last-Sequence"])
def test_messages_without_ids_push_no_ids_out_of_a_full_window(name: str) -> None:
    """`s` is this stream, and no sequence."""
    evaluation = preconditions(dedupe_messages_max=10)
    evaluation.evaluate(
        batch([{"Nats-Msg-Id": f"{n}"} for n in range(10)]), next_offset=0, now_ms=1
    )
    evaluation.evaluate(batch([{name: "s"}] * 20), next_offset=10, now_ms=1)
    loaded = preconditions(dedupe_messages_max=10)
    load(loaded, [{"Nats-Msg-Id": f"{n}"} for n in range(10)], base=0, now_ms=1)
    load(loaded, [{name: "s"}] * 20, base=10, now_ms=1)
    for window in (evaluation, loaded):
        assert (window.ids, stored_at(window, "0", now_ms=1)) == (10, 0)


def test_a_batch_with_more_ids_than_the_window_has_room_for_leaves_the_last_ones() -> None:
    evaluation = preconditions(dedupe_messages_max=10)
    ids = [{"Nats-Msg-Id": f"{n}"} for n in range(2_000)]
    evaluation.evaluate(made := batch([*ids, *ids]), next_offset=0, now_ms=1)
    assert made.record_count == 2_000
    assert evaluation.ids == 10
    evaluation.evaluate(again := batch(ids[-11:]), next_offset=2_000, now_ms=1)
    assert values(again) == [b"0"]
    assert evaluation.counts.ids_dropped_early == 1_990
    loaded = preconditions(dedupe_messages_max=10)
    load(loaded, ids, base=0, now_ms=1)
    assert (loaded.ids, stored_at(loaded, "1990", now_ms=1)) == (10, 1_990)


def test_a_repetition_is_answered_whose_id_its_own_batch_pushes_out() -> None:
    evaluation = preconditions(dedupe_messages_max=2)
    load(evaluation, [{"Nats-Msg-Id": "a"}, {"Nats-Msg-Id": "b"}], base=5, now_ms=1)
    headers = [{"Nats-Msg-Id": each} for each in ("c", "a", "d")]
    made = batch(headers, ack_entries=b"".join(entry(row, b"in%d" % row) for row in range(3)))
    replies = evaluation.evaluate(made, next_offset=7, now_ms=1)
    assert replies is not None
    assert (replies.duplicates_base, replies.duplicates) == (5, entry(0, b"in1"))
    assert [stored_at(evaluation, each, now_ms=1) for each in "acd"] == [None, 7, 8]


def test_a_batch_that_is_not_stored_pushes_no_ids_out_of_a_full_window() -> None:
    evaluation = preconditions(dedupe_messages_max=2)
    load(evaluation, [{"Nats-Msg-Id": "a"}, {"Nats-Msg-Id": "b"}], base=0, now_ms=1)
    for _ in range(3):
        evaluation.evaluate(batch([{"Nats-Msg-Id": "c"}]), next_offset=2, now_ms=1)
        evaluation.rollback(2)
    assert [stored_at(evaluation, each, now_ms=1) for each in "abc"] == [0, 1, None]


def test_a_window_without_ids_allocates_nothing() -> None:
    evaluation = preconditions()
    evaluation.evaluate(batch([{"Nats-Expected-Stream": "s"}]), next_offset=0, now_ms=1)
    load(evaluation, [{"Nats-Expected-Stream": "s"}], base=1, now_ms=1)
    assert len(evaluation._window.ring) == 0


def test_an_id_that_comes_after_a_large_window_ran_empty_is_forgotten_in_time() -> None:
    evaluation = preconditions(dedupe_window_ms=1_000)
    many = batch([{"Nats-Msg-Id": f"{n}"} for n in range(2 * window_module.CAPACITY_MIN)])
    evaluation.evaluate(many, next_offset=0, now_ms=1)
    end = many.record_count
    for now_ms, expected in ((5_000, [b"0"]), (6_000, []), (6_001, [b"0"])):
        evaluation.evaluate(one := batch([{"Nats-Msg-Id": "a"}]), next_offset=end, now_ms=now_ms)
        assert values(one) == expected
        end += one.record_count


def test_ids_stored_after_a_full_disk_are_remembered_for_the_whole_window() -> None:
    evaluation = preconditions(dedupe_window_ms=1_000)
    evaluation.evaluate(
        batch([{"Nats-Msg-Id": f"{n}"} for n in range(10)]), next_offset=0, now_ms=1
    )
    evaluation.rollback(0)
    evaluation.evaluate(batch([{"Nats-Msg-Id": "a"}]), next_offset=0, now_ms=900)
    again = batch([{"Nats-Msg-Id": "a"}])
    evaluation.evaluate(again, next_offset=1, now_ms=1_900)
    assert values(again) == []
    evaluation.evaluate(again := batch([{"Nats-Msg-Id": "a"}]), next_offset=1, now_ms=1_901)
    assert values(again) == [b"0"]


def entry(index: int, inbox: bytes) -> bytes:
    return b"\0" + index.to_bytes(4, "little") + len(inbox).to_bytes(2, "little") + inbox


def test_every_publisher_gets_an_ack_or_an_error_ack() -> None:
    evaluation = preconditions()
    first = batch([{"Nats-Msg-Id": "a"}])
    assert evaluation.evaluate(first, next_offset=40, now_ms=5) is None
    headers = [
        {"Nats-Msg-Id": "a"},
        {},
        {"Nats-Expected-Last-Sequence": "41"},
        {"Nats-Expected-Stream": "t"},
        {"Nats-Msg-Id": "b"},
    ]
    answers = b"".join(entry(row, b"inbox%d" % row) for row in range(5))
    made = batch(headers, ack_entries=answers)
    replies = evaluation.evaluate(made, next_offset=41, now_ms=6)
    assert replies is not None
    assert (replies.duplicates, replies.duplicates_base, replies.duplicate_count) == (
        entry(0, b"inbox0"), 40, 1,
    )  # fmt: skip
    assert made.ack_entries == entry(0, b"inbox1") + entry(1, b"inbox4")
    assert b"PUB inbox2 " in replies.refusals
    assert b'"description":"wrong last sequence: 42"' in replies.refusals
    assert b'"description":"expected stream does not match: this is s"' in replies.refusals
    counts = evaluation.counts
    assert (counts.duplicates, counts.expectations_failed) == (1, 2)


REQUESTS = [
    "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Schedule",
    "Nats-Schedule-TTL", "Nats-Schedule-Target", "Nats-Schedule-Next", "Nats-Scheduler",
    "Nats-Incr", "Nats-Required-Api-Level", "Nats-Rollup",
    "Nats-Expected-Last-Subject-Sequence-Subject",
    "Nats-Expected-Streams", "Nats-X", "nats-of-2031", "NATS-INCR", "Nats-Msg-Id-Extra",
    "Bascule-Payload-Id", "bascule-payload-bytes", "BASCULE-PAYLOAD-CRC32C", "Bascule-Payload-X",
]  # fmt: skip
INFORMS = [
    "Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Last-Sequence",
    "Nats-Num-Pending", "Nats-UpTo-Sequence", "Nats-Msg-Size", "Nats-Stream-Source",
    "Nats-Last-Consumer", "Nats-Last-Stream", "Nats-Consumer-Stalled", "Nats-Marker-Reason",
    "Nats-Counter-Sources", "Nats-Response-Type", "Nats-Pending-Messages", "Nats-Pending-Bytes",
    "Nats-Pin-Id", "Nats-Request-Info", "Nats-Server-Xkey", "Nats-Service-Error",
    "Nats-Service-Error-Code", "Nats-Trace-Dest", "Nats-Trace-Only", "nats-trace-hop",
    "Nats-Header-Block", "Nats", "Natsy-Id", "Bascule-Key", "traceparent",
    "Bascule-Payload", "Bascule-Payloads-Id",
]  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_header_that_requests_what_is_not_supported_is_refused_by_name(name: str) -> None:
    # Beside headers that are supported, in front of them and after them.
    sequence = {"Nats-Expected-Last-Sequence": "0"}
    headers = [{name: "1"}, {"Nats-Msg-Id": "a", **sequence, name: "1"},
               {name: "1", "Nats-Msg-Id": "b", **sequence}]  # fmt: skip
    made = batch(headers, ack_entries=b"".join(entry(row, b"in%d" % row) for row in range(3)))
    evaluation = preconditions()
    replies = evaluation.evaluate(made, next_offset=0, now_ms=5)
    assert replies is not None
    assert made.record_count == 0
    text = f'"err_code":20004,"description":"the header {name} is not supported here"'
    assert replies.refusals.count(text.encode()) == 3
    assert evaluation.counts.headers_refused == 3
    assert evaluation.ids == 0


@pytest.mark.parametrize("name", INFORMS)
def test_a_header_that_requests_nothing_is_stored(name: str) -> None:
    made = batch([{name: "1"}, {"Nats-Msg-Id": "a", name: "1"}])
    assert preconditions().evaluate(made, next_offset=0, now_ms=5) is None
    assert made.record_count == 2


def test_each_message_of_a_batch_is_told_the_name_of_its_own_header() -> None:
    headers = [
        {"Nats-Incr": "1"},
        {},
        {"Nats-Batch-Id": "1"},
        {"Nats-Incr": "2"},
        {"nats-incr": "2"},
    ]
    made = batch(headers, ack_entries=b"".join(entry(row, b"in%d" % row) for row in range(5)))
    replies = preconditions().evaluate(made, next_offset=0, now_ms=5)
    assert replies is not None
    answered = dict(
        operation.split(b" ", 1) for operation in replies.refusals.split(b"PUB ") if operation
    )
    told = {inbox: text.split(b"the header ")[1].split()[0] for inbox, text in answered.items()}
    assert told == {b"in0": b"Nats-Incr", b"in2": b"Nats-Batch-Id", b"in3": b"Nats-Incr",
                    b"in4": b"nats-incr"}  # fmt: skip
    assert made.ack_entries == entry(0, b"in1")


def test_a_malformed_header_block_that_asks_for_something_is_refused_by_its_odd_line() -> None:
    """JetStream honours the other lines. They would have no effect here."""
    asking = "\r\nNats-Msg-Id: 7\r\n\r\n"
    blocks = {
        "NATS/1.0\r\nOrder Type: v" + asking: "Order Type",
        "NATS/1.0\r\nGröße: v" + asking: "Größe",
        "NATS/1.0\r\n: v\r\n: w" + asking: "",
        'NATS/1.0\r\na "b"\t' + asking: 'a \\"b\\"\\t',
        "NATS/1.0\r\nA: v" + asking + "rest": "rest",
        "NATS/1.0\r\nA: v" + asking[:-4]: "Nats-Msg-Id",
        "NATS/1.0 503" + asking: "NATS/1.0 503",
        "NATS/1.0\r\n" + "x" * 70_000 + asking: "x" * 100,
    }
    headers = [{"Nats-Header-Block": block} for block in blocks]
    headers += [{"Nats-Order Type": "v"}, {"Nats-Header-Block": "NATS/1.0\r\nOrder Type: v"}]
    entries = b"".join(entry(row, b"in%d" % row) for row in range(len(headers)))
    evaluation = preconditions()
    replies = evaluation.evaluate(batch(headers, ack_entries=entries), next_offset=0, now_ms=5)
    assert replies is not None
    told = replies.refusals.decode()
    for at in blocks.values():
        text = f"malformed header block at '{at}': what it asks for would have no effect"
        expected = f'"err_code":20004,"description":"{text}"'
        assert told.count(expected) == 1, at
    assert told.count("the header Nats-Order Type is not supported here") == 1
    assert told.count("PUB") == len(headers) - 1 == evaluation.counts.headers_refused


def test_more_names_than_are_told_apart_are_refused_without_a_name() -> None:
    names = [f"Nats-New-{number}" for number in range(40)]
    headers = [{name: "1"} for name in [*names, "Nats-" + "x" * 70_000, names[0]]]
    entries = b"".join(entry(row, b"in%d" % row) for row in range(len(headers)))
    replies = preconditions().evaluate(batch(headers, ack_entries=entries), next_offset=0, now_ms=5)
    assert replies is not None
    assert replies.refusals.count(b"the header Nats-New-") == 33
    assert replies.refusals.count(b"the message has headers that are not supported here") == 9
    long_name = batch([headers[-2]], ack_entries=entry(0, b"in"))
    replies = preconditions().evaluate(long_name, next_offset=0, now_ms=5)
    assert replies is not None
    assert b'"the header Nats-' + b"x" * 95 + b" is not supported" in replies.refusals


def test_a_stored_message_with_an_unsupported_header_keeps_its_id() -> None:
    """Earlier versions stored such messages; a log that has them is loaded."""
    loaded = preconditions()
    stored = batch([{"Nats-Msg-Id": "a", "Nats-Incr": "1"}]).headers
    assert stored is not None
    loaded.load_batch(stored, base_offset=7, end_offset=8, timestamp=5)
    replies = loaded.evaluate(
        batch([{"Nats-Msg-Id": "a"}], ack_entries=entry(0, b"in")), next_offset=8, now_ms=5
    )
    assert replies is not None
    assert (replies.duplicate_count, replies.duplicates_base) == (1, 7)


def test_records_with_wrong_lengths_are_refused(
    hot: Callable[[str], ModuleType],
) -> None:
    good = batch([{"Nats-Msg-Id": "abc"}, {"Nats-Expected-Stream": "s"}])
    rows = array("q", bytes(8 * 8 * 3))
    read = hot("publish/headers").read_publish_headers
    for at in range(HEADER_BYTES, len(good.data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            bad = bytearray(good.data)
            bad[at] = value
            assert read(bad, HEADER_BYTES, 2, HASH_KEY.numbers, array("q"), rows) in (-1, 0, 1, 2)


@pytest.mark.parametrize("last_id", [None, "id-9"])
def test_a_log_gives_back_what_was_known(last_id: str | None) -> None:
    clock = SimClock(1_000_000)
    log = PartitionLog.open(
        SimFiles(RealRandom(1)), "log", LogConfig(segment_bytes_max=2_000), clock
    )
    live = preconditions(dedupe_window_ms=5_000)
    for turn in range(40):
        headers = [{"Nats-Msg-Id": f"{turn}-{n}"} if n % 2 else {} for n in range(5)]
        if turn == 39 and last_id is not None:
            headers[-1] = {"Nats-Msg-Id": last_id}
        elif turn == 39:
            headers[-1] = {}
        made = batch(headers)
        now_ms = 1_000_000 + 300 * turn
        live.evaluate(made, next_offset=5 * turn, now_ms=now_ms)
        seal(made.data, record_count=5, base_timestamp=now_ms, max_timestamp=now_ms,
             base_offset=5 * turn)  # fmt: skip
        log.append(made.data)
    loaded = preconditions(dedupe_window_ms=5_000)
    now_ms = 1_000_000 + 300 * 39
    load_dedupe_window(loaded, log, since_ms=now_ms - 5_000)
    probe = [{"Nats-Msg-Id": f"{turn}-{n}"} for turn in range(40) for n in (1, 3)]
    probe += [{"Nats-Expected-Last-Msg-Id": "id-9"}]
    for one in probe:
        left = batch([one]), batch([one])
        live.evaluate(left[0], next_offset=200, now_ms=now_ms)
        loaded.evaluate(left[1], next_offset=200, now_ms=now_ms)
        assert left[0].record_count == left[1].record_count, one
        if left[0].record_count:
            live.rollback(200)
            loaded.rollback(200)


def stored_at(evaluation: Preconditions, message_id: str, *, now_ms: int) -> int | None:
    """The offset of the stored message with this id; None if it is not known."""
    again = batch([{"Nats-Msg-Id": message_id}], ack_entries=entry(0, b"in"))
    replies = evaluation.evaluate(again, next_offset=1_000, now_ms=now_ms)
    if replies is None:
        evaluation.rollback(1_000)
        return None
    return replies.duplicates_base + int.from_bytes(replies.duplicates[1:5], "little")


def load(loaded: Preconditions, headers: list[dict[str, str]], *, base: int, now_ms: int) -> None:
    read = batch(headers).headers
    assert read is not None
    loaded.load_batch(read, base_offset=base, end_offset=base + len(headers), timestamp=now_ms)


def test_a_replica_that_never_leads_holds_no_more_than_the_window() -> None:
    loaded = preconditions(dedupe_window_ms=1_000, dedupe_messages_max=3)
    for n in range(10):
        load(loaded, [{"Nats-Msg-Id": f"{n}"}], base=n, now_ms=600 * n)
        assert loaded.ids == min(n + 1, 2)
    assert stored_at(loaded, "8", now_ms=5_400) == 8
    assert loaded.counts.ids_dropped_early == 0


def test_an_id_that_was_stored_again_after_the_window_is_known_from_then_on() -> None:
    loaded = preconditions(dedupe_window_ms=2_000)
    for offset, now_ms in ((0, 0), (1, 2_100)):
        load(loaded, [{"Nats-Msg-Id": "a"}], base=offset, now_ms=now_ms)
    assert stored_at(loaded, "a", now_ms=4_100) == 1
    assert stored_at(loaded, "a", now_ms=4_101) is None


@given(
    st.lists(
        st.tuples(st.lists(IDS, min_size=1, max_size=5), st.integers(0, 700)),
        min_size=1,
        max_size=12,
    )
)
def test_a_replica_knows_what_its_leader_knows_that_forgets_early(
    batches: list[tuple[list[str], int]],
) -> None:
    """The leader stores ids again that it has forgotten for their number."""
    leader = preconditions(dedupe_window_ms=1_000, dedupe_messages_max=3)
    loaded = preconditions(dedupe_window_ms=1_000)
    end, now_ms = 0, 10_000
    for ids, pause_ms in batches:
        now_ms += pause_ms
        made = batch([{"Nats-Msg-Id": each} for each in ids])
        leader.evaluate(made, next_offset=end, now_ms=now_ms)
        if made.record_count:
            kept = read_publish_headers(made.data, made.record_count, HASH_KEY)
            base, end = end, end + made.record_count
            loaded.load_batch(kept, base_offset=base, end_offset=end, timestamp=now_ms)
    for each in sorted({each for ids, _ in batches for each in ids}):
        known = stored_at(leader, each, now_ms=now_ms)
        assert known is None or stored_at(loaded, each, now_ms=now_ms) == known


def test_publish_headers_say_whether_there_are_ids() -> None:
    found = batch([{}, {"Nats-Expected-Stream": "s"}]).headers
    assert isinstance(found, PublishHeaders)
    assert not found.has_ids()
