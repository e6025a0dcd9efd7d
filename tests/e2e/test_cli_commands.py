"""Commands against a real node, run in this process: what they read, ask, warn of and print."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest import mock

import pytest

from bascule import connect_sync
from bascule.cli.main import main
from bascule.client import Outgoing
from support import commands
from support.processes import BIN, Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("commands")) as node:
        yield node


@dataclass
class Ended:
    """What a command printed to pipes."""

    stdout: bytes
    stderr: bytes


def bascule(
    node: Node, *arguments: str, input: bytes = b"", code: int = 0, columns: str = "120"
) -> Ended:
    streams = [io.TextIOWrapper(io.BytesIO(each), "utf-8") for each in (input, b"", b"")]
    environment = {"BASCULE_SERVER": node.addresses["http"], "COLUMNS": columns}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "stdin", streams[0]),
        redirect_stdout(streams[1]),
        redirect_stderr(streams[2]),
    ):
        found = main(list(arguments))
    for each in streams[1:]:
        each.flush()
    printed = [each.buffer.getvalue() for each in streams]  # type: ignore[attr-defined]
    assert found == code, printed[2].decode()
    return Ended(printed[1], printed[2])


def make_wide(node: Node) -> str:
    """A keyed stream of four partitions with messages in each; its name is longer than a column."""
    name = "wide-" + "x" * 90
    if name not in bascule(node, "stream", "list").stdout.decode():
        bascule(
            node, "stream", "create", name, "--subject", f"{name}.>", "--partitions", "4",
            "--partition-by", "key",
        )  # fmt: skip
        with connect_sync(node.addresses["http"]) as client:
            client.publish_many(Outgoing(f"{name}.x", b"%d" % n, str(n % 32)) for n in range(200))
    return name


def test_reading_covers_all_partitions(node: Node) -> None:
    name = make_wide(node)
    lines = bascule(node, "read", name).stdout.decode().splitlines()
    assert len(lines) == 200
    assert {line.split("/")[0] for line in lines} == {"0", "1", "2", "3"}
    by_time = bascule(node, "read", name, "--order", "timestamp", "--json").stdout.splitlines()
    stamps = [json.loads(line)["timestamp_ms"] for line in by_time]
    assert (len(stamps), stamps) == (200, sorted(stamps))
    one = bascule(node, "read", name, "--partition", "1", "--json").stdout.splitlines()
    assert {json.loads(line)["partition"] for line in one} == {1}
    assert 0 < len(one) < 200
    assert len(bascule(node, "read", name, "--from", "2h", "--values").stdout.split()) == 200
    refused = bascule(node, "read", name, "--from", "3", code=2)
    assert b"has 4 partitions, each with its own offsets" in refused.stderr
    both = bascule(node, "read", name, "--order", "timestamp", "--consumer", "reader", code=2)
    assert b"are both given" in both.stderr

    values = bascule(node, "read", name, "--consumer", "reader", "--values").stdout.split()
    assert sorted(map(int, values)) == list(range(200))
    assert bascule(node, "read", name, "--consumer", "reader").stdout == b""
    found = json.loads(bascule(node, "group", "info", "reader", "--json").stdout)
    assert [(entry["partition"], entry["lag"]) for entry in found["offsets"]] == [
        (n, 0) for n in range(4)
    ]
    again = bascule(node, "group", "reset-offsets", "reader", "--to-datetime", "1h30m", "--json")
    assert [entry["offset"] for entry in json.loads(again.stdout)["partitions"]] == [0, 0, 0, 0]


def test_piped_tables_are_whole_and_plain(node: Node) -> None:
    name = make_wide(node)
    bascule(node, "read", name, "--consumer", "c" * 90, "-n", "1")
    purge = ("stream", "purge", name, "--before", "400d", "--yes")
    for arguments, columns in (
        (("stream", "list"), 8),
        (("stream", "info", name), 9),
        (("group", "list", "--stream", name), 6),
        (("group", "info", "c" * 90), 6),
        (purge, 6),
        (("top", "--once", "-i", "200ms"), 8),
    ):
        text = bascule(node, *arguments, columns="40").stdout.decode()
        assert name in text or arguments == purge or "list" in arguments, text
        assert "…" not in text
        assert "\x1b" not in text
        heads = [re.split(r"  +", line.strip()) for line in text.splitlines()]
        assert columns in map(len, heads), text
    assert "c" * 90 in bascule(node, "group", "list", columns="40").stdout.decode()


def test_retention_says_what_it_waits_for(node: Node) -> None:
    created = bascule(
        node, "stream", "create", "waits", "--subject", "waits", "--retention-after", "nosuchthing"
    )
    warning = b"warning: consumer 'nosuchthing' has not committed an offset of stream waits yet"
    assert warning in created.stderr
    bascule(node, "publish", "waits", "x", "--count", "3")
    info = " ".join(bascule(node, "stream", "info", "waits").stdout.decode().split())
    assert "retention waits for consumer nosuchthing, which has not committed" in info
    bascule(node, "read", "waits", "--consumer", "archiver", "-n", "2")
    altered = bascule(node, "stream", "alter", "waits", "--retention-after", "archiver")
    assert altered.stderr == b""
    info = " ".join(bascule(node, "stream", "info", "waits").stdout.decode().split())
    assert "retention waits for consumer archiver, 1 message behind" in info
    misspelt = bascule(node, "stream", "alter", "waits", "--retention-after", "archivr", "--json")
    assert b"warning: consumer 'archivr'" in misspelt.stderr
    assert json.loads(misspelt.stdout)["config"]["retention_after"] == "archivr"


def test_adding_partitions_to_a_keyed_stream_asks(node: Node) -> None:
    bascule(
        node, "stream", "create", "keyed", "--subject", "keyed", "--partitions", "2",
        "--partition-by", "key",
    )  # fmt: skip
    bascule(node, "stream", "alter", "keyed", "--partitions", "3")
    bascule(node, "publish", "keyed", "x", "--key", "k")
    refused = bascule(node, "stream", "alter", "keyed", "--partitions", "4", input=b"n\n", code=1)
    assert b"most keys move" in refused.stderr
    assert b"error: not confirmed: nothing has been changed" in refused.stderr
    bascule(node, "stream", "alter", "keyed", "--partitions", "3", "--retention", "1d")
    asked = bascule(node, "stream", "alter", "keyed", "--partitions", "5", input=b"y\n", code=0)
    assert b"most keys move" in asked.stderr
    told = bascule(node, "stream", "alter", "keyed", "--partitions", "6", "--yes", "--json")
    assert (json.loads(told.stdout)["config"]["partitions"], told.stderr) == (6, b"")


@pytest.mark.parametrize(
    "arguments",
    [("stream", "purge", "asks"), ("stream", "rm", "asks"), ("group", "rm", "nobody")],
)
def test_without_a_terminal_a_question_names_the_option(
    node: Node, arguments: tuple[str, ...]
) -> None:
    bascule(node, "stream", "create", "asks", "--subject", "asks")
    bascule(node, "publish", "asks", "x")
    refused = bascule(node, *arguments, code=2)
    assert refused.stdout == b""
    assert b"error: nobody answered: give --yes" in refused.stderr
    assert b"x" in bascule(node, "read", "asks").stdout


def test_publish_prints_json_lines(node: Node) -> None:
    bascule(node, "stream", "create", "lines", "--subject", "lines")
    for count in (1, 3):
        text = bascule(node, "publish", "lines", "x", "--count", str(count), "--json").stdout
        assert len([json.loads(line) for line in text.splitlines()]) == count


def test_completion_offers_streams_and_consumers(node: Node) -> None:
    bascule(node, "stream", "create", "complete-me", "--subject", "complete")
    bascule(node, "publish", "complete", "x")
    bascule(node, "read", "complete-me", "--consumer", "complete-reader")
    for line, offered in (
        ("bascule read compl", ["complete-me"]),
        ("bascule read complete-me --consumer compl", ["complete-reader"]),
        ("bascule stream alter complete-me --retention-after compl", ["complete-reader"]),
        ("bascule read _off", ["_offsets"]),
        ("bascule read --server 127.0.0.1:1 compl", []),
    ):
        words = line.split()
        completed = commands.run(
            env={
                "BASCULE_SERVER": node.addresses["http"],
                "_BASCULE_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1),
            }
        )
        assert completed.stdout.decode().split() == offered, line
        assert completed.stderr == b""


def test_q_leaves_top(node: Node) -> None:
    """On a real terminal, which has its old settings afterwards."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    top = subprocess.Popen(
        [str(BIN / "bascule"), "top", "--interval", "100ms"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "BASCULE_SERVER": node.addresses["http"], "TERM": "xterm"},
    )
    try:
        shown = b""
        while b"q quits" not in shown:
            shown += os.read(master, 1 << 16)
        assert termios.tcgetattr(slave)[3] != before[3], "keys are read one by one"
        os.write(master, b"xq")
        # The terminal must be read until the program has ended.
        while top.poll() is None:
            if select.select([master], [], [], 0.1)[0]:
                shown += os.read(master, 1 << 16)
        assert top.returncode == 0
        assert termios.tcgetattr(slave) == before
    finally:
        top.kill()
        top.wait()
        os.close(master)
        os.close(slave)
