"""What a reply to a publish means, and what a refusal over HTTP means."""

from __future__ import annotations

import pytest

from bascule.client.admin import error_of, server_url, stream_info_of
from bascule.client.messages import Ack
from bascule.client.publisher import decode_reply
from bascule.errors import (
    Broken,
    CannotAlter,
    ConfigError,
    InternalStream,
    InvalidName,
    NoResponders,
    OffsetOutOfRange,
    PublishRejected,
    RemoteProtocolError,
    RequestFailed,
    StreamConflict,
    UnknownPartition,
    UnknownStream,
)


def test_an_ack_of_ours_and_one_of_jetstream() -> None:
    ours = b'{"stream":"s","seq":6,"partition":2,"offset":5,"replicas":3,"synced":true}'
    assert decode_reply(ours, "a") == Ack("s", 6, 5, 2, 3, True)
    assert decode_reply(b'{"stream":"S","seq":6}', "a") == Ack("S", 6, 5, 0, 1, False)


def test_an_error_ack_says_why() -> None:
    response = decode_reply(
        b'{"error":{"code":400,"err_code":10054,"description":"too large"},"seq":0}', "a"
    )
    assert isinstance(response, PublishRejected)
    assert (response.code, response.err_code, response.description) == (400, 10054, "too large")


def test_nobody_there() -> None:
    response = decode_reply(b"NATS/1.0 503\r\n\r\n", "a.b")
    assert isinstance(response, NoResponders)
    assert "'a.b'" in str(response)


@pytest.mark.parametrize("body", [b"", b"hello", b'"text"', b"[1]", b'{"seq":"x"}'])
def test_another_programs_answer_is_no_ack(body: bytes) -> None:
    assert isinstance(decode_reply(body, "a"), RemoteProtocolError)


def error(code: str, **more: object) -> object:
    return {"error": {"code": code, "message": "the node's words", **more}}


def test_refusals_come_back_as_their_classes() -> None:
    def made(body: object) -> Exception:
        return error_of(body, what="POST /v1/streams", name="flights")

    unknown = made(error("unknown_stream"))
    assert isinstance(unknown, UnknownStream)
    assert unknown.name == "flights"
    partition = made(error("unknown_partition", held=[7, 4]))
    assert isinstance(partition, UnknownPartition)
    assert (partition.partition, partition.partition_count) == (7, 4)
    offset = made(error("offset_out_of_range", held=[9, 1, 5]))
    assert isinstance(offset, OffsetOutOfRange)
    assert (offset.requested, offset.start, offset.end) == (9, 1, 5)
    fixed = made(error("cannot_alter", field="subject", present="a"))
    assert isinstance(fixed, CannotAlter)
    assert (fixed.field, fixed.present, str(fixed)) == ("subject", "a", "the node's words")
    assert isinstance(made(error("internal_stream")), InternalStream)
    assert isinstance(made(error("offset_out_of_range", held=["x"])), RequestFailed)
    conflict = made(error("stream_conflict", differences={"subject": ["a", "b"]}))
    assert isinstance(conflict, StreamConflict)
    assert conflict.differences == {"subject": ("a", "b")}
    invalid = made(error("invalid_name", field="name"))
    assert isinstance(invalid, InvalidName)
    assert str(invalid) == "the node's words"
    assert isinstance(made(error("invalid_config")), ConfigError)
    assert isinstance(made(error("unavailable")), Broken)
    other = made(error("malformed_request"))
    assert isinstance(other, RequestFailed)
    assert other.code == "malformed_request"
    for strange in ([], {}, {"error": "text"}, None):
        assert isinstance(made(strange), RequestFailed)


def test_the_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BASCULE_SERVER", raising=False)
    assert server_url(None) == "http://127.0.0.1:9080"
    assert server_url("host:1/") == "http://host:1"
    monkeypatch.setenv("BASCULE_SERVER", "https://there")
    assert server_url(None) == "https://there"
    assert server_url("http://here") == "http://here"
    with pytest.raises(ConfigError):
        server_url("nats://here")


def test_strange_stream_json_is_refused() -> None:
    for body in (None, {}, {"name": "s", "id": "zz", "partitions": []}, {"name": "s"}):
        with pytest.raises(RemoteProtocolError):
            stream_info_of(body)
