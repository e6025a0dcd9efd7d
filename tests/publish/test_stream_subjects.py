"""Which streams receive the same messages, against a plain matcher, on both twins."""

from __future__ import annotations

from array import array
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.model import StreamConfig, StreamDefinition
from bascule.publish import stream_subjects
from bascule.publish.headers import HashKey, read_publish_headers
from bascule.publish.stream_subjects import StreamSubjects
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import HEADER_BYTES
from bascule.wire.subjects import subjects_overlap
from support.twins import load_twin

HASH_KEY = HashKey(bytes(16))
TOKENS = ("a", "b", "ab")
SUBJECTS = [".".join(each) for size in (1, 2, 3, 4) for each in product(TOKENS, repeat=size)]
patterns = st.lists(st.sampled_from((*TOKENS, "*")), min_size=0, max_size=3).flatmap(
    lambda tokens: st.sampled_from(
        [".".join([*tokens, ">"])] + ([".".join(tokens)] if tokens else [])
    )
)


def matches(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(tokens) >= len(wanted) and all(
            w in ("*", t) for w, t in zip(wanted[:-1], tokens, strict=False)
        )
    return len(wanted) == len(tokens) and all(
        w in ("*", t) for w, t in zip(wanted, tokens, strict=True)
    )


@given(patterns, patterns)
def test_subjects_overlap_if_one_message_can_have_both(one: str, other: str) -> None:
    common = any(matches(one, each) and matches(other, each) for each in SUBJECTS)
    assert subjects_overlap(one, other) is common
    assert subjects_overlap(other, one) is common


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
@given(
    pattern=patterns, subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=6),
    expecting=st.integers(0, 63), implied=st.just("") | st.sampled_from(SUBJECTS),
)  # fmt: skip
def test_records_that_expect_another_stream_are_marked_by_their_subject(
    twin: str, pattern: str, subjects: list[str], expecting: int, implied: str
) -> None:
    answers = load_twin("publish/preconditions/_hot_answers", twin)  # type: ignore[arg-type]
    records = [
        Record(row, 0, b"k" if row % 2 else None, b"v" * (row * 50) or None,
               (*(() if subject == implied else (("subject", subject.encode()),)),
                *((("Foo-Bar", b"7 long"),) if row % 3 else ()),
                *((("Nats-Expected-Stream", b"o"),) if expecting >> row & 1 else ())))
        for row, subject in enumerate(subjects)
    ]  # fmt: skip
    batch = build_batch(records, base_offset=0, log_append_time=True)
    headers = read_publish_headers(memoryview(batch), len(records), HASH_KEY)
    verdicts = bytearray(len(records))
    streams = array("q", [7, 0, 1, HASH_KEY.hash(b"o")[0], 1, 1 + len(pattern)])
    answers.mark_expecting(
        batch, HEADER_BYTES, len(records), headers.rows, headers.count, streams,
        b"x" + pattern.encode(), implied.encode(), verdicts,
    )  # fmt: skip
    assert list(verdicts) == [
        int(bool(expecting >> row & 1) and matches(pattern, subject))
        for row, subject in enumerate(subjects)
    ]


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_arrays_that_do_not_match_the_batch_are_refused(twin: str) -> None:
    answers = load_twin("publish/preconditions/_hot_answers", twin)  # type: ignore[arg-type]
    record = Record(0, 0, None, b"v", (("subject", b"a"), ("Nats-Expected-Stream", b"o")))
    good = build_batch([record], base_offset=0, log_append_time=True)
    headers = read_publish_headers(memoryview(good), 1, HASH_KEY)
    rows, streams = headers.rows, array("q", [HASH_KEY.hash(b"o")[0], 0, 1])
    for bad_streams in ([1, 0, 2], [1, 1, 0], [1, -1, 0]):
        with pytest.raises(IndexError):
            answers.mark_expecting(
                good, HEADER_BYTES, 1, rows, 1, array("q", bad_streams), b"a", b"", bytearray(1)
            )
    for at in range(HEADER_BYTES, len(good)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] = value
            try:
                answers.mark_expecting(
                    bad, HEADER_BYTES, 1, rows, 1, streams, b"a", b"b", bytearray(1)
                )
            except IndexError as error:
                assert "do not match" in str(error)
    with pytest.raises(IndexError):
        answers.group_unsupported(good, rows, 5, bytearray(1), array("q", [0]))
    with pytest.raises(IndexError):
        answers.keep_flags(rows, 5, 1)
    with pytest.raises(IndexError):
        answers.count_other_streams(rows, 5, 1)


def definition(name: str, subject: str, group: str | None = None) -> StreamDefinition:
    return StreamDefinition(name, name.encode() * 16, 0, StreamConfig(subject, group))


def test_streams_know_those_with_the_same_messages() -> None:
    subjects = StreamSubjects(HASH_KEY)
    s, o, audit = definition("s", "s.>"), definition("o", "s.1"), definition("audit", ">")
    star = definition("star", "*.2")
    grouped = [definition("g1", "s.>", "g"), definition("g2", "s.1", "g")]
    for each in (s, o, audit, star, *grouped, definition("_offsets", "s.1")):
        subjects.add(each)

    def names(of: StreamDefinition) -> list[str]:
        return [each.name for each in subjects.overlapping(of)]

    assert names(s) == ["audit", "g1", "g2", "o", "star"]
    assert names(o) == ["audit", "g1", "g2", "s"]
    assert names(audit) == ["g1", "g2", "o", "s", "star"]
    assert names(star) == ["audit", "g1", "s"]
    assert names(grouped[0]) == ["audit", "o", "s", "star"]

    def subject(name: str, of: StreamDefinition) -> str:
        return subjects.overlapping_subject(HASH_KEY.hash(name.encode())[0], of)

    assert subject("s", o) == "s.>"
    assert subject("o", s) == "s.1"
    assert subject("o", star) == ""
    assert subject("g1", grouped[1]) == ""
    assert subject("s", s) == ""
    subjects.remove(s)
    subjects.remove(s)
    assert subject("s", o) == ""
    assert names(o) == ["audit", "g1", "g2"]


@given(
    st.lists(st.tuples(patterns, st.sampled_from((None, None, "g")), st.booleans()), max_size=12)
)
def test_the_tree_finds_what_a_comparison_with_each_finds(
    history: list[tuple[str, str | None, bool]],
) -> None:
    subjects = StreamSubjects(HASH_KEY)
    present: dict[str, StreamDefinition] = {}
    for number, (pattern, group, stays) in enumerate(history):
        one = definition(f"s{number:02}", pattern, group)
        subjects.add(one)
        expected = [
            name
            for name, other in present.items()
            if subjects_overlap(pattern, other.config.subject)
            and (group is None or group != other.config.group)
        ]
        assert [each.name for each in subjects.overlapping(one)] == expected
        if stays:
            present[one.name] = one
        else:
            subjects.remove(one)
    for each in present.values():
        subjects.remove(each)
    assert subjects._root.is_empty, "nothing is kept of streams that are gone"


def test_a_new_stream_is_compared_with_those_on_its_way_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subjects = StreamSubjects(HASH_KEY)
    for number in range(10_000):
        subjects.add(definition(f"s{number}", f"s.{number}"))
    subjects.add(definition("all", "s.>"))
    seen = 0
    plain = stream_subjects.is_internal_stream

    def count(name: str) -> bool:
        nonlocal seen
        seen += 1
        return plain(name)

    monkeypatch.setattr(stream_subjects, "is_internal_stream", count)
    assert [each.name for each in subjects.overlapping(definition("new", "s.new"))] == ["all"]
    assert seen == 1
