"""Messages that expect a sequence of their key in a table."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.model import Cleanup, KeyFrom, StreamConfig, StreamDefinition
from bascule.publish import headers as headers_module
from bascule.publish import preconditions as preconditions_module
from bascule.publish.acks import AckFormat
from bascule.publish.headers import HashKey, read_publish_headers
from bascule.publish.preconditions import (
    NO_KEY_OF_TABLE,
    UNKNOWN_VERSION,
    Evaluation,
    Preconditions,
    record_keys,
)
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record, RecordBatch
from bascule.record.builder import build_batch
from bascule.record.header import seal
from bascule.wire.tables.keys import TableKeys, escape
from support.twins import Twin, load_twin

FORM = AckFormat(stream="s", subject="s.>", partition=0, replicas=1, synced=True)
HASH_KEY = HashKey(bytes(16))
SEQUENCE = "Nats-Expected-Last-Subject-Sequence"


@pytest.fixture(params=["compiled", "interpreted"], autouse=True)
def both_twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Twin:
    twin: Twin = request.param
    for module, name, hot in (
        (preconditions_module, "_hot", "publish/preconditions"),
        (preconditions_module, "_hot_answers", "publish/preconditions/_hot_answers"),
        (record_keys, "_hot", "publish/preconditions"),
        (record_keys, "_hot_keys", "publish/preconditions/_hot_keys"),
        (headers_module, "_hot", "publish/headers"),
    ):
        monkeypatch.setattr(module, name, load_twin(hot, twin))
    return twin


class Table:
    """The last record of each key, by the key: its offset, and whether it has a value."""

    def __init__(self, versions: Mapping[bytes, tuple[int, bool]]) -> None:
        self.versions = dict(versions)

    def find(self, keys: list[bytes], end_offset: int) -> array[int]:
        found = [self.versions.get(key, (-1, False)) for key in keys]
        assert all(version < end_offset for version, _ in found)
        return array("q", [int(number) for pair in found for number in pair])


Message = tuple[bytes | None, bytes | None, dict[str, str]]
"""A key, a value and headers."""


def batch(messages: Sequence[Message], *, acks: bool = False) -> UnstampedBatch:
    records = [
        Record(row, 0, key, value, tuple((name, text.encode()) for name, text in headers.items()))
        for row, (key, value, headers) in enumerate(messages)
    ]
    data = memoryview(build_batch(records, base_offset=0, log_append_time=True))
    inboxes = [b"in%d" % row for row in range(len(records) if acks else 0)]
    entries = b"".join(
        b"\0" + row.to_bytes(4, "little") + len(inbox).to_bytes(2, "little") + inbox
        for row, inbox in enumerate(inboxes)
    )
    made = UnstampedBatch(data, len(records), entries)
    made.headers = read_publish_headers(data, len(records), HASH_KEY)
    return made


def preconditions(table: Table | None, *, is_table: bool = True, **config: object) -> Preconditions:
    made = StreamConfig(
        "s.>", cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.HEADER, table=is_table, **config
    )  # type: ignore[arg-type]
    found = Preconditions(StreamDefinition("s", b"i" * 16, 0, made), FORM, HASH_KEY)
    found.key_versions = table
    return found


def taken(found: UnstampedBatch) -> list[tuple[bytes | None, bytes | None]]:
    if not found.record_count:
        return []
    seal(found.data, record_count=found.record_count, base_timestamp=1, max_timestamp=1)
    return [(record.key, record.value) for record in RecordBatch(found.data)]


def answers(evaluation: Evaluation | None) -> dict[str, dict[str, object]]:
    """The error of each message that was refused, by its reply subject."""
    assert evaluation is not None
    found, rest = {}, evaluation.refusals
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        _, subject, size = line.split()
        body, rest = rest[: int(size)], rest[int(size) + 2 :]
        found[subject.decode()] = json.loads(body)["error"]
    return found


KEYS = st.sampled_from([b"a", b"b", b"c"])
MESSAGES = st.tuples(
    KEYS,
    st.sampled_from([b"1", None]),
    st.fixed_dictionaries(
        {}, optional={SEQUENCE: st.integers(0, 9).map(str), "Nats-Msg-Id": st.just("one")}
    ),
)


@given(
    st.dictionaries(KEYS, st.tuples(st.integers(0, 4), st.booleans())),
    st.lists(MESSAGES, min_size=1, max_size=8),
)
def test_a_batch_is_evaluated_like_its_messages_one_by_one(
    versions: dict[bytes, tuple[int, bool]], messages: list[Message]
) -> None:
    table, made, end = Table(versions), batch(messages), 5
    preconditions(table, dedupe_window_ms=1_000).evaluate(made, next_offset=end, now_ms=1)
    expected, ids = [], set()
    for key, value, headers in messages:
        assert key is not None
        if (own := headers.get("Nats-Msg-Id")) in ids:
            continue
        last, has_value = versions.get(key, (-1, False))
        wanted = int(headers.get(SEQUENCE, last + 1))
        if wanted != last + 1 and not (wanted == 0 and not has_value):
            continue
        ids |= {own} - {None}
        versions[key] = end + len(expected), value is not None
        expected.append((key, value))
    assert taken(made) == expected


def test_a_refusal_tells_the_last_sequence_of_the_key() -> None:
    table = Table({b"a": (7, True), b"gone": (3, False), b"far": (1 << 40, True)})
    made = batch(
        [
            (b"a", b"x", {SEQUENCE: "0"}),
            (b"a", b"x", {SEQUENCE: "7"}),
            (b"a", b"new", {SEQUENCE: "8"}),
            (b"a", b"x", {SEQUENCE: "8"}),
            (b"gone", b"x", {SEQUENCE: "2"}),
            (b"gone", b"back", {SEQUENCE: "4"}),
            (b"none", b"x", {SEQUENCE: "1"}),
            (b"far", b"x", {SEQUENCE: "9"}),
        ],
        acks=True,
    )
    start = 1 << 41
    evaluation = preconditions(table).evaluate(made, next_offset=start, now_ms=1)
    assert taken(made) == [(b"a", b"new"), (b"gone", b"back")]
    found = answers(evaluation)
    assert {error["err_code"] for error in found.values()} == {10071}
    assert {subject: error["description"] for subject, error in found.items()} == {
        "in0": "wrong last sequence: 8",
        "in1": "wrong last sequence: 8",
        "in3": f"wrong last sequence: {start + 1}",
        "in4": "wrong last sequence: 4",
        "in6": "wrong last sequence: 0",
        "in7": f"wrong last sequence: {(1 << 40) + 1}",
    }


def test_what_cannot_be_compared_is_refused() -> None:
    versions = {b"bad": (NO_KEY_OF_TABLE, False), b"lag": (UNKNOWN_VERSION, False)}
    messages: list[Message] = [
        (b"bad", b"x", {SEQUENCE: "0"}),
        (b"lag", b"x", {SEQUENCE: "0"}),
        (b"a", b"x", {SEQUENCE: "-1"}),
        (b"a", b"x", {SEQUENCE: "0", "Nats-Expected-Last-Sequence": "0"}),
        (b"a", b"x", {"Nats-Expected-Last-Sequence": "0", SEQUENCE: "0"}),
        (b"a", b"x", {"Nats-Rollup": "all"}),
        (b"a", None, {"Nats-Rollup": "sub"}),
    ]
    made = batch(messages, acks=True)
    found = answers(preconditions(Table(versions)).evaluate(made, next_offset=5, now_ms=1))
    assert {subject: error["err_code"] for subject, error in found.items()} == {
        "in0": 20009,
        "in1": 10077,
        "in2": 20006,
        "in3": 20006,
        "in4": 20006,
        "in5": 20004,
    }
    assert taken(made) == [(b"a", None)]


@pytest.mark.parametrize("headers", [{SEQUENCE: "0"}, {"Nats-Rollup": "sub"}])
def test_a_stream_that_is_no_table_refuses_what_needs_one(headers: dict[str, str]) -> None:
    made = batch([(b"a", b"x", headers)], acks=True)
    evaluation = preconditions(None, is_table=False).evaluate(made, next_offset=0, now_ms=1)
    (error,) = answers(evaluation).values()
    assert error["err_code"] == 20004
    assert "bascule stream alter --table" in str(error["description"])


def test_a_table_that_is_not_open_yet_refuses_for_now() -> None:
    made = batch([(b"a", b"x", {SEQUENCE: "0"}), (b"a", b"y", {})], acks=True)
    evaluation = preconditions(None).evaluate(made, next_offset=0, now_ms=1)
    assert answers(evaluation)["in0"]["code"] == 503
    assert taken(made) == [(b"a", b"y")]


def test_a_stream_without_acks_still_compares() -> None:
    made = batch([(b"a", b"x", {SEQUENCE: "3"})])
    found = preconditions(Table({b"a": (7, True)}), acks=False)
    found.evaluate(made, next_offset=9, now_ms=1)
    assert made.record_count == 0
    assert found.counts.expectations_failed == 1


def table_preconditions(key_from: KeyFrom, subject: str = "$KV.t.>") -> Preconditions:
    made = StreamConfig(subject, cleanup=(Cleanup.COMPACT,), key_from=key_from, table=True)
    return Preconditions(StreamDefinition("t", b"i" * 16, 0, made), FORM, HASH_KEY)


RECORD_KEYS = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.text("a.%*2EFfzé ", max_size=6).map(lambda text: b"$KV.t." + text.encode()),
    st.binary(min_size=1, max_size=8).map(lambda key: b"$KV.t." + escape(key)),
    st.integers(1020, 1030).map(lambda size: b"$KV.t." + b"x" * size),
    st.integers(1020, 1030).map(lambda size: b"$KV.t." + b"%20" * size),
)


@given(st.lists(RECORD_KEYS, min_size=1, max_size=12), st.sampled_from(KeyFrom))
def test_messages_without_a_key_of_the_table_are_refused(
    keys: list[bytes | None], key_from: KeyFrom
) -> None:
    found = table_preconditions(key_from, "$KV.t.>" if key_from is KeyFrom.SUBJECT else "t")
    table = TableKeys(found._definition.config)
    made = batch([(key, b"1", {}) for key in keys], acks=True)
    evaluation = found.evaluate(made, next_offset=5, now_ms=1)
    good = [key for key in keys if key is not None and table.table_key(key) is not None]
    assert [key for key, _ in taken(made)] == good
    if len(good) == len(keys):
        assert evaluation is None
        return
    answered = answers(evaluation)
    bad = {f"in{row}" for row, key in enumerate(keys) if key is None or not table.table_key(key)}
    assert set(answered) == bad
    assert {error["err_code"] for error in answered.values()} == {20009}
    assert found.counts.headers_refused == len(bad)


def test_a_refusal_says_which_key_was_found_and_expected() -> None:
    found = table_preconditions(KeyFrom.SUBJECT)
    parts = [b"x" * 1025, b"%zz", b"a.*", b"%2f", b"good", b"a b"]
    made = batch([(b"$KV.t." + part, b"1", {}) for part in parts], acks=True)
    told = answers(found.evaluate(made, next_offset=0, now_ms=1))
    texts = {name: str(error["description"]) for name, error in told.items()}
    assert texts.keys() == {"in0", "in1", "in2", "in3", "in5"}
    assert texts["in0"].endswith("is not valid: it has 1025 bytes, expected 1 to 1024")
    assert texts["in1"] == "key '%zz' is not valid: found %zz in the subject, expected %25zz"
    assert texts["in2"] == "key 'a.*' is not valid: found a.* in the subject, expected a.%2A"
    assert texts["in3"] == "key '/' is not valid: found %2f in the subject, expected /"
    # A refused message has no effect on the window of ids, nor on those behind it.
    repeated = {"Nats-Msg-Id": "one"}
    made = batch([(b"$KV.t.%zz", b"1", repeated), (b"$KV.t.a", b"1", repeated)], acks=True)
    assert answers(found.evaluate(made, next_offset=1, now_ms=1)).keys() == {"in0"}
    assert taken(made) == [(b"$KV.t.a", b"1")]


def test_more_different_refusals_than_verdicts_are_all_told() -> None:
    found = table_preconditions(KeyFrom.SUBJECT)
    made = batch([(b"$KV.t.%%z%d" % row, b"1", {}) for row in range(300)], acks=True)
    told = answers(found.evaluate(made, next_offset=0, now_ms=1))
    assert len(told) == 300
    assert len({str(error["description"]) for error in told.values()}) == 101
    assert made.record_count == 0
