"""Requests of key-value clients, and the settings of buckets, as values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bascule.config import StreamDefaults
from bascule.keyvalue.buckets import (
    bucket_of,
    bucket_of_stream,
    stream_config,
    table_changes,
    table_config,
)
from bascule.keyvalue.messages import (
    ApiError,
    deliver,
    deliver_with_headers,
    publish,
    publish_with_headers,
    time_text,
)
from bascule.keyvalue.requests import BucketConfig, PageRequest, parse_request
from bascule.model import StreamConfig, StreamDefinition


@pytest.mark.parametrize(
    ("subject", "found"),
    [
        ("INFO", ("INFO", "", "", "account_info_response")),
        ("STREAM.NAMES", ("STREAM.NAMES", "", "", "stream_names_response")),
        ("STREAM.INFO.KV_a", ("STREAM.INFO", "KV_a", "", "stream_info_response")),
        ("STREAM.MSG.GET.KV_a", ("STREAM.MSG.GET", "KV_a", "", "stream_msg_get_response")),
        ("DIRECT.GET.KV_a", ("DIRECT.GET", "KV_a", "", "stream_msg_get_response")),
        (
            "DIRECT.GET.KV_a.$KV.a.x.y",
            ("DIRECT.GET", "KV_a", "$KV.a.x.y", "stream_msg_get_response"),
        ),
        (
            "CONSUMER.CREATE.KV_a.n1.$KV.a.>",
            ("CONSUMER.CREATE", "KV_a", "n1.$KV.a.>", "consumer_create_response"),
        ),
        (
            "CONSUMER.DURABLE.CREATE.KV_a.n1",
            ("CONSUMER.DURABLE.CREATE", "KV_a", "n1", "consumer_create_response"),
        ),
    ],
)
def test_a_request_is_read_from_its_subject(subject: str, found: tuple[str, ...]) -> None:
    request = parse_request(f"$JS.API.{subject}", b"")
    assert (request.operation, request.stream, request.rest, request.kind) == found


def test_other_requests_are_refused_with_a_reason() -> None:
    with pytest.raises(ApiError, match="not all of JetStream") as refused:
        parse_request("$JS.API.META.LEADER.STEPDOWN", b"")
    assert (refused.value.code, refused.value.err_code) == (501, 20010)
    for body in (b"[1]", b"{", b"\xff", b'{"offset": -1}', b'{"offset": "x"}'):
        with pytest.raises(ApiError, match="not valid"):
            parse_request("$JS.API.STREAM.NAMES", body).decode(PageRequest)
    with pytest.raises(ApiError, match="no bucket"):
        bucket_of_stream("ORDERS")


def test_the_settings_of_a_bucket_are_those_of_a_table() -> None:
    asked = {
        "name": "KV_b",
        "subjects": ["$KV.b.>"],
        "max_msgs_per_subject": 1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msg_size": 1_000,
        "num_replicas": 3,
        "duplicate_window": 5_000_000_000,
        "storage": "memory",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
    }
    config = table_config(
        "b", msgspec.convert(asked, BucketConfig), StreamDefaults(retention_ms_max=10, partitions=4)
    )
    assert (config.subject, config.table, config.replicas) == ("$KV.b.>", True, 3)
    assert (config.message_bytes_max, config.dedupe_window_ms) == (1_000, 5_000)
    assert (config.retention_ms_max, config.partitions) == (0, 1)
    shown = stream_config("b", config)
    for name in ("name", "subjects", "max_msg_size", "num_replicas", "duplicate_window"):
        assert shown[name] == asked[name]
    assert table_config("b", BucketConfig(), StreamDefaults()).replicas == StreamDefaults().replicas


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("max_msgs_per_subject", 5, "history of 5"),
        ("max_bytes", 1_000, "max_bytes"),
        ("mirror", {"name": "KV_x"}, "mirror"),
        ("republish", {"src": ">"}, "republish"),
        ("subjects", ["$KV.other.>"], r"subject \$KV.b.>"),
        ("max_age", -5, "max_age must be 0, or at least 1000000000 ns, got -5"),
        ("max_age", 999_999_999, "max_age must be 0, or at least 1000000000 ns"),
        ("max_age", 1, "max_age must be 0, or at least"),
        ("subject_delete_marker_ttl", -2, "subject_delete_marker_ttl must be 0, or at least"),
        ("subject_delete_marker_ttl", 999_999, "subject_delete_marker_ttl must be 0, or at least"),
        ("duplicate_window", 5, "duplicate_window must be 0, or at least 1000000 ns, got 5"),
    ],
)
def test_what_a_table_does_not_have_is_refused(setting: str, value: Any, text: str) -> None:
    with pytest.raises(ApiError, match=text):
        table_config("b", BucketConfig(**{setting: value}), StreamDefaults())


def test_an_update_changes_what_is_set_and_another() -> None:
    def changes(**asked: Any) -> dict[str, Any]:
        return table_changes("b", BucketConfig(**asked), present)

    present = table_config(
        "b", BucketConfig(max_age=7_000_000_000, num_replicas=3), StreamDefaults()
    )
    assert changes() == {}
    assert changes(max_age=7_000_000_000, num_replicas=3, max_msg_size=-1) == {}
    assert changes(max_age=0) == {"table_ttl_ms": 0}
    assert changes(max_age=9_000_000_000, max_msg_size=9, num_replicas=5) == {
        "table_ttl_ms": 9_000, "message_bytes_max": 9, "replicas": 5,
    }  # fmt: skip
    assert changes(duplicate_window=0) == {"dedupe_window_ms": 0}
    with pytest.raises(ApiError, match="fewer replicas than there are: asked 1, found 3"):
        changes(num_replicas=1)
    with pytest.raises(ApiError, match="history of 2"):
        changes(max_msgs_per_subject=2)


def test_which_streams_are_buckets() -> None:
    def bucket(subject: str, *, table: bool = True) -> str | None:
        return bucket_of(StreamDefinition("s", b"i" * 16, 0, StreamConfig(subject, table=table)))

    assert bucket("$KV.b.>") == "b"
    assert bucket("$KV.b.>", table=False) is None
    assert bucket("$KV.a.b.>") is None
    assert bucket("orders.>") is None


def test_operations() -> None:
    assert publish("a", "", b"xy") == b"PUB a 2\r\nxy\r\n"
    assert deliver("a", "r@s", b"") == b"LMSG a r@s 0\r\n\r\n"
    head = b"NATS/1.0\r\nA: b\r\n\r\n"
    assert publish_with_headers("a", "r", {"A": "b"}, b"xy") == (
        b"HPUB a r %d %d\r\n%bxy\r\n" % (len(head), len(head) + 2, head)
    )
    status = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"
    assert deliver_with_headers("a", "", {}, b"", status="100 Idle Heartbeat") == (
        b"HMSG a %d %d\r\n%b\r\n" % (len(status), len(status), status)
    )
    assert time_text(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
