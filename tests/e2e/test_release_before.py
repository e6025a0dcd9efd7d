"""A data directory that the release before wrote opens unchanged, closed cleanly or killed."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from support import http_calls
from support.processes import Node, RawNats, running_node

DATA = Path(__file__).parents[1] / "data"


def contents(address: str, stream: str, partition: int) -> dict[str, Any]:
    """What a foreign client reads: first and last offset, a digest, the last value of each key."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "never joined",
            "check.crcs": True,
            "enable.partition.eof": True,
        }
    )
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(stream, partition, start)])
    offsets: list[int] = []
    digest = hashlib.sha256()
    latest: dict[str, str] = {}
    while True:
        message = consumer.poll(10.0)
        assert message is not None, "the end is reached"
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            break
        offsets.append(message.offset())
        fields = (message.offset(), message.timestamp(), message.key(), message.value())
        digest.update(repr((*fields, message.headers())).encode())
        if message.key() is not None:
            latest[message.key().decode()] = (message.value() or b"").decode()
    consumer.close()
    return {
        "start": offsets[0] if offsets else None,
        "end": offsets[-1] + 1 if offsets else None,
        "digest": digest.hexdigest(),
        "latest": latest,
    }


def everything(node: Node) -> dict[str, Any]:
    """Every stream's definition and contents."""
    found = {}
    for stream in node.call("GET", "/v1/streams")["streams"]:
        name = stream["name"]
        found[name] = {
            "id": stream["id"],
            "config": stream["config"],
            "paused": stream["paused"],
            "partitions": [
                contents(node.addresses["client"], name, partition["partition"])
                for partition in stream["partitions"]
            ],
        }
    return found


@pytest.mark.parametrize("how", [pytest.param("closed", marks=pytest.mark.long), "killed"])
def test_a_data_directory_of_the_release_before_opens(how: str, tmp_path: Path) -> None:
    expected = json.loads((DATA / f"release-0.1.0-{how}.json").read_text())
    with tarfile.open(DATA / f"release-0.1.0-{how}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    for _ in range(2):
        with running_node(tmp_path) as node:
            found = everything(node)
            assert found.keys() == expected.keys() | {"_offsets"}
            for name, stream in expected.items():
                if name == "keyed":
                    # Compaction goes on: what a reader of the latest values sees is the same.
                    for partition in (*stream["partitions"], *found[name]["partitions"]):
                        del partition["digest"], partition["start"]
                # A setting that the release did not have gets its default.
                assert found[name]["config"].pop("acks") is True
                assert found[name]["config"].pop("unclean_election") is False
                assert found[name]["config"].pop("ack_policy") == "all"
                assert found[name]["config"].pop("shared") is False
                assert found[name]["config"].pop("table") is False
                assert found[name]["config"].pop("table_ttl_ms") == 0
                assert found[name]["config"].pop("replicas") == 1
                assert found[name]["config"].pop("min_isr") == 0
                # Its streams keep the headers that their consumers may read.
                assert found[name]["config"].pop("record_headers") == ["subject", "reply"]
                assert found[name] == stream, name
            ready = node.call("GET", "/readyz")
            assert http_calls.troubled_parts(ready) == []
            expected["keyed"] = json.loads((DATA / f"release-0.1.0-{how}.json").read_text())[
                "keyed"
            ]
    with running_node(tmp_path) as node:
        nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
        nats.send(b"SUB in 1\r\nPUB packed in 1\r\nx\r\n")
        answers: list[tuple[bytes, bytes]] = []
        while not answers:
            answers = nats.messages()
        assert json.loads(answers[0][1])["offset"] == expected["packed"]["partitions"][0]["end"]
