"""Text that people and programs write: metadata, configuration, bodies of the HTTP API."""

from __future__ import annotations

from functools import cache

from bascule.config import (
    StreamDefaults,
    layer_from_environment,
    layer_from_toml,
    merge,
)
from bascule.errors import BasculeError, ConfigError, CorruptData, UnsupportedFormat
from bascule.http.requests import CreateStreamRequest, decode_body
from bascule.metadata.codec import decode_image
from bascule.metadata.controller import create_stream
from bascule.metadata.image import Image
from bascule.model import Cleanup, Compression, StreamConfig, StreamDefinition, SyncPolicy
from bascule.wire.nats import parse_server_url
from bascule.wire.offsets import (
    commit_subject,
    decode_commit,
    encode_commit,
    parse_commit_subject,
)
from fuzz.target import Target
from support.earlier_images import encode_image

TOML = b"""data = "/var/lib/bascule"
node_id = 3

[nats]
urls = ["nats://a:4222", "tls://user:secret@b"]
user = "u"
password = "p"

[client]
host = "0.0.0.0"
advertised = "log-1.example.org:9092"

[limits]
connections_max = 100

[streams]
sync = "interval"
cleanup = ["compact", "delete"]
"""
ENVIRONMENT = (
    b"BASCULE_NATS_URLS=nats://a,nats://b\nBASCULE_NODE_ID=1_0\nBASCULE_NATS_TLS=yes\n"
    b"BASCULE_CLIENT_PORT=0\nBASCULE_STREAMS_SYNC=never\nHOME=/root\nBASCULE_SERVER=x\n"
)
BODIES = (
    b'{"name":"flights","subject":"flights.>"}',
    b'{"name":"a-b_c.d","subject":"a.*.c","group":"g","sync":"interval","sync_interval_ms":5,'
    b'"partitions":4,"partition_by":"key","cleanup":["compact"],"retention_ms_max":1}',
    b'{"name":"' + b"n" * 100 + b'","subject":"\xc3\xa9\\u0000"}',
)


@cache
def images() -> list[Image]:
    definitions = [
        StreamDefinition("flights", bytes(range(16)), 1_700_000_000_000, StreamConfig("flights.>")),
        StreamDefinition(
            "orders", b"#" * 16, 1,
            StreamConfig(
                "o.*", group="g", sync=SyncPolicy.NEVER, compression=Compression.ZSTD,
                cleanup=(Cleanup.DELETE, Cleanup.COMPACT), partitions=3,
            ),
            paused=True,
        ),
    ]  # fmt: skip
    return [Image.of(streams={d.name: d for d in definitions[:count]}) for count in range(3)]


def run_metadata(data: bytes) -> None:
    """An image is one that was written, or refused with file and byte."""
    try:
        image = decode_image(data, "/data/metadata.json")
    except CorruptData as damage:
        assert damage.file == "/data/metadata.json"
        assert 0 <= damage.at <= len(data)
        return
    except UnsupportedFormat:
        return
    assert encode_image(image) in [encode_image(known) for known in images()]


def _metadata_seeds() -> list[bytes]:
    return [encode_image(image) for image in images()]


def run_toml(data: bytes) -> None:
    try:
        config = merge(layer_from_toml(data.decode("utf-8", "replace"), "bascule.toml"))
        for url in config.nats.urls:
            parse_server_url(url)
    except ConfigError as error:
        assert str(error)


def run_environment(data: bytes) -> None:
    lines = data.decode("utf-8", "replace").split("\n")
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        config = merge(layer_from_environment(variables))
        for url in config.nats.urls:
            parse_server_url(url)
    except ConfigError as error:
        assert str(error)


def run_body(data: bytes) -> None:
    """A body becomes a decision to create a stream that the metadata file can hold, or an error."""
    try:
        asked = decode_body(data, CreateStreamRequest)
        config = asked.config(StreamDefaults())
        decision = create_stream(Image(), asked.name, config, id=b"i" * 16, now_ms=5)
    except BasculeError as error:
        str(error).encode()
        return
    image = Image.of(streams={asked.name: decision.definition})
    assert decode_image(encode_image(image), "/m").streams == image.streams


COMMIT = b'{"offset":42,"leader_epoch":3,"metadata":"\xc3\xa9","committed_ms":1764000000000}'
COMMIT_KEY = b"_bascule.offsets.spark-1.eu%2Eflights.3"


def run_commit(data: bytes) -> None:
    """What anybody may publish as an offset is one, and is written again alike, or is refused."""
    subject, _, value = data.partition(b"\n")
    try:
        key = parse_commit_subject(subject.decode("utf-8", "replace"))
        assert commit_subject(key).encode() == subject
    except ValueError:
        pass
    try:
        commit = decode_commit(value)
    except ValueError:
        return
    assert decode_commit(encode_commit(commit)) == commit


TARGETS = [
    Target("offset-commit", lambda: [COMMIT_KEY + b"\n" + COMMIT], run_commit),
    Target("metadata-json", _metadata_seeds, run_metadata),
    Target("config-toml", lambda: [TOML], run_toml),
    Target("config-environment", lambda: [ENVIRONMENT], run_environment),
    Target("http-body", lambda: list(BODIES), run_body),
]
