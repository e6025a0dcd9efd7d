"""The data streaming of several nodes in one process: real sockets, files and threads, without the
rest of a node. The cluster is fixed: one stream, one partition, a replica on each node."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from crc32c import crc32c

from bascule.cluster_identity import ClusterIdentity
from bascule.datastream.limits import DataStreamLimits
from bascule.datastream.ports import PayloadPlace
from bascule.datastream.protocol.chains import Links
from bascule.datastream.service import DataStreams
from bascule.errors import NotLeader, UnknownStream
from bascule.host.api import Clock, File
from bascule.host.real import RealClock, RealFiles
from bascule.peer.catch_up_throttle import CatchUpThrottle
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import PAYLOAD_LINKS, seal
from bascule.record.payload_links import Payload
from bascule.storage.partition_log import LogConfig
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import encode_data_head, encode_message
from bascule.wire.datastream.messages import ClosePayload, OpenPayload, ReplicaAddress, StreamHello

STREAM = "models"
STREAM_ID = b"m" * 16


class SlowFiles(RealFiles):
    """A disk that takes a while for each sync of a file that was opened to be written."""

    def __init__(self, node: PayloadNode) -> None:
        super().__init__()
        self._node = node

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        file, node = super().open(path, create=create, write=write), self._node
        sync = file.sync

        def sync_slowly() -> None:
            node.on_sync()
            if node.sync_seconds:
                threading.Event().wait(node.sync_seconds)
            sync()

        return cast(File, SlowFile(file, sync_slowly))


class SlowFile:
    def __init__(self, file: File, sync: Callable[[], None]) -> None:
        self._file = file
        self.sync = sync

    def write_back(self, start: int, end: int) -> None:
        self._file.write_back(start, end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class PayloadNode:
    """One node: a listener, data streaming, and a log with payloads."""

    def __init__(
        self, number: int, directory: Path, limits: DataStreamLimits | None, clock: Clock
    ) -> None:
        self.number = number
        self.directory = directory / str(number)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.limits = limits
        self.clock = clock
        self.leader = 1
        self.alive: list[PayloadNode] = []
        self.replica_count = 1
        self.linked: list[tuple[Payload, list[int]]] = []
        self.links: Links = {}
        self.high_watermark = 0
        self.catch_up: CatchUpThrottle | None = None
        """Limits what it sends to other nodes, as if none were in sync."""
        self.is_deposed = False
        """Whether another node leads, and this one does not know it."""
        self.openings: list[OpenPayload] = []
        """Of those that were linked."""
        self.on_link: Callable[[dict[str, Any]], Future[dict[str, Any]]] = _answered
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.is_running = False
        self._frozen: list[threading.Event] = []
        self.has_replica = True
        self.is_behind = False
        """Whether it does not know of the stream yet, as after its start."""
        self.sync_seconds = 0.0
        """How long the disk of this node takes for a sync."""
        self.on_sync: Callable[[], None] = lambda: None
        """Called before each; it may raise OSError."""
        self.start()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """As after a restart of the process: nothing is known but what is on the disk."""
        self.store = self._open()
        self.streams = DataStreams(
            self.number, ClusterIdentity("test", "id"), self, self.clock, self.limits
        )
        self.is_running = True

    def open_again(self) -> None:
        """Close the log and open it, as when a damaged replica heals."""
        self.store.close()
        self.store = self._open()

    def _open(self) -> PayloadLog:
        return PayloadLog.open(
            SlowFiles(self), str(self.directory), LogConfig(), RealClock(), make_lock=threading.Lock
        )

    def append_record(self, payload: Payload | None) -> int:
        """Append a committed record that names a payload, which is here, or none; its offset."""
        offset = self.store.end.offset
        headers = () if payload is None else payload.headers()
        batch = build_batch([Record(offset, 0, b"key", b"", headers)], base_offset=offset)
        seal(
            batch, record_count=1, base_timestamp=1, max_timestamp=1,
            attributes=0 if payload is None else PAYLOAD_LINKS,
            base_offset=offset, leader_epoch=0,
        )  # fmt: skip
        self.store.append(batch)
        self.store.sync()
        self.high_watermark = offset + 1
        return offset

    def stop(self) -> None:
        """End data streaming. The listener stays, and refuses."""
        self.is_running = False
        self.streams.close()

    def freeze(self) -> threading.Event:
        """As SIGSTOP: the kernel takes connections and bytes, nobody answers; until it is set."""
        thawed = threading.Event()
        self._frozen.append(thawed)
        self.streams._reactor.call(lambda: bool(thawed.wait()) and None)
        return thawed

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # it wakes the thread that accepts
        self._listener.close()
        for each in self._frozen:
            each.set()
        if self.is_running:
            self.stop()

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError:
                return
            if self.is_running:
                self.streams.adopt(sock, f"{peer[0]}:{peer[1]}")
            else:
                sock.close()

    def forget_sessions(self) -> None:
        """End the sessions that nobody sends to, as after a minute."""
        streams = self.streams
        streams._reactor.call(
            lambda: [each.end() for each in [*streams._sessions.values()]] and None
        )

    def files(self) -> list[Path]:
        return sorted((self.directory / "payloads").glob("*"))

    # -- PayloadCluster -------------------------------------------------------------------------

    def place(self, opening: OpenPayload) -> PayloadPlace:
        return self.place_of(opening.stream, 0)

    def place_of(self, stream: str, partition: int) -> PayloadPlace:
        if self.is_behind:
            raise UnknownStream(stream)
        replicas = tuple(ReplicaAddress(each.number, each.address) for each in self.alive)
        return PayloadPlace(
            stream, STREAM_ID, partition, self.leader, replicas, self.replica_count,
            self.store if self.has_replica else None, tuple(range(1, self.replica_count + 1)),
            self.high_watermark,
        )  # fmt: skip

    def peer_address(self, node: int) -> tuple[str, int] | None:
        found = [each.port for each in self.alive if each.number == node]
        return ("127.0.0.1", found[0]) if found else None

    def links_between(self, nodes: Collection[int]) -> Links:
        return self.links

    def catch_up_wait(self, place: PayloadPlace, node: int, count: int) -> float:
        return 0.0 if self.catch_up is None else self.catch_up.admit(count, is_move=False)

    def confirm_leads(self, place: PayloadPlace) -> Future[int]:
        done: Future[int] = Future()
        if self.is_deposed or self.leader != self.number:
            done.set_exception(NotLeader(None, 0))
        else:
            done.set_result(self.store.end.offset)
        return done

    def link(
        self, place: PayloadPlace, opening: OpenPayload, payload: Payload, nodes: list[int]
    ) -> Future[dict[str, Any]]:
        self.linked.append((payload, nodes))
        self.openings.append(opening)
        return self.on_link({
            "stream": STREAM, "seq": 1, "offset": 0, "partition": 0, "replicas": len(nodes),
            "synced": True,
            "payload": {"id": payload.id, "bytes": payload.size, "crc32c": f"{payload.crc:08x}"},
        })  # fmt: skip


def _answered(ack: dict[str, Any]) -> Future[dict[str, Any]]:
    done: Future[dict[str, Any]] = Future()
    done.set_result(ack)
    return done


@contextmanager
def payload_nodes(
    directory: Path,
    count: int,
    *,
    limits: DataStreamLimits | None = None,
    clock: Clock | None = None,
) -> Iterator[dict[int, PayloadNode]]:
    """Nodes 1 to `count`; 1 leads."""
    nodes = {
        number: PayloadNode(number, directory, limits, clock or RealClock())
        for number in range(1, count + 1)
    }
    for node in nodes.values():
        node.alive, node.replica_count = list(nodes.values()), count
    try:
        yield nodes
    finally:
        for node in nodes.values():
            node.close()


def wait_until(what: str, is_met: Callable[[], object], seconds: float = 20) -> None:
    """Raises: AssertionError."""
    deadline = time.monotonic() + seconds
    while not is_met():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        threading.Event().wait(0.01)


class RawSender:
    """A client of the data streaming protocol that sends what it is told."""

    def __init__(self, port: int, hello: StreamHello | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.send(encode_message(frames.HELLO, hello or StreamHello()))
        self._data = b""

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def open(self, id: str, **options: Any) -> None:
        self.send(encode_message(frames.OPEN, OpenPayload(id, STREAM, 0, **options)))

    def packet(self, position: int, data: bytes, *, flags: int = 0, crc: int | None = None) -> None:
        head = encode_data_head(position, len(data), crc32c(data) if crc is None else crc, flags)
        self.send(head, data)

    def finish(self, data: bytes) -> None:
        self.send(encode_message(frames.CLOSE, ClosePayload(len(data), crc32c(data))))

    def next(self) -> tuple[int, bytes]:
        """The next frame: its kind and all of it. Raises: ConnectionError at the end."""
        while len(self._data) < 4 or len(self._data) < 4 + int.from_bytes(self._data[:4], "big"):
            part = self.socket.recv(1 << 16)
            if not part:
                raise ConnectionError("the node closed the connection")
            self._data += part
        size = 4 + int.from_bytes(self._data[:4], "big")
        frame, self._data = self._data[:size], self._data[size:]
        return frame[4], frame

    def until(self, kind: int) -> bytes:
        """The next frame of this kind. Raises: AssertionError for FAILED instead."""
        while True:
            found, frame = self.next()
            if found == kind:
                return frame
            assert found != frames.FAILED, frame

    def close(self) -> None:
        self.socket.close()
