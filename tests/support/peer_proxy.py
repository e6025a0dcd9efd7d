"""A TCP proxy in front of a node's peer listener that can cut off its followers, and them only."""

from __future__ import annotations

import contextlib
import socket
import threading

FETCH = 1001
"""The API key of a follower's fetch."""
NO_REQUEST_FIRST_BYTES = range(0x80, 0xA0)
"""Of Raft and of heartbeats."""
POLL_SECONDS = 0.05


class PeerProxy:
    """Forwards connections. While `cuts_fetches` is set, those of followers carry nothing.

    Nothing is closed meanwhile, as on a network that drops packets. When it is cleared, the
    connections that have lost bytes are closed.
    """

    def __init__(self, port: int, target: int) -> None:
        self.cuts_fetches = threading.Event()
        self._target = target
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(POLL_SECONDS)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            connection = _Connection(self, client, server, self._stopping)
            self._threads += connection.start()


class _Connection:
    def __init__(
        self,
        proxy: PeerProxy,
        client: socket.socket,
        server: socket.socket,
        stopping: threading.Event,
    ) -> None:
        self._proxy = proxy
        self._ends = client, server
        self._stopping = stopping
        self._is_raft: bool | None = None
        self._is_fetch = False
        self._has_lost = False
        self._head = b""
        self._skip = 0
        for end in self._ends:
            end.settimeout(POLL_SECONDS)

    def start(self) -> list[threading.Thread]:
        client, server = self._ends
        threads = [
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True),
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True),
        ]
        for thread in threads:
            thread.start()
        return threads

    def _pump(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while not self._stopping.is_set():
                is_cut = self._is_fetch and self._proxy.cuts_fetches.is_set()
                if self._has_lost and not is_cut:
                    break
                try:
                    data = source.recv(1 << 16)
                except TimeoutError:
                    continue
                if not data:
                    break
                if is_request:
                    self._look(data)
                if self._is_fetch and self._proxy.cuts_fetches.is_set():
                    self._has_lost = True
                    continue
                target.settimeout(None)
                target.sendall(data)
                target.settimeout(POLL_SECONDS)
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _look(self, data: bytes) -> None:
        """Read the API keys of the frames that pass."""
        while data and not self._is_raft and not self._is_fetch:
            if self._skip:
                passed = min(self._skip, len(data))
                data, self._skip = data[passed:], self._skip - passed
                continue
            wanted = 6 - len(self._head)
            self._head, data = self._head + data[:wanted], data[wanted:]
            if len(self._head) == 6:
                if self._is_raft is None:
                    self._is_raft = self._head[4] in NO_REQUEST_FIRST_BYTES
                self._is_fetch = int.from_bytes(self._head[4:6], "big") == FETCH
                self._skip = int.from_bytes(self._head[:4], "big") - 2
                self._head = b""
