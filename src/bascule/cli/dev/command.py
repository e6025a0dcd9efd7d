"""`bascule dev`: the options, the signals, and the order of start and end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli import exit_codes
from bascule.cli.demo.command import command_line
from bascule.cli.output import JsonOption, err, print_json

if TYPE_CHECKING:
    from bascule.cli.dev.layout import Layout
    from bascule.cli.dev.processes import DevCluster

NODES_MAX: Final = 9
"""The default ports of more nodes would overlap."""
PORT_BASE_MAX: Final = 65_535 - 3 * NODES_MAX


def dev(
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=NODES_MAX, help="Number of nodes. Default: 3, or as many as --data has."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory that keeps the data, logs and ports. Default: a temporary one.",
        ),
    ] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            "--port-base",
            min=0,
            max=PORT_BASE_MAX,
            metavar="N",
            help="First of consecutive ports; 0: any free ones. Default: the ports of "
            "`bascule serve` for node 1, and free ones after them for the others.",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a node again when it has ended.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run a whole cluster on this machine, for development, until Ctrl-C.

    The nodes share one NATS server. A node that ends is reported: kill -9 one, and watch the others
    take over. The configuration variables of `bascule serve` apply to all nodes, but those of
    listeners, NATS, data and cluster.
    """
    from bascule.cli.dev.layout import open_layout
    from bascule.host.real import DirectoryLock

    with _directory(data) as directory, DirectoryLock(str(directory)):
        layout = open_layout(directory, nodes=nodes, port_base=port_base)
        layout.write_configs()
        code = asyncio.run(_run(layout, restart=restart, json=json, is_temporary=data is None))
    raise typer.Exit(code)


@contextlib.contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    """The directory of the cluster; a temporary one is removed at the end.

    Raises: ConfigError, OSError.
    """
    from bascule.cli.dev.layout import check_directory

    if data is not None:
        directory = data.absolute()
        directory.mkdir(parents=True, exist_ok=True)
        check_directory(directory)
        yield directory
        return
    directory = Path(tempfile.mkdtemp(prefix="bascule-dev-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _run(layout: Layout, *, restart: bool, json: bool, is_temporary: bool) -> int:
    """Run the cluster until a signal; return the exit code. Raises: BasculeError, OSError."""
    from bascule.cli.dev.display import Reporter, listeners, show_cluster
    from bascule.cli.dev.processes import DevCluster

    reporter = Reporter()
    command, _ = command_line()
    cluster = DevCluster(layout, reporter, restart=restart, command=command)
    signals = _Signals(cluster)
    try:
        with _starting(layout):
            is_started = await signals.unless_stopped(cluster.start())
        if is_started:
            if json:
                print_json(listeners(layout, cluster.pids))
                sys.stdout.flush()
            else:
                show_cluster(layout, cluster.pids, command=command, is_temporary=is_temporary)
            await signals.unless_stopped(cluster.watch())
        reporter.on_stopping()
    finally:
        await cluster.stop()
    return exit_codes.INTERRUPTED if signals.has_killed else exit_codes.OK


@contextlib.contextmanager
def _starting(layout: Layout) -> Iterator[None]:
    """Show that the nodes start, on a terminal."""
    if not err.is_terminal:
        yield
        return
    with err.status(f"starting {len(layout.nodes)} nodes and a NATS server"):
        yield


class _Signals:
    """The first signal ends what runs; a second one kills the nodes."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self._stop = asyncio.Event()
        self.has_killed = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self.has_killed = True
            self._cluster.kill()
        self._stop.set()

    async def unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`; False if a signal came before it was done. Raises: what `work` raises."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
            if working.cancelled():
                return False
        working.result()
        return True
