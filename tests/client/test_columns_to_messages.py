"""Arrow batches as messages agree with the records they were made of."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.client.batch_reader import messages_of
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.columns import decode_batches

Headers = list[tuple[str, bytes | None]]
maybe_bytes = st.none() | st.binary(max_size=12)
headers = st.lists(st.tuples(st.sampled_from(["reply", "A", "b"]), maybe_bytes), max_size=4)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(maybe_bytes, maybe_bytes, headers), min_size=1, max_size=20),
    cut=st.integers(0, 20),
)
def test_agree(rows: list[tuple[bytes | None, bytes | None, Headers]], cut: int) -> None:
    records = [
        Record(n, 1_700_000_000_000 + n, key, value, (("subject", b"s.%d" % n), *more))
        for n, (key, value, more) in enumerate(rows)
    ]
    batch, _ = decode_batches(bytes(build_batch(records, base_offset=0)), partition=3)
    found = list(messages_of(batch.slice(cut)))
    assert len(found) == max(0, len(rows) - cut)
    for message, record in zip(found, records[cut:], strict=True):
        more = list(record.headers[1:])
        reply = more.pop(0)[1] if more and more[0][0] == "reply" else None
        assert message == (
            record.offset, 3, record.timestamp, record.key, record.value, f"s.{record.offset}",
            None if reply is None else reply.decode("utf-8", "replace"), tuple(more),
        )  # fmt: skip
