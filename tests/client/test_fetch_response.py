"""The head of a Fetch response agrees with the codec, in every version and cut anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.client.fetch_response import HEAD_BYTES_MAX, VERSION_MIN, read_fetch_head
from bascule.errors import RemoteProtocolError
from bascule.wire.codec import encode
from bascule.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
)

VERSIONS = range(VERSION_MIN, FetchResponse.VERSIONS.last + 1)


def encoded(response: FetchResponse, version: int) -> memoryview:
    parts: list[Any] = []
    encode(response, version, parts)
    return memoryview(b"".join(parts))


def response_of(
    records: bytes | None, *, topic: str = "flights", error: int = 0, aborted: int | None = None
) -> FetchResponse:
    partition = FetchPartitionResponse(
        error_code=error,
        high_watermark=1_234,
        log_start_offset=5,
        aborted_transactions=None if aborted is None else [AbortedTransaction()] * aborted,
        records=records,
    )
    return FetchResponse(
        session_id=9, responses=[FetchTopicResponse(topic=topic, partitions=[partition])]
    )


@settings(max_examples=50, deadline=None)
@given(
    version=st.sampled_from(VERSIONS),
    records=st.binary(max_size=300),
    topic=st.text("abc", min_size=1, max_size=200),
    error=st.integers(-1, 100),
    aborted=st.none() | st.integers(0, 3),
)
def test_agrees_with_the_codec(
    version: int, records: bytes, topic: str, error: int, aborted: int | None
) -> None:
    response = response_of(records, topic=topic, error=error, aborted=aborted)
    whole = encoded(response, version)
    first = whole[:HEAD_BYTES_MAX]
    head = read_fetch_head(first, 0, version=version, size=len(whole))
    assert (head.error_code, head.high_watermark) == (error, 1_234)
    assert whole[head.records_at : head.records_at + head.records_bytes] == records


@pytest.mark.parametrize("version", VERSIONS)
def test_no_records_and_no_partitions(version: int) -> None:
    whole = encoded(response_of(None), version)
    assert read_fetch_head(whole, 0, version=version, size=len(whole)).records_bytes == 0
    for response in (
        FetchResponse(error_code=0),
        FetchResponse(error_code=70),
        FetchResponse(responses=[FetchTopicResponse()]),
    ):
        whole = encoded(response, version)
        head = read_fetch_head(whole, 0, version=version, size=len(whole))
        assert head == (response.error_code, -1, len(whole), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_anywhere_it_says_so(version: int) -> None:
    whole = encoded(response_of(b"x" * 50), version)
    head = read_fetch_head(whole, 0, version=version, size=len(whole))
    for size in range(head.records_at + head.records_bytes):
        with pytest.raises(RemoteProtocolError):
            read_fetch_head(whole[:size], 0, version=version, size=size)


@settings(max_examples=200, deadline=None)
@given(version=st.sampled_from(VERSIONS), data=st.binary(max_size=120))
def test_hostile_bytes_are_refused_or_stay_in_bounds(version: int, data: bytes) -> None:
    try:
        head = read_fetch_head(memoryview(data), 0, version=version, size=len(data))
    except RemoteProtocolError:
        return
    assert 0 <= head.records_at <= len(data)
    assert head.records_at + head.records_bytes <= len(data)


def test_versions_of_long_ago_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="expected 7 or later"):
        read_fetch_head(memoryview(bytes(100)), 0, version=4, size=100)
