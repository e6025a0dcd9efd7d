"""Payloads as users see them: files of the commands, messages that open theirs, Kafka clients."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import random
import signal
import struct
import subprocess
import termios
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import pytest
from crc32c import crc32c

import bascule
from bascule.cli.main import main
from bascule.cli.payloads.part_file import PartFile
from bascule.client.messages import Message
from support import commands
from support.processes import BIN, Node, running_node, wait_for

with warnings.catch_warnings():
    # It reads its own schema files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

MIB = 1 << 20
DATA = random.Random(1).randbytes(3 * MIB + 5)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("payload-clients")) as node:
        with bascule.connect_sync(node.addresses["http"]) as client:
            client.create_stream("files", "files.>")
            for subject, data in (("files.large", DATA), ("files.small", b"abc")):
                with client.open_payload("files", subject=subject, key="k") as out:
                    out.write(data)
        yield node


def run(node: Node, directory: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return commands.run(*arguments, "--server", node.addresses["http"], cwd=directory)


def test_a_part_of_something_else_is_not_gone_on_with(node: Node, tmp_path: Path) -> None:
    part = tmp_path / "out.part"
    part.write_bytes(b"x" * 10_000)
    got = run(node, tmp_path, "get", "files", "1", "-o", "out")
    assert got.returncode == 0, got.stderr
    assert (tmp_path / "out").read_bytes() == b"abc"
    assert b"begins anew" in got.stderr
    part.write_bytes(b"x" * 10)  # of a range, nobody could tell
    got = run(node, tmp_path, "get", "files", "0", "--bytes", "5-50", "-o", "out")
    assert (got.returncode, (tmp_path / "out").read_bytes()) == (0, DATA[5:50])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out"]


def test_what_is_no_regular_file_is_written_to_as_it_is(node: Node, tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", tmp_path / "received"
    os.mkfifo(pipe)
    with received.open("wb") as file, subprocess.Popen(["cat", pipe], stdout=file) as reader:
        got = run(node, tmp_path, "get", "files", "0", "-o", "pipe")
        assert got.returncode == 0, got.stderr
        assert reader.wait(30) == 0
    assert received.read_bytes() == DATA
    assert pipe.is_fifo()
    got = run(node, tmp_path, "get", "files", "0", "-o", "/dev/full")
    assert got.returncode != 0
    assert b"No space left" in got.stderr
    assert b"Traceback" not in got.stderr
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    assert run(node, tmp_path, "get", "files", "0", "-o", "null").returncode == 0
    assert null.is_char_device()
    got = run(node, tmp_path, "get", "files", "1", "-o", "/dev/stdout")
    assert (got.returncode, got.stdout) == (0, b"abc")


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(
    node: Node, tmp_path: Path, exists: bool
) -> None:
    below = tmp_path / "below"
    below.mkdir()
    if exists:
        (below / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to(Path("below") / "file")
    got = run(node, tmp_path, "get", "files", "1", "-o", "link")
    assert got.returncode == 0, got.stderr
    assert (tmp_path / "link").readlink() == Path("below") / "file"
    assert (below / "file").read_bytes() == b"abc"
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["below", "file", "link"]


@pytest.mark.parametrize("output", ["out", "-"])
def test_a_range_behind_the_end_is_an_error(node: Node, tmp_path: Path, output: str) -> None:
    for part in ("3-", "4-5", "4-4"):
        got = run(node, tmp_path, "get", "files", "1", "--bytes", part, "-o", output)
        assert got.returncode != 0
        assert b"it has 3 bytes" in got.stderr
    assert not list(tmp_path.iterdir())
    for part in ("2-9", "3-3", "0-0"):
        got = run(node, tmp_path, "get", "files", "1", "--bytes", part, "-o", output)
        found = got.stdout if output == "-" else (tmp_path / "out").read_bytes()
        assert (got.returncode, found) == (0, b"c" if part == "2-9" else b"")


def test_a_part_is_gone_on_with_only_for_its_own_range(node: Node, tmp_path: Path) -> None:
    part, note = tmp_path / "out.part", tmp_path / "out.part.json"
    id = httpx.get(f"{node.addresses['http']}/v1/streams/files/partitions/0/payloads/0").headers[
        "bascule-payload-id"
    ]

    def prepare(start: int, have: bytes, *, damaged: bool = False, content: bytes = DATA) -> None:
        part.write_bytes(have[:-1] + b"?" if damaged else have)
        is_of = {"id": id, "payload_bytes": len(content), "payload_crc32c": crc32c(content)}
        noted = {"start": start, "end": None, "bytes": len(have), "crc32c": f"{crc32c(have):08x}"}
        note.write_text(json.dumps(is_of | noted))

    def get(*options: str) -> bytes:
        got = run(node, tmp_path, "get", "files", "0", "-o", "out", *options)
        assert got.returncode == 0, got.stderr
        start = 7 if options else 0
        assert (tmp_path / "out").read_bytes() == DATA[start:]
        assert not part.exists()
        assert not note.exists()
        return got.stderr

    prepare(7, DATA[7 : MIB + 7])
    assert b"going on behind 1,048,576 bytes" in get("--bytes", "7-")
    for start, damaged in ((6, False), (7, True)):
        prepare(start, DATA[start : MIB + start], damaged=damaged)
        assert b"begins anew" in get("--bytes", "7-")
    prepare(7, DATA[7 : MIB + 7], content=DATA[:-1] + b"?")  # other content with its id
    assert b"begins anew" in get("--bytes", "7-")
    prepare(7, DATA[7 : MIB + 7])
    assert b"begins anew" in get()
    prepare(0, DATA[:MIB])
    part.write_bytes(DATA[:MIB] + bytes(100))  # more than was noted, as after a power loss
    assert b"going on behind 1,048,576 bytes" in get()


def test_a_record_that_changes_while_it_is_read_is_noticed(
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = node.addresses["http"]
    opened = PartFile.open

    def send(data: bytes) -> None:
        with bascule.connect_sync(url) as client:
            client.create_stream("anew", "anew.>")
            with client.open_payload("anew", subject="anew.a", payload_id="0" * 32) as out:
                out.write(data)

    def open_once_it_has_changed(part: PartFile) -> int:
        have = opened(part)
        with bascule.connect_sync(url) as client:
            client.delete_stream("anew")
        send(b"later")
        return have

    send(b"first")
    monkeypatch.setattr(PartFile, "open", open_once_it_has_changed)
    monkeypatch.chdir(tmp_path)
    assert main(["get", "anew", "0", "--bytes", "1-", "-o", "out", "--server", url]) == 6
    assert "its record names" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_put_that_is_killed_can_be_resumed(node: Node, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    command = [str(BIN / "bascule"), "put", "files", "-", "--subject", "files.killed"]
    with subprocess.Popen(
        [*command, "--server", node.addresses["http"]],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
    ) as putting:  # fmt: skip
        assert putting.stdin is not None
        assert putting.stderr is not None
        putting.stdin.write(DATA[: 2 * MIB])
        putting.stdin.flush()
        line = putting.stderr.readline()
        putting.send_signal(signal.SIGKILL)
    id = line.rsplit(maxsplit=1)[-1].decode()
    assert len(id) == 32, line
    done = run(
        node,
        tmp_path,
        "put",
        "files",
        "data",
        "--subject",
        "files.killed",
        "--resume",
        id,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert id in done.stdout.decode()


@pytest.mark.parametrize("way", ["put", "get"])
def test_a_terminal_shows_how_far_a_payload_is(node: Node, tmp_path: Path, way: str) -> None:
    (tmp_path / "data").write_bytes(DATA)
    arguments = (
        ["put", "files", "data", "--subject", "files.shown"]
        if way == "put"
        else ["get", "files", "0", "-o", "copy"]
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(
        [str(BIN / "bascule"), *arguments, "--server", node.addresses["http"]],
        stderr=theirs, cwd=tmp_path, env=environment,
    ) as command:  # fmt: skip
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the end of a terminal whose other side is closed
            while part := os.read(ours, 1 << 16):
                shown += part
        os.close(ours)
    assert command.returncode == 0
    assert b"3.0/3.0 MiB" in shown


def test_clients_are_told_of_progress(node: Node) -> None:
    async def test() -> None:
        async with (
            bascule.connect(node.addresses["http"]) as client,
            client.open_payload("files", subject="files.told", on_progress=told.append) as out,
        ):
            await out.write(DATA)

    told: list[int] = []
    asyncio.run(test())
    assert told[-1] == len(DATA)
    told.clear()
    with bascule.connect_sync(node.addresses["http"]) as client:
        with client.open_payload("files", subject="files.told", on_progress=told.append) as out:
            out.write_from(DATA[at : at + MIB] for at in range(0, len(DATA), MIB))
        assert told[-1] == len(DATA)
        assert told == sorted(set(told))


def test_payloads_go_with_their_stream(node: Node) -> None:
    """Also one that is being sent; nothing of them is left, and a stream that is made anew under
    the name has none."""

    def left() -> list[str]:
        """Files with an id of the two, also deleted ones that the node has open."""
        assert node.process is not None
        names = [name for _, _, files in os.walk(node.directory / "data") for name in files]
        for each in Path(f"/proc/{node.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                names.append(os.readlink(each))
        return [name for name in names if any(id in name for id in ids)]

    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_stream("gone", "gone")
        with client.open_payload("gone") as out:
            out.write(DATA)
        ids = [out.id]
        stored = list(client.read("gone", end="latest"))
        with (
            pytest.raises(bascule.errors.BasculeError),
            client.open_payload("gone", timeout=1) as out,
        ):
            ids.append(out.id)
            out.write(DATA)
            out.sync()
            folder = node.directory / "data/streams/gone"
            files = [each.suffix for each in (folder / "0/payloads").iterdir()]
            assert {".linked", ".open"} <= {*files}
            assert len(left()) >= 3, "one of them is open"
            client.delete_stream("gone")
            wait_for(lambda: True if not folder.exists() else None, node.process, node.log)
            out.write(DATA)
        wait_for(lambda: True if not left() else None, node.process, node.log)
        with pytest.raises(bascule.errors.UnknownStream), client.read_payload("gone", stored[0]):
            pass
        client.create_stream("gone", "gone")
        with pytest.raises(bascule.errors.UnknownPayload), client.read_payload("gone", stored[0]):
            pass
        assert not list((folder / "0").glob("payloads/*"))


def test_messages_open_their_payloads(node: Node) -> None:
    async def test() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            messages = [message async for message in client.read("files", end="latest")]
            async with messages[0].open() as payload:
                assert await payload.read() == DATA
            async with messages[0].open(start=5, end=9) as payload:
                assert await payload.read() == DATA[5:9]
            async for message in client.consume("files", "opener"):
                async with message.open() as payload:
                    assert payload.size == len(DATA)
                break
            await client.create_stream("plain", "plain")
            await client.publish("plain", b"x")
            (plain,) = [message async for message in client.read("plain", end="latest")]
            with pytest.raises(ValueError, match="no payload"):
                plain.open()
            with pytest.raises(ValueError, match="no client"):
                Message(*messages[0]).open()

    asyncio.run(test())
    with bascule.connect_sync(node.addresses["http"]) as client:
        messages = list(client.read("files", end="latest"))
        with messages[1].open() as payload:
            assert payload.read() == b"abc"


def test_kafka_clients_read_the_record(node: Node) -> None:
    servers = node.addresses["client"]
    expected: dict[str, bytes] = {
        "Bascule-Payload-Bytes": b"%d" % len(DATA),
        "Bascule-Payload-CRC32C": b"%08x" % crc32c(DATA),
    }

    def check(key: bytes | None, value: bytes | None, headers: Any) -> None:
        assert (key, value) == (b"k", b"")
        found = dict(headers)
        assert len(found.pop("Bascule-Payload-Id")) == 32
        assert expected.items() <= found.items()

    confluent = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "c"})
    confluent.assign([confluent_kafka.TopicPartition("files", 0, 0)])
    record = confluent.poll(20)
    assert record is not None
    assert record.error() is None
    check(record.key(), record.value(), record.headers())
    confluent.close()

    python = kafka.KafkaConsumer(bootstrap_servers=servers, consumer_timeout_ms=20_000)
    partition = kafka.TopicPartition("files", 0)
    python.assign([partition])
    python.seek(partition, 0)
    first = next(iter(python))
    check(first.key, first.value, first.headers)
    python.close()


def test_retention_counts_the_bytes_of_payloads(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_stream("kept", "kept", retention_bytes_max=4 * MIB)
        for _ in range(12):
            with client.open_payload("kept") as out:
                out.write(DATA[:MIB])
        client.create_stream("full", "full", retention_bytes_max=2 * MIB, discard="new")
        with client.open_payload("full") as out:
            out.write(DATA)
        with pytest.raises(bascule.errors.BasculeError), client.open_payload("full") as out:
            out.write(b"one more")
        directory, sent = node.directory / "data/streams/kept/0/payloads", 12
        deadline, left = time.monotonic() + 60, sent
        while left > sent - 8 and time.monotonic() < deadline:
            with client.open_payload("kept") as out:
                out.write(DATA[:MIB])
            sent += 1
            time.sleep(1)
            left = len(list(directory.glob("*.linked")))
    assert 4 <= left <= sent - 8


def test_conditions_of_http(node: Node) -> None:
    url = f"{node.addresses['http']}/v1/streams/files/partitions/0/payloads/0"
    tag = httpx.head(url).headers["etag"]

    def status(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.get(url, headers=named).status_code

    assert status(if_none_match="*") == 304
    assert status(if_none_match=f'"x", W/{tag}') == 304
    assert status(if_none_match='"x"') == 200
    assert status(if_match="*") == 200
    assert status(if_match=f'"x", {tag}') == 200
    assert status(if_match='"x"') == 412
    assert status(if_match=f"W/{tag}") == 412, "it is compared strongly"
    assert status(if_range=tag, range="bytes=0-1") == 206
    assert status(if_range='"x"', range="bytes=0-1") == 200
    assert status(range="bytes=5-1") == 200
    assert status(range="bytes=0-1,5-9") == 200
    assert status(range=f"bytes={len(DATA)}-") == 416
    with httpx.Client() as http:  # one connection
        for _ in range(3):
            assert http.get(url).content == DATA
            assert http.get(url, headers={"Range": "bytes=-7"}).content == DATA[-7:]
            assert http.head(url).headers["content-length"] == str(len(DATA))
