"""Bytes go from segment to socket inside the kernel, and cold ones do not stall the loop."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bascule.host.real import RealFile
from bascule.listening.limits import ListenerStatistics
from bascule.listening.sending import Sender
from bascule.replica.partitions import Partitions
from bascule.storage.partition_log import FileSlice
from support.raw_client import RawClient, read_all
from support.served_stream import append, make_records, open_stream, running_listener, stored_bytes

RECORD_COUNT = 20_000
TESTS = Path(__file__).parents[1]

SERVE = """
import sys
from pathlib import Path
from bascule.replica.partitions import Partitions
from support.served_stream import open_stream, running_listener

partitions = Partitions()
open_stream(Path(sys.argv[1]), partitions)
with running_listener(partitions) as listener:
    print(listener.port, flush=True)
    sys.stdin.read()
"""


def store(directory: Path, *, segment_bytes_max: int = 256 << 20) -> bytes:
    """Write a stream and close it; all its bytes."""
    partitions = Partitions()
    flights = open_stream(directory, partitions, segment_bytes_max=segment_bytes_max)
    for first in range(0, RECORD_COUNT, 500):
        append(flights, make_records(first, 500, bytes_each=200), commit=False)
    flights.sync()
    data = stored_bytes(flights)
    assert flights.log is not None
    flights.log.close()
    return data


def test_strace_sees_sendfile_move_the_records(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed (Debian package strace)")
    expected = store(tmp_path)
    trace = tmp_path / "trace"
    command = [strace, "-f", "-e", "trace=sendfile,sendto,write,writev,sendmsg", "-o", str(trace)]
    with subprocess.Popen(
        [*command, sys.executable, "-c", SERVE, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            pytest.skip("strace may not trace here (ptrace is not allowed)")
        with RawClient("127.0.0.1", int(line)) as client:
            assert read_all(client, RECORD_COUNT, bytes_max=1 << 20) == expected
        server.communicate(b"")
    calls = re.findall(r"(sendfile|sendto|write|writev|sendmsg)\(.*\) = (\d+)", trace.read_text())
    moved = sum(int(count) for name, count in calls if name == "sendfile")
    copied = sum(int(count) for name, count in calls if name != "sendfile")
    assert moved >= len(expected)
    assert copied < len(expected) // 100


def drop_cache(directory: Path) -> bool:
    """Ask the kernel to forget the logs' pages; whether it did."""
    forgot = True
    for path in directory.rglob("*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            buffer = bytearray(1)
            os.preadv(fd, [buffer], os.fstat(fd).st_size // 2, os.RWF_NOWAIT)
            forgot = False
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
    return forgot


def test_cold_segments_are_read_by_threads(tmp_path: Path) -> None:
    expected = store(tmp_path, segment_bytes_max=1_000_000)
    partitions = Partitions()
    open_stream(tmp_path, partitions, segment_bytes_max=1_000_000)
    with (
        running_listener(partitions) as listener,
        RawClient(listener.host, listener.port) as client,
    ):
        if not drop_cache(tmp_path):
            pytest.skip(f"the file system of {tmp_path} keeps its pages or cannot say")
        assert read_all(client, RECORD_COUNT) == expected
        cold = listener.statistics()
        assert cold.cold_reads > 0
        assert cold.bytes_sendfile >= len(expected)
        assert read_all(client, RECORD_COUNT) == expected
        assert listener.statistics().cold_reads < 2 * cold.cold_reads


class ColdFile(RealFile):
    """A file whose pages are away until a thread, held back as long as wished, has read them."""

    __slots__ = ("entered", "held", "is_warm")

    def __init__(self, fd: int, path: str) -> None:
        super().__init__(fd, path)
        self.entered, self.held = threading.Event(), threading.Event()
        self.is_warm = False

    def is_cached(self, start: int, end: int) -> bool:
        return self.is_warm and super().is_cached(start, end)

    def load(self, start: int, end: int) -> None:
        self.entered.set()
        assert self.held.wait(30)
        self.is_warm = True
        super().load(start, end)


def test_the_loop_turns_while_a_thread_reads(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(256)) * 8_000)
    file = ColdFile(os.open(path, os.O_RDWR), str(path))
    statistics = ListenerStatistics()

    async def scene() -> bytes:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            there.setblocking(False)

            async def writable() -> None:
                ready = loop.create_future()
                loop.add_writer(here, lambda: ready.done() or ready.set_result(None))
                await ready
                loop.remove_writer(here)

            sender = Sender(
                here,
                statistics=statistics,
                run_on_thread=lambda function: loop.run_in_executor(None, function),
                writable=writable,
                progress=lambda: None,
            )
            pieces = [b"head", FileSlice(file, 1_000, 2_000_000), b"tail"]
            sending = loop.create_task(sender.send(pieces))
            while not file.entered.is_set():
                await asyncio.sleep(0)
            # Were the disk asked on the loop, this would not run before the file is let go.
            assert await loop.sock_recv(there, 100) == b"head"
            file.held.set()
            sending.add_done_callback(lambda _: here.shutdown(socket.SHUT_WR))
            received = bytearray()
            while data := await loop.sock_recv(there, 1 << 20):
                received += data
            await sending
            return bytes(received)

    assert asyncio.run(scene()) == path.read_bytes()[1_000:2_001_000] + b"tail"
    assert statistics.cold_reads == 1
    assert statistics.bytes_sendfile == 2_000_000
