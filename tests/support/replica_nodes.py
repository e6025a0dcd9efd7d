"""Nodes that replicate over real sockets and real logs, in one process and without a controller.

A test plays the controller: it changes the state of the partition and tells the nodes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bascule.cluster_identity import ClusterIdentity
from bascule.host.real import RealClock, RealFiles
from bascule.model import PartitionState, StreamConfig, StreamDefinition
from bascule.peer.listener import PeerListener
from bascule.peer.replica_fetch import ReplicaFetchHandler, WantedIsr
from bascule.publish.headers import HashKey
from bascule.replica.follower import Replicator
from bascule.replica.follower.fetcher import PeerIdentity
from bascule.replica.log_writer import LogWriter
from bascule.replica.opening import PartitionOpener, close_partition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchRequest
from support.replica_group import message
from support.replicas import decode_acks, no_reserve

T = TypeVar("T")
CLUSTER = "replica-nodes"
LIMIT_SECONDS = 120.0


async def _refuse_raft(sock: object) -> None:
    raise AssertionError("no Raft here")


class ReplicaNode:
    """One node: its threads, its listener and its logs. It may be killed and started again."""

    def __init__(self, node: int, directory: Path, *, lag_ms_max: int = 1_000) -> None:
        self.node = node
        self.directory = directory
        self.lag_ms_max = lag_ms_max
        self.node_epoch = 0
        self.acks = b""
        self._acks_lock = threading.Lock()
        self.silent: list[tuple[int, str]] = []
        self.address = ("127.0.0.1", 0)
        self.is_running = False

    def start(self) -> None:
        """Start the process's parts; the partitions have no role yet."""
        self.node_epoch += 1
        self.loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._loop_thread.start()
        clock = RealClock()
        self.partitions = Partitions()
        self.partitions.bind(self.loop)
        self.syncer = LogSyncer(clock=clock, threads=2)
        self.writer = LogWriter(self.syncer, no_reserve())
        self.syncer.start(self._send)
        self.writer.start(self._send)
        self.opener = PartitionOpener(RealFiles(), clock, HashKey(bytes(16)), self.partitions)
        self.handler = ReplicaFetchHandler(
            self.partitions,
            clock=clock,
            send_acks=self._send,
            stuck_ns=lambda: max(self.writer.stuck_ns(), self.syncer.stuck_ns()),
        )
        self.replicator = Replicator(
            PeerIdentity(self.node, ClusterIdentity(CLUSTER), lambda: self.node_epoch),
            writer=self.writer,
            syncer=self.syncer,
            send_acks=self._send,
            on_leading=self.handler.watch,
            on_silent=lambda leader, reason: self.silent.append((leader, reason)),
            lag_ms_max=self.lag_ms_max,
            clock=clock,
        )
        self.on_loop(self._listen())
        self.is_running = True

    async def _listen(self) -> None:
        self.listener = PeerListener(
            node_id=self.node,
            cluster=ClusterIdentity(CLUSTER),
            node_epoch=lambda: self.node_epoch,
            handlers={ReplicaFetchRequest: self.handler.handle},
            on_raft=_refuse_raft,
            on_heartbeats=_refuse_raft,
        )
        self.address = await self.listener.start(*self.address)

    def _send(self, operations: bytes) -> None:
        with self._acks_lock:
            self.acks += operations

    def on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(LIMIT_SECONDS)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the node's event loop."""

        async def call() -> T:
            return function()

        return self.on_loop(call())

    def open(self, definition: StreamDefinition) -> tuple[Partition, ...]:
        """Open all partitions of a stream."""
        opened = [
            self.opener.open(
                definition,
                n,
                str(self.directory / definition.name / str(n)),
                adopt=True,
                held=False,
            )[0]
            for n in range(definition.partition_count)
        ]
        assert all(each.failure is None for each in opened), opened[0].failure
        self.call(lambda: self.partitions.add(tuple(opened)))
        return tuple(opened)

    def partition(self, definition: StreamDefinition, index: int = 0) -> Partition:
        found = self.partitions.stream_by_id(definition.id)
        assert found is not None
        return found[index]

    def set_role(self, partition: Partition, state: PartitionState) -> Future[None]:
        return self.replicator.set_role(partition, state)

    def wanted_isrs(self) -> list[WantedIsr]:
        return self.call(lambda: [each for each in self.handler.wanted_isrs() if each is not None])

    def log_bytes(self, definition: StreamDefinition, index: int = 0) -> bytes:
        """All batches of a log."""
        logs = sorted((self.directory / definition.name / str(index)).glob("*.log"))
        return b"".join(path.read_bytes() for path in logs)

    def received_acks(self) -> dict[str, dict[str, object]]:
        """Inbox -> ack."""
        with self._acks_lock:
            return decode_acks(self.acks)

    def stop(self, *, kill: bool = False) -> None:
        """End everything; after `kill` without a clean checkpoint."""
        if not self.is_running:
            return
        self.is_running = False
        self.call(self.handler.close)
        self.on_loop(self.listener.close())
        self.replicator.close()
        self.writer.stop()
        self.syncer.stop()
        if not kill:
            for partitions in self.partitions.streams().values():
                for partition in partitions:
                    close_partition(partition)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._loop_thread.join(LIMIT_SECONDS)
        self.loop.close()


class ReplicaNodes:
    """Three nodes that hold one stream, and the states that its partitions are in."""

    def __init__(self, directory: Path, config: StreamConfig, *, lag_ms_max: int = 1_000) -> None:
        self.definition = StreamDefinition("s", b"replicated-strm!", 0, config)
        self.nodes = {
            n: ReplicaNode(n, directory / f"node{n}", lag_ms_max=lag_ms_max) for n in (1, 2, 3)
        }
        self.states = {
            index: PartitionState((1, 2, 3), (1, 2, 3), 1, 1, 1)
            for index in range(config.partitions)
        }

    def __enter__(self) -> ReplicaNodes:
        for node in self.nodes:
            self.start(node)
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.nodes.values():
            node.stop()

    def start(self, number: int) -> None:
        """Start a node. It knows all others, and they know its address."""
        node = self.nodes[number]
        node.start()
        node.open(self.definition)
        for other in self.nodes.values():
            if other.is_running:
                other.replicator.set_peer(number, *node.address)
                node.replicator.set_peer(other.node, *other.address)

    def apply(self, *nodes: int, index: int = 0, **changes: Any) -> None:
        """Change the state of a partition and tell these nodes, by default all that run."""
        state = self.states[index]
        self.states[index] = replace(state, version=state.version + 1, **changes)
        self.tell(*nodes, index=index)

    def tell(self, *nodes: int, index: int = 0) -> None:
        chosen = [self.nodes[n] for n in nodes or self.nodes]
        pending = [
            node.set_role(node.partition(self.definition, index), self.states[index])
            for node in chosen
            if node.is_running
        ]
        for future in pending:
            future.result(LIMIT_SECONDS)

    def partition(self, node: int, index: int = 0) -> Partition:
        return self.nodes[node].partition(self.definition, index)

    def publish(
        self, node: int, count: int, *, prefix: str = "in", records: int = 1, index: int = 0
    ) -> list[str]:
        """Append `count` batches at a node; return the inboxes of their first messages."""
        inboxes = [f"{prefix}.{n}" for n in range(count)]
        partition = self.partition(node, index)
        for inbox in inboxes:
            self.nodes[node].writer.append(partition, [message(inbox.encode(), records)])
        return inboxes

    def wait_acks(self, node: int, inboxes: list[str]) -> dict[str, dict[str, object]]:
        """Wait for the acks of these inboxes."""
        wait_until(lambda: self.nodes[node].received_acks().keys() >= set(inboxes))
        return self.nodes[node].received_acks()

    def wait_equal(self, *nodes: int, index: int = 0) -> bytes:
        """Wait until the nodes have equal logs and watermarks at their ends; return the log."""

        def ends() -> set[tuple[int, int]]:
            found = set()
            for node in nodes:
                partition = self.partition(node, index)
                assert partition.log is not None
                found.add((partition.log.synced.offset, partition.committed_offset))
            return found

        wait_until(lambda: len(seen := ends()) == 1 and len(set(*seen)) == 1)
        logs = {self.nodes[node].log_bytes(self.definition, index) for node in nodes}
        assert len(logs) == 1, "the logs differ"
        return logs.pop()


def wait_until(condition: Callable[[], bool], *, seconds: float = LIMIT_SECONDS) -> None:
    """Wait for a condition. Raises: AssertionError."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition does not come true"
        pause.wait(0.005)
