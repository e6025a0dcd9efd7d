"""`bascule table follow`: a copy of a table on this machine."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from bascule.cli.completion import table_names
from bascule.cli.output import JsonOption, ServerOption, err, print_json
from bascule.cli.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bascule.client.tables import SyncLocalReplica
    from bascule.client.tables.replica import Conflicts, RefusedWrite, ReplicaStatus

SHOWN_SECONDS: Final = 0.5
ONCE_SECONDS: Final = 60.0
"""Without any progress for so long, --once gives up."""

ReplicaOption = Annotated[
    Path | None,
    typer.Option(
        "--replica",
        metavar="DIR",
        help="Use the copy in DIR, which `bascule table follow` keeps, instead of the cluster.",
    ),
]


def follow(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Name of the table.", autocompletion=table_names)
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The directory of the copy; made if needed.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="End once it has everything, and its writes are offered.")
    ] = False,
    conflicts: Annotated[
        str,
        typer.Option(
            "--conflicts",
            metavar="WHICH",
            help="Of writes made in DIR to keys that others have changed: reject them, or let the "
            "newer one win.",
        ),
    ] = "reject",
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="Drop what the copy has of the table, and get all keys again, as a damaged copy "
            "needs. Writes that were made in DIR are kept.",
        ),
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Keep a copy of a table in DIR, until Ctrl-C. It may be read and written offline.

    A copy that was away gets the keys that have changed, and not each change. With
    `bascule table get TABLE KEY --replica DIR` it is read, and with `set` and `rm` it is written,
    while this command runs or not. What was written is offered when it runs: each write is taken if
    the key is as it was in the copy.
    """
    import bascule

    # What it says is shown here.
    logging.getLogger("bascule.client.tables.replica").setLevel(logging.ERROR)

    def on_refused(refused: RefusedWrite) -> None:
        key = refused.write.key.decode("utf-8", "backslashreplace")
        err.print(Text(f"the write of {key!r} was refused: {refused.reason}", style="red"))

    chosen = cast("Conflicts", conflicts)
    with (
        bascule.open_replica_sync(
            table, to, server, conflicts=chosen, on_refused=on_refused, anew=anew
        ) as replica,
        _shown(replica, json=json) as show,
    ):
        if once:
            _until_current(replica, show)
        else:
            while True:
                show(replica.status())
                replica.wait_changed(SHOWN_SECONDS)


def _until_current(replica: SyncLocalReplica, show: _Show) -> None:
    """Raises: Indeterminate if it does not get on."""
    while not (status := replica.status()).is_current:
        show(status)
        before = status.received
        replica.wait_changed(SHOWN_SECONDS)
        if replica.status().received == before:
            replica.wait_current(ONCE_SECONDS)
    replica.flush(ONCE_SECONDS)
    show(replica.status())


class _Show:
    """Shows how far the copy is: a bar, lines, or JSON lines."""

    def __init__(self, table: str, bar: Progress | None, *, json: bool) -> None:
        self._table = table
        self._bar = bar
        self._task = None if bar is None else bar.add_task(table, total=None)
        self._json = json
        self._before: object = None

    def __call__(self, status: ReplicaStatus) -> None:
        if self._json:
            if status != self._before:
                print_json(status._asdict(), indent=False)
                sys.stdout.flush()
            self._before = status
        elif self._bar is None or self._task is None:
            said = (status.is_connected, status.is_current, status.trouble, status.refused)
            if said != self._before:
                err.print(_line(status))
            self._before = said
        else:
            total = None if status.is_whole else max(status.keys_expected, status.received) or None
            done = status.received if total else 0
            text = _line(status).plain
            self._bar.update(self._task, description=text, total=total, completed=done)


def _line(status: ReplicaStatus) -> Text:
    line = Text(f"{status.table}: ")
    if status.trouble is not None:
        line.append(status.trouble, style="red")
    elif not status.is_connected:
        line.append("connecting")
    elif not status.is_current:
        behind = max(status.high_watermark - status.position, 0)
        line.append(f"catching up, {counted(behind, 'record')} behind", style="yellow")
    else:
        line.append(f"has everything up to offset {status.position:,}", style="green")
    if status.pending:
        line.append(f", {counted(status.pending, 'write')} to offer")
    if status.refused:
        line.append(f", {counted(status.refused, 'write')} refused")
    return line


@contextmanager
def _shown(replica: SyncLocalReplica, *, json: bool) -> Iterator[_Show]:
    if json or not err.is_terminal:
        yield _Show(replica.table, None, json=json)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err) as bar:
        yield _Show(replica.table, bar, json=False)
