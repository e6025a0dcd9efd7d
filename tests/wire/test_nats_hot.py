"""Both twins of the NATS parser and the ack writer."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

Load = Callable[[str], ModuleType]

TOKEN = st.text(st.sampled_from("abcXYZ09._-*"), min_size=1, max_size=12)


def parse(hot: ModuleType, data: bytes, *, room: int = 64, body_max: int = 1 << 20) -> object:
    messages = array("i", bytes(4 * 8 * room))
    state = array("q", bytes(32))
    count = hot.parse_messages(data, 0, len(data), body_max, 4096, messages, state)
    found = []
    for n in range(count):
        sid, subject_at, subject, reply_at, reply, headers, body_at, body = messages[
            8 * n : 8 * n + 8
        ]
        found.append(
            (
                sid,
                data[subject_at : subject_at + subject],
                data[reply_at : reply_at + reply],
                data[body_at : body_at + headers],
                data[body_at + headers : body_at + body],
            )
        )
    return found, list(state[:3])


MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2**31 - 1),
        TOKEN,
        st.just("") | TOKEN,
        st.none() | st.binary(min_size=1, max_size=30),
        st.binary(max_size=200),
        st.sampled_from([" ", "\t", "  "]),
    ),
    max_size=12,
)


def encode(message: tuple[int, str, str, bytes | None, bytes, str]) -> bytes:
    sid, subject, reply, headers, payload, blank = message
    words = [subject, str(sid), *([reply] if reply else [])]
    if headers is None:
        words += [str(len(payload))]
    else:
        words += [str(len(headers)), str(len(headers) + len(payload))]
    line = blank.join(["MSG" if headers is None else "HMSG", *words]).encode()
    return line + b"\r\n" + (headers or b"") + payload + b"\r\n"


def test_messages_are_parsed_from_any_chunks(hot: Load) -> None:
    module = hot("wire")

    @given(MESSAGES, st.data())
    def check(
        messages: list[tuple[int, str, str, bytes | None, bytes, str]], data: st.DataObject
    ) -> None:
        operations = [encode(m) for m in messages]
        whole = b"".join(operations)
        cut = data.draw(st.integers(0, len(whole)))
        found, (consumed, reason, needed) = parse(module, whole[:cut])
        complete = [
            (m[0], m[1].encode(), m[2].encode(), m[3] or b"", m[4])
            for n, m in enumerate(messages)
            if len(b"".join(operations[: n + 1])) <= cut
        ]
        assert found == complete
        assert reason == module.NEED_DATA
        assert consumed == sum(map(len, operations[: len(complete)]))
        if cut < len(whole):
            assert cut - consumed < needed <= len(operations[len(complete)])

    check()


def test_control_lines_are_returned(hot: Load) -> None:
    module = hot("wire")
    data = b"MSG a 1 0\r\n\r\nPING\r\n-ERR 'x'\r\n"
    found, (at, reason, end) = parse(module, data)
    assert len(found) == 1
    assert reason == module.CONTROL_LINE
    assert data[at:end] == b"PING"
    _, (at, reason, end) = parse(module, data[end + 2 :])
    assert data[-len(b"-ERR 'x'\r\n") :][at:end] == b"-ERR 'x'"


def test_a_full_array_stops_the_parser(hot: Load) -> None:
    module = hot("wire")
    data = b"MSG a 1 1\r\nx\r\n" * 5
    found, (at, reason, _) = parse(module, data, room=3)
    assert len(found) == 3
    assert reason == module.MESSAGES_FULL
    assert at == 3 * 14


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1\r\n",
        b"MSG a b 1 2 3\r\n",
        b"MSG a x 0\r\n\r\n",
        b"MSG a 1 -1\r\n\r\n",
        b"MSG a 1 99999999999\r\n",
        b"MSG a 4294967296 0\r\n\r\n",
        b"MSG a 1 2097152\r\n",
        b"HMSG a 1 9 3\r\nabc\r\n",
        b"MSG a 1 3\r\nabcd\r\n",
        b"MSGa 1 3\r\nabc\r\n",
        b"MSG a\x00 1 3\r\nabc\r\n",
        b"MSG a 1 0\rX\r\n",
        b"MIG a 1 0\r\n",
    ],
)
def test_an_unknown_operation_is_malformed(hot: Load, line: bytes) -> None:
    module = hot("wire")
    found, (at, reason, _) = parse(module, b"MSG a 1 0\r\n\r\n" + line)
    assert len(found) == 1
    assert reason == module.MALFORMED
    assert at == 13


def test_a_line_without_end_is_malformed(hot: Load) -> None:
    module = hot("wire")
    for start in (b"MSG ", b"INFO "):
        _, (_, reason, _) = parse(module, start + b"x" * 5000)
        assert reason == module.MALFORMED


def test_the_parser_accepts_arbitrary_bytes(hot: Load) -> None:
    module = hot("wire")

    @given(st.binary(max_size=60) | st.text("MSGHmsg \t\r\n0123a", max_size=60).map(str.encode))
    def check(data: bytes) -> None:
        _, (consumed, reason, _) = parse(module, data)
        assert reason in range(4)
        assert 0 <= consumed <= len(data)

    check()


def entry(kind: int, number: int, reply: bytes, rest: bytes = b"") -> bytes:
    head = bytes([kind]) + number.to_bytes(4, "little") + len(reply).to_bytes(2, "little")
    return head + reply + rest


def acks(
    module: ModuleType,
    entries: bytes,
    *,
    error: int = 0,
    base: int = 40,
    policies: int = 7,
    parts: tuple[bytes, bytes, bytes] = (b'{"stream":"s","seq":', b',"offset":', b"}"),
) -> bytes:
    out = bytearray(4000 + 4 * len(entries))
    size = module.format_acks(
        entries, *parts, b"s", b"sub.*", base, 1_000_000, 2_000_000, error, policies, out
    )
    return bytes(out[:size])


def test_acks_contain_the_numbers_of_the_records(hot: Load) -> None:
    written = acks(hot("wire"), entry(0, 0, b"_INBOX.a") + entry(0, 70_000, b"r"), base=999_999)
    first = b'{"stream":"s","seq":1000000,"offset":999999}'
    second = b'{"stream":"s","seq":1070000,"offset":1069999}'
    assert written == (
        b"PUB _INBOX.a %d\r\n%s\r\nPUB r %d\r\n%s\r\n" % (len(first), first, len(second), second)
    )
    assert json.loads(first)["seq"] == 1_000_000


def test_error_acks_have_the_same_text(hot: Load) -> None:
    entries = entry(0, 5, b"a") + entry(0, 6, b"b")
    written = acks(hot("wire"), entries, error=1, parts=(b'{"error":1}', b"", b""))
    assert written == b'PUB a 11\r\n{"error":1}\r\nPUB b 11\r\n{"error":1}\r\n'


def test_an_error_ack_may_contain_the_last_sequence(hot: Load) -> None:
    entries = entry(0, 0, b"a") + entry(0, 9, b"b")
    written = acks(hot("wire"), entries, error=2, base=-1, parts=(b"last: ", b".", b""))
    assert written == b"PUB a 8\r\nlast: 0.\r\nPUB b 8\r\nlast: 9.\r\n"


def test_only_entries_of_the_policies_are_answered(hot: Load) -> None:
    forms = b"".join(entry(policy << 1, policy, b"in.%d" % policy) for policy in (0, 1, 2, 0))
    liftbridge = b"\0\0" + b"\1" + b"\1\0s"
    forms += entry(1 | 1 << 1, 3, b"in.3", liftbridge)
    answered = {
        policies: acks(hot("wire"), forms, policies=policies).count(b"PUB in.")
        for policies in (1, 2, 4, 3, 7)
    }
    assert answered == {1: 2, 2: 2, 4: 1, 3: 4, 7: 5}
    assert acks(hot("wire"), forms, policies=4).startswith(b"PUB in.2 ")
    with pytest.raises(IndexError):
        acks(hot("wire"), entry(3 << 1, 0, b"in"))


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_truncated_ack_entry_is_an_error(hot: Load, cut: int) -> None:
    with pytest.raises(IndexError):
        acks(hot("wire"), entry(0, 5, b"a")[:-cut])
