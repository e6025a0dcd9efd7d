"""Consumers' offsets on a real node: by NATS, by Kafka clients, by the Python client, by hand."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import urllib.error
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import nats
import pytest

import bascule
from bascule.cli.main import main
from bascule.client import SyncClient
from bascule.errors import (
    GroupHasMembers,
    InternalStream,
    InvalidName,
    OffsetOutOfRange,
    UnknownStream,
)
from support import http_calls
from support.processes import BIN, Node, running_nats, running_node, wait_for

with warnings.catch_warnings():
    # It reads its own schema files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.structs import OffsetAndMetadata

    import kafka

MESSAGES = 100
names = (f"flow{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("offsets")) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


@pytest.fixture
def stream(client: SyncClient) -> str:
    """A new stream with 100 messages."""
    return filled(client)


def filled(client: SyncClient, **settings: Any) -> str:
    name = next(names)
    client.create_stream(name, f"{name}.>", **settings)
    client.publish_many((f"{name}.{n % 10}", b"message %d" % n) for n in range(MESSAGES))
    return name


def committed(client: SyncClient, consumer: str, stream: str) -> dict[int, int]:
    found = client.offsets(consumer=consumer, stream=stream)
    return {entry.partition: entry.offset for entry in found}


# NATS


async def publish_over_nats(
    node: Node, subject: str, data: bytes, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    connection = await nats.connect(node.addresses["nats"])
    try:
        answer = await connection.request(subject, data, headers=headers, timeout=10)
        return json.loads(answer.data)  # type: ignore[no-any-return]
    finally:
        await connection.close()


def test_any_nats_client_commits_and_removes(node: Node, client: SyncClient, stream: str) -> None:
    publish = partial(publish_over_nats, node, f"_bascule.offsets.by%2Ehand.{stream}.0")
    assert asyncio.run(publish(b'{"offset": 42}'))["stream"] == "_offsets"
    (entry,) = client.offsets(consumer="by.hand")
    assert (entry.stream, entry.offset, entry.lag) == (stream, 42, MESSAGES - 42)
    before = malformed(node)
    asyncio.run(publish(b"forty-three"))
    assert committed(client, "by.hand", stream) == {0: 42}
    assert malformed(node) == before + 1
    assert "malformed commits ignored" in node.log.read_text()
    asyncio.run(publish(b"", {"KV-Operation": "DEL"}))
    assert client.offsets(consumer="by.hand") == []


def malformed(node: Node) -> float:
    for line in http_calls.get(f"{node.addresses['http']}/metrics").splitlines():
        if line.startswith("bascule_offsets_malformed_records_total "):
            return float(line.split()[1])
    raise AssertionError("no such metric")


# Kafka


def test_kafka_clients_share_what_they_commit(node: Node, client: SyncClient, stream: str) -> None:
    address = node.addresses["client"]
    place = confluent_kafka.TopicPartition(stream, 0)
    settings = {"bootstrap.servers": address, "group.id": "shared", "enable.auto.commit": False}
    first = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
    first.assign([place])
    message = next(m for m in iter(lambda: first.poll(10), None) if m.offset() == 9)
    assert first.commit(message=message, asynchronous=False)[0].error is None
    first.close()
    assert committed(client, "shared", stream) == {0: 10}

    second = kafka.KafkaConsumer(
        bootstrap_servers=address, group_id="shared", enable_auto_commit=False
    )
    partition = kafka.TopicPartition(stream, 0)
    second.assign([partition])
    assert next(second).offset == 10
    second.commit({partition: OffsetAndMetadata(20, "from python", -1)})
    second.close()
    (entry,) = client.offsets(consumer="shared")
    assert (entry.offset, entry.metadata) == (20, "from python")

    async def third() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, group_id="shared", enable_auto_commit=False
        )
        await consumer.start()
        partition = aiokafka.TopicPartition(stream, 0)
        consumer.assign([partition])
        assert await consumer.committed(partition) == 20
        assert (await consumer.getone()).offset == 20
        await consumer.commit({partition: 30})
        await consumer.stop()

    asyncio.run(third())
    with client.consume(stream, "shared") as messages:
        assert next(messages).offset == 30
    assert committed(client, "shared", stream) == {0: 31}


def test_automatic_commits_of_a_kafka_client(node: Node, client: SyncClient, stream: str) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.addresses["client"],
            "group.id": "automatic",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(stream, 0)])
    seen = [m.offset() for m in consumer.consume(MESSAGES, timeout=20)]
    assert seen == list(range(MESSAGES))
    consumer.close()
    assert committed(client, "automatic", stream) == {0: MESSAGES}


def test_while_a_group_has_members_only_they_commit(
    node: Node, client: SyncClient, stream: str
) -> None:
    settings = {
        "bootstrap.servers": node.addresses["client"],
        "group.id": "members",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    member, other = confluent_kafka.Consumer(settings), confluent_kafka.Consumer(settings)
    member.subscribe([stream])
    while (message := member.poll(10)) is None:
        pass
    place = confluent_kafka.TopicPartition(stream, 0, 50)
    other.assign([place])
    with pytest.raises(confluent_kafka.KafkaException, match="UNKNOWN_MEMBER_ID"):
        other.commit(offsets=[place], asynchronous=False)
    with pytest.raises(GroupHasMembers, match="'members' has members"):
        client.reset_offsets("members", stream, to="earliest")
    with pytest.raises(GroupHasMembers, match="'members' has members"):
        client.delete_group("members")
    subject = f"_bascule.offsets.members.{stream}.0"
    for headers in (None, {"Bascule-Checked": ""}):
        asyncio.run(publish_over_nats(node, subject, b'{"offset": 70}', headers))
    assert committed(client, "members", stream) == {}
    member.commit(message=message, asynchronous=False)
    assert committed(client, "members", stream) == {0: 1}
    member.close()
    other.commit(offsets=[place], asynchronous=False)
    other.close()
    assert committed(client, "members", stream) == {0: 50}


def test_consumers_by_the_newer_protocol_may_assign(
    node: Node, client: SyncClient, stream: str
) -> None:
    options = {
        "bootstrap.servers": node.addresses["client"],
        "group.id": "newer",
        "group.protocol": "consumer",
        "enable.auto.commit": False,
    }
    consumer = confluent_kafka.Consumer(options)
    consumer.assign([confluent_kafka.TopicPartition(stream, 0, 0)])
    while (message := consumer.poll(10)) is None:
        pass
    consumer.commit(message=message, asynchronous=False)
    consumer.close()
    assert committed(client, "newer", stream) == {0: 1}


def test_the_stream_is_there_and_marked_as_the_node_s_own(
    node: Node, client: SyncClient, stream: str, cli: Run
) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=node.addresses["client"])
    internal = {topic["name"]: topic["is_internal"] for topic in admin.describe_topics()}
    admin.close()
    assert internal["_offsets"]
    assert not internal[stream]
    listed = json.loads(cli("stream", "list", "--json")[0])
    assert "_offsets" not in [info["name"] for info in listed]
    listed = json.loads(cli("stream", "list", "--json", "--internal")[0])
    assert "_offsets" in [info["name"] for info in listed]
    assert client.stream("_offsets").definition.config.cleanup == ("compact",)
    with pytest.raises(InternalStream):
        client.delete_stream("_offsets")
    with pytest.raises(InvalidName):
        client.create_stream("_bascule2", "whatever")


# The Python client


def test_a_consumer_goes_on_where_it_left_off(client: SyncClient, stream: str) -> None:
    with client.consume(stream, "reader") as messages:
        first = [next(messages).offset for _ in range(30)]
    assert messages.committed == {0: 30}
    with client.consume(stream, "reader", follow=False) as messages:
        rest = [message.offset for message in messages]
    assert first + rest == list(range(MESSAGES))
    with client.consume(stream, "reader", follow=False) as messages:
        assert list(messages) == []
    assert committed(client, "reader", stream) == {0: MESSAGES}


def test_a_message_that_failed_comes_again(client: SyncClient, stream: str) -> None:
    with pytest.raises(ZeroDivisionError), client.consume(stream, "clumsy") as messages:
        for message in messages:
            if message.offset == 7:
                raise ZeroDivisionError
    assert committed(client, "clumsy", stream) == {0: 7}
    with client.consume(stream, "clumsy") as messages:
        assert next(messages).offset == 7


def test_commits_by_hand_and_by_the_clock(node: Node, client: SyncClient, stream: str) -> None:
    async def scene() -> None:
        async with bascule.connect(node.addresses["http"]) as own:
            async with own.consume(stream, "hand", commit_interval=3_600) as messages:
                async for message in messages:
                    if message.offset == 11:
                        await messages.commit()
                        assert committed(client, "hand", stream) == {0: 12}
                    if message.offset == 12:
                        break
                await messages.close(done=False)
            assert committed(client, "hand", stream) == {0: 12}
            async with own.consume(stream, "clock", commit_interval=0.02) as messages:
                for _ in range(5):
                    last = await anext(messages)
                while messages.committed != {0: last.offset}:
                    await asyncio.sleep(0.01)
                assert committed(client, "clock", stream) == {0: 4}

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_consumer_of_several_partitions(client: SyncClient) -> None:
    name = filled(client, partitions=3, partition_by="subject")
    sizes = {p.partition: p.high_watermark for p in client.stream(name).partitions}
    assert sum(sizes.values()) == MESSAGES
    seen = set()
    with client.consume(name, "all", follow=False) as messages:
        for message in itertools.islice(messages, 40):
            seen.add((message.partition, message.offset))
    with client.consume(name, "all", follow=False) as messages:
        for message in messages:
            assert (message.partition, message.offset) not in seen
            seen.add((message.partition, message.offset))
    assert len(seen) == MESSAGES
    assert committed(client, "all", name) == {p: end for p, end in sizes.items() if end}


def test_where_a_new_consumer_begins(client: SyncClient, stream: str) -> None:
    with client.consume(stream, "late", start="latest") as messages:
        client.publish(f"{stream}.x", b"new")
        assert next(messages).offset == MESSAGES
    with pytest.raises(InvalidName):
        client.consume(stream, "two\nlines")
    with pytest.raises(UnknownStream), client.consume("nowhere", "x"):
        pass


def test_an_offset_that_is_gone_is_not_skipped_in_silence(client: SyncClient, stream: str) -> None:
    client.reset_offsets("slow", stream, offset=5)
    client.purge_stream(stream, to_offset=50)
    with pytest.raises(OffsetOutOfRange), client.consume(stream, "slow") as messages:
        next(messages)
    client.reset_offsets("slow", stream, to="earliest")
    with client.consume(stream, "slow") as messages:
        assert next(messages).offset == 50


def test_a_stream_made_anew_begins_without_offsets(client: SyncClient, stream: str) -> None:
    client.reset_offsets("old", stream, to="latest")
    client.delete_stream(stream)
    client.create_stream(stream, f"{stream}.>")
    assert client.offsets(consumer="old") == []
    client.publish(f"{stream}.a", b"anew")
    with client.consume(stream, "old", follow=False) as messages:
        assert [message.value for message in messages] == [b"anew"]


# By hand


Run = Callable[..., tuple[bytes, bytes]]


@pytest.fixture
def cli(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Run:
    """Runs a command in this process; what it wrote to standard output and standard error."""
    monkeypatch.setenv("BASCULE_SERVER", node.addresses["http"])
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str, code: int = 0) -> tuple[bytes, bytes]:
        ended = main(list(arguments))
        said = capsysbinary.readouterr()
        assert ended == code, said.err
        return said.out, said.err

    return run


def test_offsets_by_hand(cli: Run, client: SyncClient, stream: str) -> None:
    printed, _ = cli("read", stream, "--consumer", "cli", "-n", "25", "--values")
    assert printed.splitlines() == [b"message %d" % n for n in range(25)]
    found = json.loads(cli("group", "info", "cli", "--json")[0])
    assert (found["state"], found["members"], found["lag"]) == ("Empty", [], 75)
    (entry,) = found["offsets"]
    assert (entry["stream"], entry["offset"], entry["lag"]) == (stream, 25, 75)
    table, _ = cli("group", "list", "--stream", stream)
    assert table.split()[6:] == [b"cli", b"classic", b"Empty", b"0", b"1", b"75"]
    cli("group", "reset-offsets", "cli", "--stream", stream, "--to-offset", "98")
    printed, _ = cli("read", stream, "--consumer", "cli", "--values")
    assert printed.splitlines() == [b"message 98", b"message 99"]
    _, refused = cli("group", "reset-offsets", "cli", "--to-offset", "101", code=2)
    assert b"offset 101 is outside" in refused
    cli("group", "reset-offsets", "cli", "--stream", "nowhere", "--to-latest", code=3)
    told = cli("group", "reset-offsets", "cli", "--to-datetime", "2001-01-01T00:00:00Z", "--json")
    (entry,) = json.loads(told[0])["partitions"]
    assert (entry["before"], entry["offset"], entry["lag"]) == (MESSAGES, 0, MESSAGES)
    assert b"group cli deleted, 1 committed offset" in cli("group", "delete", "cli", "-y")[0]
    assert client.offsets(consumer="cli") == []
    _, said = cli("group", "info", "cli", code=3)
    assert b"group 'cli' does not exist" in said


def test_positions_of_a_reset(cli: Run, client: SyncClient) -> None:
    stream = filled(client, partitions=2, partition_by="subject")
    ends = [p.high_watermark for p in client.stream(stream).partitions]

    def reset(*position: str, code: int = 0) -> list[tuple[int | None, int]]:
        """The offsets before and after."""
        out, _ = cli("group", "reset-offsets", "positions", *position, "--json", code=code)
        found = json.loads(out)["partitions"] if not code else []
        return [(each["before"], each["offset"]) for each in found]

    assert reset("--to-latest", code=3) == []  # there is no such group
    assert reset("--stream", stream, "--to-latest", "--dry-run") == [(None, end) for end in ends]
    assert client.groups(stream=stream) == []
    assert reset("--stream", stream, "--shift-by", "-1", code=2) == []  # from where?
    assert reset("--stream", stream, "--to-offset", "7") == [(None, 7), (None, 7)]
    assert reset("--shift-by", "-3") == [(7, 4), (7, 4)]
    assert reset("--shift-by", "2", "--stream", stream, "--partition", "1") == [(4, 6)]
    assert reset("--shift-by", "1000", "--dry-run") == [(4, ends[0]), (6, ends[1])]
    assert reset("--shift-by", "-1000") == [(4, 0), (6, 0)]
    assert reset("--to-latest") == [(0, end) for end in ends]
    assert reset("--to-earliest") == [(end, 0) for end in ends]
    for wrong in ((), ("--to-latest", "--to-earliest"), ("--partition", "1", "--to-latest")):
        reset(*wrong, code=2)
    table, said = cli("group", "reset-offsets", "positions", "--to-latest", "--dry-run")
    assert b"nothing has been committed" in said
    rows = [line.split() for line in table.decode().splitlines()]
    assert rows[0] == ["stream", "partition", "before", "after", "change", "end", "lag"]
    end = str(ends[1])
    assert rows[2] == [stream, "1", "0", end, f"+{end}", end, "0"]
    removed = cli("group", "rm", "positions", "--stream", stream, "--partition", "0", "--yes")[0]
    assert b"1 committed offset of group positions removed" in removed
    (found,) = client.groups(stream=stream)
    assert (found.partitions, found.lag) == (1, ends[1])


def test_a_group_may_have_any_name(client: SyncClient, stream: str) -> None:
    for name in ("a/b", "..", "a b?c=%2F", "reset-offsets", "ü"):
        client.reset_offsets(name, stream, offset=3)
        assert client.group(name).offsets[0].offset == 3
        assert client.delete_group(name) == 1


def test_the_http_api_refuses_what_is_half_said(node: Node, stream: str) -> None:
    reset = "/v1/groups/c/reset-offsets"
    wrong = (
        ("POST", reset, {"stream": stream}, 400),
        ("POST", reset, {"stream": stream, "to": "x"}, 400),
        ("POST", reset, {"stream": stream, "offset": -1}, 400),
        ("POST", reset, {"stream": stream, "to": "latest", "shift_by": 1}, 400),
        ("POST", reset, {"partition": 0, "to": "latest"}, 400),
        ("POST", "/v1/groups//reset-offsets", {"stream": stream, "to": "latest"}, 400),
        ("POST", reset, {"stream": stream, "to": "latest", "partition": 4}, 404),
        ("POST", reset, {"to": "latest"}, 404),
        ("GET", "/v1/groups/c", None, 404),
        ("DELETE", "/v1/groups/c", None, 404),
    )
    for method, path, body, status in wrong:
        with pytest.raises(urllib.error.HTTPError) as caught:
            node.call(method, path, body)
        assert caught.value.code == status, path
    assert node.call("GET", "/v1/offsets?consumer=c") == {"offsets": []}


# Deaths


def test_nothing_is_lost_when_node_and_consumer_are_killed(tmp_path: Path) -> None:
    """A consumer prints and commits; it and the node are killed in turn while messages come."""
    with running_node(tmp_path) as node:
        node.create("flights", "flights.>")
        printed, sent = [], 0
        for life in range(3):
            with bascule.connect_sync(node.addresses["http"]) as client:
                client.publish_many((f"flights.{n}", b"%d" % n) for n in range(sent, sent + 500))
                sent += 500
                resumed = committed(client, "printer", "flights").get(0, 0)
            assert resumed <= len(set(printed))
            output = tmp_path / f"printed-{life}"
            with output.open("wb") as file:
                consumer = subprocess.Popen(
                    [
                        str(BIN / "bascule"), "read", "flights", "--consumer", "printer",
                        "--follow", "--values",
                    ],
                    stdout=file,
                    env={**os.environ, "BASCULE_SERVER": node.addresses["http"]},
                )  # fmt: skip
            wanted = sent if life % 2 else sent - 200
            reached = partial(has_reached, output, wanted - 1)
            try:
                wait_for(reached, consumer, node.log)
            finally:
                consumer.kill()
                consumer.wait()
            lines = read_whole(output)
            assert lines == list(range(resumed, lines[-1] + 1)), "each offset once, none left out"
            printed += lines
            node.stop(signal.SIGKILL)
            node.start()
        assert sorted(set(printed)) == list(range(max(printed) + 1))
        with bascule.connect_sync(node.addresses["http"]) as client:
            with client.consume("flights", "printer", follow=False) as messages:
                printed += [int(message.value or b"") for message in messages]
            assert set(printed) == set(range(sent))
            assert committed(client, "printer", "flights") == {0: sent}
        node.stop(signal.SIGKILL)
        node.start()
        with bascule.connect_sync(node.addresses["http"]) as client:
            assert committed(client, "printer", "flights") == {0: sent}


def has_reached(output: Path, number: int) -> bool | None:
    return True if read_whole(output)[-1:] >= [number] else None


def read_whole(output: Path) -> list[int]:
    """The numbers in whole lines."""
    text = output.read_bytes()
    return [int(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def test_a_consumer_lives_through_the_death_of_its_node(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as server,
        running_node(tmp_path / "node", nats=server.url, keep_ports=True) as node,
    ):
        node.create("flights", "flights.>")
        with bascule.connect_sync(node.addresses["http"]) as client:
            client.publish_many(("flights.a", b"%d" % n) for n in range(1_000))

        async def scene() -> None:
            seen = []
            async with (
                bascule.connect(node.addresses["http"]) as own,
                own.consume("flights", "steady", commit_interval=0.05) as messages,
            ):
                async for message in messages:
                    seen.append(message.offset)
                    if len(seen) == 400:
                        await messages.commit()
                        await asyncio.to_thread(node.stop, signal.SIGKILL)
                        await asyncio.to_thread(node.start)
                    if len(seen) == 1_000:
                        break
            assert seen == list(range(1_000))
            assert messages.committed == {0: 1_000}

        asyncio.run(asyncio.wait_for(scene(), 60))
        with bascule.connect_sync(node.addresses["http"]) as client:
            assert committed(client, "steady", "flights") == {0: 1_000}
            # A failure in the block is not hidden by that of the commit after it.
            with pytest.raises(ZeroDivisionError), client.consume("flights", "two") as messages:
                assert [next(messages).offset for _ in range(3)] == [0, 1, 2]
                node.stop(signal.SIGKILL)
                raise ZeroDivisionError
