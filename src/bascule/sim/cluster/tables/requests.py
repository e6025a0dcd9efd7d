"""`NodeRequests`: what clients of tables ask a node over HTTP, of which simulations run no server.

A request is a call of what the handlers of HTTP call, `ClusterTables`, in the process of the node.
It and its answer cross the network once each, and are lost where that is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from bascule.controller.cluster.tables.cluster_tables import ClusterTables
from bascule.errors import BasculeError, Broken
from bascule.sim.cluster.world.loop import NS, ClusterLoop, LoopProcess, process_now
from bascule.sim.cluster.world.network import StreamNetwork
from bascule.sim.cluster.world.threads import Event

T = TypeVar("T")

Call = Callable[[ClusterTables], Awaitable[T]]
Steps = Callable[[ClusterTables], AsyncGenerator[T, None]]
WINDOW: Final = 8
"""Steps of a stream that its client has not taken, at most: then the node waits."""
WINDOW_SECONDS: Final = 0.02
CONNECT_NS: Final = 3 * NS
ENDS_SECONDS: Final = 0.5
"""Until a client knows that the process of its node has ended."""


class AskedMachine(Protocol):
    """A machine with a node."""

    @property
    def process(self) -> LoopProcess | None: ...
    @property
    def tables(self) -> ClusterTables | None:
        """What the node does for clients; None before it has opened its listeners."""
        ...

    @property
    def is_ready(self) -> bool: ...


class NoAnswer(Broken):
    """A request may have been carried out, or not."""


class NodeStream(Generic[T]):
    """What a node sends without end, as the client has it."""

    def __init__(self, loop: ClusterLoop, node: int) -> None:
        self.node = node
        self.is_closed = False
        """Whether the client has gone."""
        self.is_broken = False
        """Whether something was lost: what comes later is not delivered."""
        self.error: BasculeError | None = None
        """Why it has ended; what came before may be taken still."""
        self.process: LoopProcess | None = None
        """Of the node."""
        self.sent_ns = 0
        self._loop = loop
        self._steps: deque[T] = deque()
        self._came = Event()

    @property
    def is_full(self) -> bool:
        return len(self._steps) >= WINDOW

    def put(self, step: T) -> None:
        if self.error is None and not self.is_broken:
            self._steps.append(step)
            self._came.set()

    def end(self, error: BasculeError) -> None:
        self.error = self.error or error
        self._came.set()

    def take(self) -> T:
        """The next step. The calling thread waits. Raises: BasculeError."""
        while not self._steps:
            if self.error is not None:
                raise self.error
            self._came.clear()
            if not self._came.wait(ENDS_SECONDS):
                self._look()
        return self._steps.popleft()

    def close(self) -> None:
        """Want no more."""
        self.is_closed = True

    def _look(self) -> None:
        """The kernel of a node whose process has ended closes its connections."""
        if self.process is not None and self.process.is_dead:
            self.end(NoAnswer(f"the process of node {self.node} has ended"))


class NodeRequests:
    """Requests of clients to all nodes."""

    def __init__(
        self, loop: ClusterLoop, network: StreamNetwork, machines: Mapping[int, AskedMachine]
    ) -> None:
        self._loop = loop
        self._network = network
        self._machines = machines

    def ask(self, node: int, call: Call[T], *, seconds: float) -> T:
        """The answer of a node. The calling thread waits.

        Raises: NoAnswer, BasculeError as the node.
        """
        source, done = process_now().machine.node, Event()
        results: list[Any] = []

        def finish(result: Any) -> None:
            if not self._network.is_cut(node, source):
                results.append(result)
                done.set()

        def arrive() -> None:
            machine = self._machines[node]
            if self._network.is_cut(source, node) or not self._network.has_power(node):
                return
            if machine.process is None or machine.tables is None or not machine.is_ready:
                self._send(node, source, finish, NoAnswer(f"node {node} refuses connections"))
                return
            self._run(machine.process, self._serve(call(machine.tables), node, source, finish))

        self._send(source, node, arrive)
        done.wait(seconds)
        result = results[0] if results else NoAnswer(f"node {node} has not answered in time")
        if isinstance(result, BasculeError):
            raise result
        return cast("T", result)

    def stream(self, node: int, steps: Steps[T]) -> NodeStream[T]:
        """Have a node send what the generator yields. It ends with an error, or breaks."""
        source, found = process_now().machine.node, NodeStream[T](self._loop, node)

        def arrive() -> None:
            machine = self._machines[node]
            if self._network.is_cut(source, node) or not self._network.has_power(node):
                return
            if machine.process is None or machine.tables is None or not machine.is_ready:
                self._send(node, source, found.end, NoAnswer(f"node {node} refuses connections"))
                return
            found.process = machine.process
            serve = self._serve_stream(steps(machine.tables), source, found)
            self._run(machine.process, serve)

        def check() -> None:
            if found.process is None:
                found.end(NoAnswer(f"node {node} does not answer"))

        self._send(source, node, arrive)
        self._loop.for_nobody(self._loop.now_ns + CONNECT_NS, check)
        return found

    async def _serve_stream(
        self,
        steps: AsyncGenerator[T, None],
        source: int,
        found: NodeStream[T],
    ) -> None:
        error: BasculeError = NoAnswer("the node ends the stream")
        try:
            async with aclosing(steps):
                async for step in steps:
                    while found.is_full and not found.is_closed:  # noqa: ASYNC110
                        await asyncio.sleep(WINDOW_SECONDS)
                    if found.is_closed or found.error is not None:
                        return
                    self._send_in_order(found, source, found.put, step)
        except BasculeError as failed:
            error = failed
        self._send_in_order(found, source, found.end, error)

    def _send_in_order(
        self, found: NodeStream[T], source: int, function: Callable[[Any], None], value: Any
    ) -> None:
        network, loop = self._network, self._loop
        arrival_ns = network.arrival_ns(found.node, source)
        found.sent_ns = max(found.sent_ns + 1, arrival_ns)

        def arrive() -> None:
            if network.is_cut(found.node, source):
                # The kernels notice it some time later.
                broken = NoAnswer(f"the connection to node {found.node} is broken")
                loop.for_nobody(loop.now_ns + CONNECT_NS, found.end, broken)
                found.is_broken = True
            else:
                function(value)

        loop.for_nobody(found.sent_ns, arrive)

    def _run(self, process: LoopProcess, work: Coroutine[Any, Any, None]) -> None:
        """Have the process of a node work for a client."""

        def check(done: asyncio.Task[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None and process.machine.is_ready:
                self._loop.report_exception(f"{process.name}, a request", error)

        process.context.run(self._loop.create_task, work).add_done_callback(check)

    async def _serve(
        self, work: Awaitable[Any], node: int, source: int, finish: Callable[[Any], None]
    ) -> None:
        try:
            result = await work
        except BasculeError as error:
            result = error
        self._send(node, source, finish, result)

    def _send(self, source: int, target: int, function: Callable[..., object], *args: Any) -> None:
        when_ns = self._network.arrival_ns(source, target)
        self._loop.for_nobody(when_ns, function, *args)
