"""What a user may say to the sink."""

from __future__ import annotations

import pickle

import pytest

from bascule.errors import ConfigError, InvalidName
from bascule.pipeline.clients import NatsLogin
from bascule.pipeline.sink.options import SinkOptions


def test_defaults() -> None:
    options = SinkOptions.parse({})
    assert (options.server, options.stream, options.subject) == ("", "", "")
    assert (options.dedupe, options.headers, options.window) == ("warn", True, 20_000)
    assert (options.retry_timeout_ms, options.ack_timeout_s) == (120_000, 120)


def test_the_sink_waits_for_acks_as_long_as_for_the_node() -> None:
    patient = SinkOptions.parse({"retryTimeout": "10m"})
    assert (patient.retry_timeout_ms, patient.ack_timeout_s) == (600_000, 600)
    both = SinkOptions.parse({"retryTimeout": "10m", "ackTimeout": "5s"})
    assert (both.retry_timeout_ms, both.ack_timeout_s) == (600_000, 5)


def test_everything_can_be_said_in_any_case() -> None:
    options = SinkOptions.parse(
        {
            "SERVER": "http://h:1", "stream": "s", "Subject": "s.a", "includeheaders": "false",
            "window": "7", "ackTimeout": "1500ms", "dedupe": "REQUIRE", "messageIdPrefix": "x-1",
            "nats": "nats://a,nats://b", "user": "u", "password": "p", "token": "t", "nkey": "k",
            "nkeySeed": "SU", "creds": "c", "tlsCa": "1", "tlsCert": "2", "tlsKey": "3",
            "tlsFirst": "true", "checkpointLocation": "/c", "path": "ignored",
        }
    )  # fmt: skip
    assert options == SinkOptions(
        "http://h:1", "s", "s.a", False, 7, 1.5, "require", "x-1",
        NatsLogin("nats://a,nats://b", "u", "p", "t", "k", "SU", "c", "1", "2", "3", True),
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(options)) == options
    assert all(f"'{secret}'" not in repr(options) for secret in ("p", "t", "SU"))


def test_the_path_is_the_stream() -> None:
    assert SinkOptions.parse({"path": "flights"}).stream == "flights"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subjects": "a"}, "did you mean 'subject'"),
        ({"acktimeouts": "1s"}, "did you mean 'ackTimeout'"),
        ({"zzzzzz": "a"}, "known: server, stream"),
        ({"window": "0"}, "option 'window' is '0': expected a whole number of at least 1"),
        ({"ackTimeout": "5"}, "expected a time such as"),
        ({"ackTimeout": "0s"}, "expected a time such as"),
        ({"dedupe": "yes"}, "expected require, warn or off"),
        ({"dedupe": "require"}, 'needs option "stream"'),
        ({"includeHeaders": "1"}, "expected true or false"),
        ({"messageIdPrefix": "a\nb"}, "expected printable text"),
    ],
)
def test_mistakes_are_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SinkOptions.parse(given)
    assert said in str(caught.value)


@pytest.mark.parametrize("subject", ["", "a.*", "a b"])
def test_subjects_are_checked(subject: str) -> None:
    with pytest.raises(InvalidName):
        SinkOptions.parse({"subject": subject})


def test_a_query_has_ids_of_its_own() -> None:
    with pytest.raises(ConfigError, match="for write, not for writeStream"):
        SinkOptions.parse({"messageIdPrefix": "x"}).for_stream()
    assert SinkOptions.parse({}).for_stream() == SinkOptions()
