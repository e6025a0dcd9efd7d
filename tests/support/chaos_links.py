"""TCP proxies in front of the peer listeners of a cluster, whose links can fail one by one.

A link is from one node to another. One that is held carries no bytes, as a network that loses all
packets: what was sent arrives when the link is released, or never, if an end gave up before.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable

import msgspec

RAFT_FIRST_BYTES = range(0x90, 0xA0)
RAFT_SOURCE = 3
"""Where the hello of Raft has its sender."""
HEARTBEAT_FIRST_BYTES = range(0x80, 0x90)
CHUNK_BYTES = 1 << 16


class PeerLinks:
    """One proxy for each node, on a thread of its own."""

    def __init__(self, ports: dict[int, tuple[int, int]]) -> None:
        """`ports` has the port where a node is reached and the one where it listens."""
        self._ports = ports
        self._loop = asyncio.new_event_loop()
        self._stall = 0.0
        self._open: dict[tuple[int, int], asyncio.Event] = {}
        self._delays: dict[tuple[int, int], float] = {}
        self._connections: dict[asyncio.Task[None], tuple[int, int]] = {}
        self._listeners = {
            node: socket.create_server(("127.0.0.1", reached), backlog=100)
            for node, (reached, _) in ports.items()
        }
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold(self, links: Iterable[tuple[int, int]]) -> None:
        """Let no byte pass on these links, each from a node to a node."""
        for link in links:
            self._loop.call_soon_threadsafe(self._event(link).clear)

    def release(self, links: Iterable[tuple[int, int]]) -> None:
        """Let bytes pass again."""
        for link in links:
            self._loop.call_soon_threadsafe(self._event(link).set)

    def slow(self, links: Iterable[tuple[int, int]], seconds: float) -> None:
        """Let what is sent on these links arrive so much later; 0: at once."""
        for link in links:
            self._delays[link] = seconds

    def reset(self, node: int, other: int) -> None:
        """Close all connections between two nodes."""

        def close() -> None:
            for task, ends in self._connections.items():
                if set(ends) == {node, other}:
                    task.cancel()

        self._loop.call_soon_threadsafe(close)

    def take_stall(self) -> float:
        """For how long this program has held up all links at a time, at most, since the last
        call: a machine that is loaded is no fault of the cluster."""
        found, self._stall = self._stall, 0.0
        return found

    async def _watch(self) -> None:
        while True:
            before = self._loop.time()
            await asyncio.sleep(0.05)
            self._stall = max(self._stall, self._loop.time() - before - 0.05)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for listener in self._listeners.values():
            listener.close()
        self._loop.close()

    def _event(self, link: tuple[int, int]) -> asyncio.Event:
        if link not in self._open:
            self._open[link] = event = asyncio.Event()
            event.set()
        return self._open[link]

    def _run(self) -> None:
        tasks = [self._loop.create_task(self._accept(node)) for node in self._listeners]
        tasks.append(self._loop.create_task(self._watch()))
        self._loop.run_forever()
        tasks += self._connections
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _accept(self, node: int) -> None:
        listener = self._listeners[node]
        listener.setblocking(False)
        while True:
            client, _ = await self._loop.sock_accept(listener)
            task = self._loop.create_task(self._carry(client, node))
            self._connections[task] = 0, node
            task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _carry(self, client: socket.socket, node: int) -> None:
        server = socket.socket()
        try:
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head, origin = await self._read_hello(client)
            task = asyncio.current_task()
            assert task is not None
            self._connections[task] = origin, node
            await self._event((origin, node)).wait()
            await self._loop.sock_connect(server, ("127.0.0.1", self._ports[node][1]))
            await self._loop.sock_sendall(server, head)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(client, server, (origin, node)))
                both.create_task(self._pump(server, client, (node, origin)))
        except (OSError, ExceptionGroup):
            pass
        finally:
            client.close()
            server.close()

    async def _read_hello(self, client: socket.socket) -> tuple[bytes, int]:
        """The first frame, and the node that has sent it. Raises: OSError."""
        head, size = b"", 4
        while len(head) < size:
            data = await self._loop.sock_recv(client, CHUNK_BYTES)
            if not data:
                raise ConnectionResetError
            head += data
            if len(head) >= 4:
                size = 4 + int.from_bytes(head[:4], "big")
        frame = head[4:size]
        if frame[0] in RAFT_FIRST_BYTES:
            return head, msgspec.msgpack.decode(frame)[RAFT_SOURCE]
        if frame[0] in HEARTBEAT_FIRST_BYTES:
            return head, msgspec.msgpack.decode(frame)["source"]
        at = 8  # behind the API key, its version and the number of the request
        for _ in ("client id", "cluster"):
            at += 2 + int.from_bytes(frame[at : at + 2], "big")
        return head, int.from_bytes(frame[at : at + 4], "big")

    async def _pump(self, source: socket.socket, target: socket.socket, link: tuple[int, int]):
        passes = self._event(link)
        while True:
            data = await self._loop.sock_recv(source, CHUNK_BYTES)
            if delay := self._delays.get(link):
                await asyncio.sleep(delay)
            await passes.wait()
            if not data:
                raise ConnectionResetError
            await self._loop.sock_sendall(target, data)
