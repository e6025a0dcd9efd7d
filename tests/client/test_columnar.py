"""Arrow rows as NATS operations: both twins against the encoder of single messages."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.client.columnar import columns as columns_module
from bascule.client.columnar.columns import ColumnBuffers, PublishRoute, check_schema
from bascule.client.messages import MessageEncoder
from bascule.errors import ColumnMismatch, ConfigError, InvalidName, RowRefused

Hot = Callable[[str], ModuleType]
PREFIX = b"_INBOX.abc.7."
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", PAIRS),
    ]
)
Row = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes]] | None]


@pytest.fixture
def encoding(hot: Hot, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`ColumnBuffers` on one of the twins."""
    twin = hot("client/columnar")
    monkeypatch.setattr(columns_module, "_hot", twin)
    return twin


def batch_of(rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    cells = [
        {
            "subject": subject,
            "key": key,
            "value": value,
            "headers": None if headers is None else [{"key": k, "value": v} for k, v in headers],
        }
        for subject, key, value, headers in rows
    ]
    return pa.RecordBatch.from_pylist(cells, schema=schema)


def encode(
    batch: pa.RecordBatch,
    route: PublishRoute | None = None,
    *,
    first: int = 0,
    room: int = 1 << 16,
    rows_max: int = 1_000,
    payload_bytes_max: int = 1 << 20,
) -> list[bytes]:
    """The operation of each row. Raises: RowRefused."""
    columns = ColumnBuffers(batch, route or PublishRoute(), first_row=first)
    frames: list[bytes] = []
    while len(frames) < batch.num_rows:
        out, ends, state = bytearray(room), array("i", bytes(4 * rows_max)), array("q", [0] * 4)
        taken = columns.encode(
            len(frames), rows_max, prefix=PREFIX, payload_bytes_max=payload_bytes_max,
            out=out, ends=ends, state=state,
        )  # fmt: skip
        if taken == 0 and state[1] != 1:
            raise columns.refusal(len(frames), state, payload_bytes_max)
        assert taken or state[2] > room
        if not taken:
            room = state[2]
        at = 0
        for end in ends[:taken]:
            frames.append(bytes(out[at:end]))
            at = end
        assert at == state[0]
    return frames


def expected(number: int, row: Row, id: str | None = None) -> bytes:
    """The same by the encoder of single messages."""
    subject, key, value, headers = row
    pairs: list[tuple[str, bytes]] = list(headers or [])
    if value is None and not any(name.lower() == "kv-operation" for name, _ in pairs):
        pairs.append(("KV-Operation", b"DEL"))
    if id is not None:
        pairs.append(("Nats-Msg-Id", id.encode()))
    return MessageEncoder().encode(b"%b%d" % (PREFIX, number), subject, value or b"", key, pairs)


def id_of(frame: bytes) -> str | None:
    at = frame.find(b"\r\nNats-Msg-Id: ")
    return None if at < 0 else frame[at + 15 : frame.index(b"\r\n", at + 2)].decode()


ROWS = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from(["a", "a.b", "flights.JFK.B6", "ü.b"]),
            st.text("ab.*> \n\xa0\x00ü", max_size=6),
        ),
        st.one_of(st.none(), st.binary(max_size=12), st.sampled_from([b"", b" a", b"a\t", b"a b"])),
        st.one_of(st.none(), st.binary(max_size=200)),
        st.one_of(
            st.none(),
            st.lists(
                st.tuples(
                    st.one_of(
                        st.sampled_from(["A", "KV-Operation", "kv-operation", "Nats-TTL"]),
                        st.text("aB-: \r\xe4", max_size=4),
                    ),
                    st.one_of(st.binary(max_size=9), st.sampled_from([b"DEL", b" x", b"\n"])),
                ),
                max_size=3,
            ),
        ),
    ),
    max_size=8,
)


@settings(max_examples=300)
@given(rows=ROWS, first=st.integers(0, 10**12), prefix=st.sampled_from(["", "q-1."]), cut=st.data())
def test_agrees_with_the_encoder_of_single_messages(
    twin: str, hot: Hot, rows: list[Row], first: int, prefix: str, cut: Any
) -> None:
    """Whatever is in the rows: the same bytes, or both refuse; slices are rows of their own."""
    batch = batch_of([("x", b"k", b"v", [("H", b"1")]), *rows, ("y", None, None, None)])
    start = cut.draw(st.integers(0, len(rows)))
    count = cut.draw(st.integers(0, len(rows) + 1 - start))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "_hot", hot("client/columnar"))
        part = batch.slice(1 + start, count)
        rows = [*rows, ("y", None, None, None)][start : start + count]
        try:
            frames = encode(part, PublishRoute(id_prefix=prefix), first=first, room=64, rows_max=3)
        except RowRefused as refusal:
            bad = refusal.row - first
            assert refusal.why
            with pytest.raises((InvalidName, ValueError)):
                expected(first + bad, rows[bad])
            return
    for number, (row, frame) in enumerate(zip(rows, frames, strict=True), first):
        assert frame == expected(number, row, id_of(frame))
        if prefix:
            assert (id_of(frame) or "").startswith(f"q-1.{number}.")


def test_a_good_batch_is_not_refused(encoding: ModuleType) -> None:
    rows: list[Row] = [("a.b", b"k%d" % n, b"v" * n, [("H", b"x")] * (n % 3)) for n in range(50)]
    assert encode(batch_of(rows)) == [expected(n, row) for n, row in enumerate(rows)]


def test_ids_follow_the_row_and_not_the_place(encoding: ModuleType) -> None:
    """A row that comes again has its id again; another row in its place has another."""
    rows: list[Row] = [("a", b"k", b"%d" % n, None) for n in range(5)]
    route = PublishRoute(id_prefix="q.")
    ids = [id_of(frame) for frame in encode(batch_of(rows), route)]
    again = encode(batch_of(rows[:2]), route) + encode(batch_of(rows[2:]), route, first=2)
    assert [id_of(frame) for frame in again] == ids
    turned = [id_of(frame) for frame in encode(batch_of(rows[::-1]), route)]
    assert not {*ids} & {*turned} - {ids[2]}
    assert len({*ids}) == 5


def test_a_checksum_tells_fields_apart(encoding: ModuleType) -> None:
    rows: list[Row] = [
        ("a", b"", b"x", None),
        ("a", None, b"x", None),
        ("a", b"x", b"", None),
        ("a", b"x", None, None),
        ("a", None, b"x", [("h", b"")]),
        ("b", None, b"x", None),
        ("a", None, b"12345678", None),
        ("a", None, b"12345678\0", None),
    ]
    sums = {
        (id_of(encode(batch_of([row]), PublishRoute(id_prefix="q."))[0]) or "").rsplit(".", 1)[1]
        for row in rows
    }
    assert len(sums) == len(rows)


def test_both_twins_make_the_same_ids(hot: Hot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_hot", hot("client/columnar"))
    rows: list[Row] = [("a.b", b"key", b"a value of 23 bytes now", [("H", b"1")])]
    assert (
        id_of(encode(batch_of(rows), PublishRoute(id_prefix="q."), first=41)[0]) == "q.41.724b5145"
    )


def test_one_subject_for_all_and_a_column_of_ids(encoding: ModuleType) -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["x", ""], "message_id": ["one", "two"]})
    frames = encode(batch, PublishRoute(subject="s.t", id_prefix="unused."))
    assert frames == [
        b"HPUB s.t _INBOX.abc.7.0 30 31\r\nNATS/1.0\r\nNats-Msg-Id: one\r\n\r\nx\r\n",
        b"HPUB s.t _INBOX.abc.7.1 30 30\r\nNATS/1.0\r\nNats-Msg-Id: two\r\n\r\n\r\n",
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.string(), pa.string()),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
        pa.large_list(pa.struct([("name", pa.large_string()), ("value", pa.large_binary())])),
    ],
    ids=str,
)
def test_headers_of_every_shape(encoding: ModuleType, kind: pa.DataType) -> None:
    pairs = [[("A", "1"), ("B", "2")], None, [], [("C", "3")]]
    if not pa.types.is_map(kind):
        first = kind.value_type.field(0).name
        pairs = [p and [{first: k, "value": v} for k, v in p] for p in pairs]  # type: ignore[misc]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["s"] * 4), pa.array([b"v"] * 4), pa.array(pairs, kind)],
        names=["subject", "value", "headers"],
    )
    frames = encode(batch)
    assert [frame.count(b": ") for frame in frames] == [2, 0, 0, 1]
    assert b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\nv" in frames[0]
    assert frames[1] == b"PUB s _INBOX.abc.7.1 1\r\nv\r\n"
    assert encode(batch.slice(2), first=2) == frames[2:]
    assert encode(batch.slice(3), first=3) == frames[3:]


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_text_of_every_type(encoding: ModuleType, kind: pa.DataType) -> None:
    subjects = pa.array(["a", "b"]).cast(kind)
    values = pa.array([b"xy", b"zw"], pa.binary(2))
    batch = pa.RecordBatch.from_arrays([subjects, values], names=["subject", "value"])
    assert encode(batch) == [
        b"PUB a _INBOX.abc.7.0 2\r\nxy\r\n",
        b"PUB b _INBOX.abc.7.1 2\r\nzw\r\n",
    ]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((None, None, b"", None), "its subject is null"),
        (("a.*", None, b"", None), "wildcards cannot be published to"),
        (("a\xa0b", None, b"", None), "at position 1 is not allowed"),
        (("b", None, b"", None), "the stream takes subjects 'a.>' only"),
        (("a.b", b"x\ny", b"", None), "key holds a line break"),
        (("a.b", b" x", b"", None), "key begins or ends with a blank"),
        (("a.b", None, b"", [("a b", b"")]), "header name 'a b'"),
        (("a.b", None, b"", [("a", b"1"), ("b", b"\r")]), "the value of header 'b' holds a line"),
        (("a.b", None, b"", [("a", None)]), "the value of header 'a' is null"),
        (("a.b", None, b"", [(None, b"1")]), "header name None"),
        (("a.b", None, b"", [("bascule-KEY", b"1")]), "is the message's key"),
        (("a.b", None, b"", [("Nats-Msg-Id", b"1")]), "is set from the message id"),
        (("a.b", None, b"x" * 5_000, None), "max_payload is 4096"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_name_row_and_reason(encoding: ModuleType, row: Any, why: str) -> None:
    good: Row = ("a.b", b"k", b"v", None)
    with pytest.raises(RowRefused) as caught:
        encode(
            batch_of([good, good, row]),
            PublishRoute(pattern="a.>", id_prefix="q."),
            first=100,
            payload_bytes_max=4_096,
        )
    assert why in str(caught.value)
    assert (caught.value.row, caught.value.subject) == (102, row[0])


def test_null_pairs_of_headers_are_refused(encoding: ModuleType) -> None:
    pairs = pa.array([[None]], PAIRS)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["s"]), pa.array([b"v"]), pairs], names=["subject", "value", "headers"]
    )
    with pytest.raises(RowRefused, match="header name None"):
        encode(batch)


@pytest.mark.parametrize("id", [None, "", "a\n", " a"])
def test_ids_must_be_lines(encoding: ModuleType, id: str | None) -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["x"], "message_id": pa.array([id], pa.string())})
    with pytest.raises(RowRefused, match="message_id is"):
        encode(batch, PublishRoute(subject="s"))


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a", "a", True),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("a.b", "a.bc", False),
        ("a.bc", "a.b", False),
        (">", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "b.c", False),
        ("*", "abc", True),
        ("*", "a.b", False),
        ("a.*", "a", False),
        ("a.*.c", "a.bbb.c", True),
        ("a.*.c", "a.b.d", False),
        ("a.*.c", "a.b", False),
        ("a.*.>", "a.b.c.d", True),
        ("a.*.>", "a.b", False),
        ("ü.*", "ü.x", True),
    ],
)
def test_subjects_of_a_stream(hot: Hot, pattern: str, subject: str, fits: bool) -> None:
    assert hot("client/columnar").subject_matches(pattern.encode(), subject.encode()) is fits


def test_routes_are_checked() -> None:
    PublishRoute(subject="a.b", pattern="a.>", id_prefix="x-").check()
    for route in (
        PublishRoute(subject="b", pattern="a.>"),
        PublishRoute(id_prefix="a\nb"),
        PublishRoute(id_prefix=" a"),
        PublishRoute(subject="a.*"),
    ):
        with pytest.raises((ConfigError, InvalidName)):
            route.check()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"subject": pa.string()}, "column 'value': found no such column, expected binary"),
        ({"value": pa.binary()}, "column 'subject': found no such column"),
        ({"value": pa.int64(), "subject": pa.string()}, "column 'value': found int64"),
        ({"value": pa.binary(), "subject": pa.binary()}, "'subject': found binary, expected str"),
        ({"value": pa.binary(), "subject": pa.string(), "keys": pa.string()}, "column 'keys'"),
        ({"value": pa.binary(), "subject": pa.string(), "headers": pa.string()}, "array<struct"),
        (
            {"value": pa.binary(), "subject": pa.string(),
             "headers": pa.map_(pa.string(), pa.int32())},
            "column 'headers': found map<string, int32>",
        ),
    ],
)  # fmt: skip
def test_schemas_are_checked(fields: dict[str, pa.DataType], said: str) -> None:
    with pytest.raises(ColumnMismatch) as caught:
        check_schema(pa.schema(list(fields.items())), has_subject=False)
    assert said in str(caught.value)


def test_what_was_read_can_be_published() -> None:
    from bascule.record.columns import SCHEMA as READ

    check_schema(READ, has_subject=False)


def test_lying_buffers_are_not_followed(hot: Hot) -> None:
    """Ends beyond the data, bitmaps and children too short: refused, nothing is read."""
    encode_rows = hot("client/columnar").encode_rows
    none, ends = array("i"), array("i", [0, 1])
    out, out_ends, state = bytearray(200), array("i", [0] * 4), array("q", [0] * 4)

    def call(subject: Any, value: Any, headers: Any = (none, b"")) -> int:
        state[:] = array("q", [0] * 4)
        return int(
            encode_rows(
                0, 1, 0, 0, b"r.", b"", b"", b"", array("q", [0] * 7), *subject, none, b"", b"",
                *value, *headers, ends, b"n", b"", ends, b"c", b"", none, b"", b"",
                1 << 20, out, out_ends, state,
            )
        )  # fmt: skip

    good = (ends, b"s", b"")
    assert call(good, good) == 1
    for bad in (array("i", [0, 9]), array("i", [5, 1]), array("i", [-4, 1]), array("i", [0])):
        assert call((bad, b"s", b""), good) == 0
        assert state[1] == 10
        assert call(good, (bad, b"s", b"")) == 0
        assert state[1] == 10
    assert call(good, good, (ends, b"")) == 1
    assert call(good, good, (array("i", [0, 2]), b"")) == 0
    assert state[1] == 10
    with pytest.raises(IndexError):
        encode_rows(
            0, 1, 0, 0, b"r.", b"s", b"", b"", array("q"), *good, *good, *good, none, b"",
            none, b"", b"", none, b"", b"", none, b"", b"", 9, out, out_ends, state,
        )  # fmt: skip
