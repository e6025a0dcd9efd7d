"""Starts and stops the NATS server and the nodes, and reports those that end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from bascule.cli.dev.layout import HOST, Layout, NodePlace, own_variables
from bascule.errors import Broken, ConfigError
from bascule.host.parent_death import end_with_parent
from bascule.host.real import RealRandom
from bascule.ingest.embedded_nats import EmbeddedNats

PAYLOAD_BYTES_MAX: Final = 64 << 20
"""The largest `message_bytes_max` of a stream: no stream needs more of the shared server."""
LOG_LINES_SHOWN: Final = 12
LOG_LINES_OF_KILLED: Final = 4
"""Of a node that a signal ended: its log seldom says why."""
LOG_BYTES_READ: Final = 16 << 10
STOP_SECONDS_MAX: Final = 30.0
"""For a node to drain; `limits.drain_ms_max` is 10 s."""
READY_POLL_SECONDS: Final = 0.05
RESTART_SECONDS: Final = 2.0
"""Between the end of a process and its restart: long enough to see another node take over."""
RESTART_SECONDS_MAX: Final = 30.0
WAITING_SECONDS: Final = 30.0
"""After so long the nodes that are not ready are reported."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended that was not stopped."""

    name: str
    pid: int
    how: str
    log: str
    last_lines: tuple[str, ...]
    restart_command: str
    """What starts it again by hand; empty where that is not needed or not possible."""
    restart_seconds: float = 0.0
    """Until it is started again; 0: it is not."""

    def failure(self) -> Broken:
        """The same as an error."""
        text = f"{self.name} {self.how}; the end of {self.log}:"
        return Broken("\n  ".join([text, *self.last_lines]))


class Reports(Protocol):
    """Where events go."""

    def on_waiting(self, nodes: list[str]) -> None: ...
    def on_ended(self, ending: Ending) -> None: ...
    def on_restarted(self, name: str, pid: int) -> None: ...


class DevCluster:
    """The processes of one cluster. Belongs to the event loop, on the main thread."""

    def __init__(self, layout: Layout, reports: Reports, *, restart: bool, command: str) -> None:
        """`command` runs `bascule`, as it is shown to people."""
        self._layout = layout
        self._reports = reports
        self._restart = restart
        self._command = command
        self._nats = EmbeddedNats(
            layout.nats_directory,
            host=HOST,
            port=layout.ports.nats,
            message_bytes_max=PAYLOAD_BYTES_MAX,
            token=RealRandom().bytes(16).hex(),
            name="bascule-dev",
        )
        own = own_variables()
        self._environment = {k: v for k, v in os.environ.items() if k not in own}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        """Node number -> its last process."""

    @property
    def pids(self) -> Mapping[int, int]:
        """Node number -> the pid of its last process."""
        return {number: process.pid for number, process in self._processes.items()}

    async def start(self) -> None:
        """Return once all nodes serve.

        Raises: Broken with the end of the log of a process that ends; ConfigError, OSError.
        """
        await self._start_nats()
        for node in self._layout.nodes:
            await self._spawn(node)
        waiting = [asyncio.create_task(self._wait_ready(node)) for node in self._layout.nodes]
        reporting = asyncio.create_task(self._report_waiting())
        try:
            await asyncio.gather(*waiting)
        finally:
            for task in (*waiting, reporting):
                task.cancel()
            await asyncio.gather(*waiting, reporting, return_exceptions=True)

    async def watch(self) -> None:
        """Report processes that end, and start them again if so asked. Raises: Broken once no node
        is left."""
        nats = asyncio.create_task(self._watch_nats())
        nodes = [asyncio.create_task(self._watch_node(node)) for node in self._layout.nodes]
        try:
            await asyncio.gather(*nodes)
        finally:
            for task in (nats, *nodes):
                task.cancel()
            await asyncio.gather(nats, *nodes, return_exceptions=True)
        raise Broken("all nodes have ended")

    async def stop(self) -> None:
        """Stop the nodes, then the NATS server. A node that does not stop is killed."""
        running = [each for each in self._processes.values() if each.returncode is None]
        for process in running:
            _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await asyncio.gather(*(process.wait() for process in running))
        except TimeoutError:
            self.kill()
            await asyncio.gather(*(process.wait() for process in running))
        await self._nats.stop()

    def kill(self) -> None:
        """Kill the nodes; `stop`, if it runs, ends at once."""
        for process in self._processes.values():
            if process.returncode is None:
                _signal(process, signal.SIGKILL)

    async def _start_nats(self) -> None:
        await self._nats.start()
        await self._nats.open()

    async def _spawn(self, node: NodePlace) -> None:
        node.ready_file.unlink(missing_ok=True)
        with node.log.open("ab") as output:
            self._processes[node.number] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bascule.cli.main", "serve", "--config", str(node.config),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                # Ctrl-C in a terminal signals the process group; the nodes are stopped in order.
                process_group=0,
                preexec_fn=end_with_parent(os.getpid()),
            )  # fmt: skip

    async def _wait_ready(self, node: NodePlace) -> None:
        """Raises: Broken if the node ends before."""
        process = self._processes[node.number]
        while not node.ready_file.exists():
            try:
                async with asyncio.timeout(READY_POLL_SECONDS):
                    await process.wait()
            except TimeoutError:
                continue
            raise self._ending(node).failure()

    async def _report_waiting(self) -> None:
        while True:
            await asyncio.sleep(WAITING_SECONDS)
            nodes = [node for node in self._layout.nodes if not node.ready_file.exists()]
            self._reports.on_waiting([f"node {node.number}: {node.log}" for node in nodes])

    async def _watch_node(self, node: NodePlace) -> None:
        pause = RESTART_SECONDS
        while True:
            await self._processes[node.number].wait()
            self._reports.on_ended(self._ending(node, restart_seconds=pause))
            if not self._restart:
                return
            await asyncio.sleep(pause)
            await self._spawn(node)
            try:
                await self._wait_ready(node)
            except Broken:
                pause = min(2 * pause, RESTART_SECONDS_MAX)
                continue
            pause = RESTART_SECONDS
            self._reports.on_restarted(f"node {node.number}", self._processes[node.number].pid)

    async def _watch_nats(self) -> None:
        pause = RESTART_SECONDS
        while True:
            how = await self._nats.wait_ended()
            self._reports.on_ended(
                Ending(
                    name="the NATS server",
                    pid=0,
                    how=f"ended: {how}",
                    log=str(self._nats.log_file),
                    last_lines=(),
                    restart_command="",
                    restart_seconds=pause if self._restart else 0.0,
                )
            )
            started = False
            while self._restart and not started:
                await asyncio.sleep(pause)
                with contextlib.suppress(Broken, ConfigError, OSError):
                    await self._start_nats()
                    started = True
                pause = RESTART_SECONDS if started else min(2 * pause, RESTART_SECONDS_MAX)
            if not started:
                return
            self._reports.on_restarted("the NATS server", 0)

    def _ending(self, node: NodePlace, *, restart_seconds: float = 0.0) -> Ending:
        process = self._processes[node.number]
        assert process.returncode is not None
        by_hand = f"{self._command} serve --config {shlex.quote(str(node.config))}"
        return Ending(
            name=f"node {node.number}",
            pid=process.pid,
            how=_how(process.returncode),
            log=str(node.log),
            last_lines=_last_lines(
                node, LOG_LINES_SHOWN if process.returncode >= 0 else LOG_LINES_OF_KILLED
            ),
            restart_command="" if self._restart else by_hand,
            restart_seconds=restart_seconds if self._restart else 0.0,
        )


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _last_lines(node: NodePlace, count: int) -> tuple[str, ...]:
    try:
        data = node.log.read_bytes()[-LOG_BYTES_READ:]
    except OSError as error:
        return (f"the log cannot be read: {error.strerror}",)
    lines = data.decode(errors="replace").splitlines()
    return tuple(lines[-count:])
