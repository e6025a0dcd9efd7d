"""The command `scrub`: read all replicas of a stream, check every CRC and compare them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from bascule.cli.cluster.waiting import ProgressLines, wait_while
from bascule.cli.exit_codes import CORRUPT, FAILED
from bascule.cli.output import JsonOption, ServerOption, StreamArgument, err, out, print_json
from bascule.cli.units import bytes_text
from bascule.operation_results import ScrubbedReplica

WRONG: Final = ("corrupt", "differs")
_COLOURS: Final = {"ok": "green", "corrupt": "red", "differs": "red"}


def scrub(
    name: StreamArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Read all replicas of a stream now: check every CRC, and compare the replicas.

    A damaged replica heals by itself where another one has all records. Replicas that differ
    although all CRCs are good are shown, and nothing is done about them.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.scrub_stream(name, partition=partition)
        with _shown(json=json) as show:

            def look() -> bool:
                nonlocal found
                found = client.scrub_results(name, partition=partition)
                show(found)
                return not all(each.is_done for each in found)

            wait_while(look)
    wrong = any(each.result in WRONG for each in found)
    if json:
        print_json({"name": name, "replicas": [asdict(each) for each in found]})
    else:
        out.print(_table(found))
        for each in found:
            if each.found:
                where = f"partition {each.partition} on node {each.node}"
                out.print(f"{where}: {each.found}", markup=False)
    if wrong:
        raise typer.Exit(CORRUPT)
    if any(each.result != "ok" for each in found):
        raise typer.Exit(FAILED)


@contextlib.contextmanager
def _shown(*, json: bool) -> Iterator[Callable[[Sequence[ScrubbedReplica]], None]]:
    """The progress on standard error while the context is open: a bar on a terminal, else a line
    now and then."""
    if json:
        yield lambda _: None
        return
    if not err.is_terminal:
        lines = ProgressLines()

        def say(found: Sequence[ScrubbedReplica]) -> None:
            done, total = _read(found)
            lines.say(f"read: {bytes_text(done)} of {bytes_text(total)}")

        yield say
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(found: Sequence[ScrubbedReplica]) -> None:
            done, total = _read(found)
            bar.update(task, completed=done, total=total or None)

        yield show


def _read(found: Sequence[ScrubbedReplica]) -> tuple[int, int]:
    """The bytes that have been read, and those of all replicas."""
    total = sum(max(each.bytes_total, each.bytes) for each in found)
    return sum(each.bytes for each in found), total


def _table(found: Sequence[ScrubbedReplica]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("partition", "node"):
        table.add_column(title)
    for title in ("records", "bytes", "MB/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("result")
    for each in found:
        rate = each.bytes / each.seconds / 1e6 if each.seconds else 0
        colour = _COLOURS.get(each.result, "yellow")
        table.add_row(
            str(each.partition),
            str(each.node),
            f"{each.records:,}",
            bytes_text(each.bytes),
            f"{rate:,.0f}" if rate else "",
            f"[{colour}]{escape(each.result)}",
        )
    return table
