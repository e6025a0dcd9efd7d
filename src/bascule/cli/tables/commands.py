"""The commands of `bascule table`."""

from __future__ import annotations

import base64
import itertools
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from rich.table import Table as Grid
from rich.text import Text

from bascule.cli.completion import table_names
from bascule.cli.help import CommandGroup
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    YesOption,
    confirm,
    err,
    out,
    print_json,
)
from bascule.cli.streams.settings import with_settings
from bascule.cli.tables.copies import (
    keys_of_copy,
    range_of_copy,
    show_copy,
    values_of_copy,
    watch_of_copy,
    write_copy,
)
from bascule.cli.tables.follow import ReplicaOption, follow
from bascule.cli.units import counted, moment_text, parse_duration
from bascule.errors import NotATable
from bascule.table_results import TableEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bascule.client import SyncClient
    from bascule.client.tables import SyncTableClient
    from bascule.client.tables.table import Consistency
    from bascule.table_results import TableChange

tables = CommandGroup(
    help="Create tables, and read and write their values: the latest one of each key. Also: ls.",
)


STANDARD_INPUT: Final = "-"

TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="Name of the table.", autocompletion=table_names)
]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="1 to 1,024 bytes.")]
IfVersionOption = Annotated[
    int | None,
    typer.Option(
        "--if-version", metavar="V", min=0, help="Only if the key's last record has this version."
    ),
]
LimitOption = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many.")]
ConsistencyOption = Annotated[
    str,
    typer.Option(
        "--consistency",
        metavar="WHICH",
        help="linearizable: with every write that was acknowledged before. eventual: what the "
        "replica has that is asked. session: that too, as each command is a session of its own, "
        "unless --at-least says more.",
    ),
]
AtLeastOption = Annotated[
    int | None,
    typer.Option(
        "--at-least",
        metavar="POSITION",
        min=0,
        help="With everything below this position: the version + 1 of a write, to read it.",
    ),
]


@tables.command("create")
@with_settings(
    alterable_only=False, without=("table",), named={"message_bytes_max": "--value-bytes-max"}
)
def create_table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="Name of the new table.")],
    settings: dict[str, Any],
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Create a table: a stream on $KV.TABLE.> that is compacted by key.

    Messages on $KV.TABLE.KEY set the value of KEY, and each replica keeps the latest values.
    Clients for Kafka read the changes as those of any stream.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        info, created = client.create_table(name, **settings)
    if json:
        print_json({"table": name, "created": created, "subject": info.definition.config.subject})
    else:
        done = "created" if created else "exists already"
        out.print(f"[green]✓[/green] table {name} {done}, on {info.definition.config.subject}")


@tables.command("ls", hidden=True)
@tables.command("list")
def list_tables(server: ServerOption = None, json: JsonOption = False) -> None:
    """List the tables."""
    import bascule

    with bascule.connect_sync(server) as client:
        names = client.tables()
    if json:
        print_json(names)
    elif names:
        out.print("\n".join(names), markup=False, highlight=False)
    else:
        err.print("no tables; `bascule table create NAME` makes one")


@tables.command("info")
def show_table(
    table: TableArgument,
    replica: ReplicaOption = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="With --replica: compare all checksums of the copy.")
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Show how many keys a table has, and how far one of its replicas is.

    Counting reads all keys: about a second for a million of them.
    """
    import bascule

    if replica is not None:
        show_copy(table, replica, verify=verify, json=json)
        return
    with bascule.connect_sync(server) as client:
        found = client.table(table).info()
        partition = client.stream(table).partitions[0]
    out_of_sync = [node for node in partition.replicas if node not in partition.isr]
    if json:
        kept = {"replicated_offset": partition.replicated_offset, "out_of_sync": out_of_sync}
        print_json({**found._asdict(), **kept})
        return
    grid = Grid.grid(padding=(0, 2))
    grid.add_row("table", Text(found.name))
    grid.add_row("keys", f"{found.keys:,}")
    grid.add_row("replica", f"node {found.node}")
    behind = found.high_watermark - found.position
    grid.add_row(
        "position", f"{found.position:,} ({behind:,} behind)" if behind else f"{found.position:,}"
    )
    committed, replicated = partition.high_watermark, partition.replicated_offset
    if committed is None or replicated is None:
        grid.add_row("not on all replicas", Text(f"unknown: {partition.unknown}"))
    elif (waiting := committed - replicated) > 0:
        nodes = f"; not in sync: {', '.join(map(str, out_of_sync))}" if out_of_sync else ""
        grid.add_row(
            "not on all replicas", f"{counted(waiting, 'record')}, their removals stay{nodes}"
        )
    if found.skipped:
        grid.add_row("skipped", f"{counted(found.skipped, 'record')} without a key of the table")
    out.print(grid)


@tables.command("get")
def get_values(
    table: TableArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys to read.")],
    consistency: ConsistencyOption = "session",
    at_least: AtLeastOption = None,
    replica: ReplicaOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Print the value of a key, as it is. Exits with 1 if there is none.

    With --json the version, the time and the content type are printed, too. Several keys need
    --json: they are read at one position, and a line is printed for each that has a value.
    """
    import bascule

    if len(keys) > 1 and not json:
        raise typer.BadParameter("several keys need --json: values may have any bytes")
    if replica is not None:
        _refuse_with_copy(at_least)
        found = values_of_copy(table, replica, keys)
    else:
        with bascule.connect_sync(server) as client:
            opened = _opened(client, table, consistency, at_least)
            if len(keys) == 1:
                one = opened.get(keys[0])
                found = {} if one is None else {one.key: one}
            else:
                found = opened.get_many(keys).entries
    missing = [key for key in dict.fromkeys(keys) if key.encode() not in found]
    for key in keys if len(keys) > 1 else []:
        if key not in missing:
            print_json(_entry_as_json(found[key.encode()]), indent=False)
    for key in missing:
        err.print(Text(f"table {table} has no key {key!r}"))
    if missing:
        raise typer.Exit(1)
    if len(keys) == 1:
        _print_value(found[keys[0].encode()], json=json)


def _opened(
    client: SyncClient, table: str, consistency: str, at_least: int | None
) -> SyncTableClient:
    return client.table(table, consistency=cast("Consistency", consistency), at_least=at_least or 0)


def _refuse_with_copy(at_least: int | None) -> None:
    if at_least is not None:
        raise typer.BadParameter(
            "a copy has what has come to it: `bascule table info --replica` shows its position",
            param_hint="--at-least",
        )


def _print_value(entry: TableEntry, *, json: bool) -> None:
    if json:
        print_json(_entry_as_json(entry))
        return
    sys.stdout.buffer.write(entry.value)
    if sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


@tables.command("watch")
def watch(
    table: TableArgument,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Which keys, such as user.* or user.>")
    ] = ">",
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Only this key, which may be as a pattern is, such as *."
        ),
    ] = None,
    state: Annotated[bool, typer.Option("--state", help="Show the present values first.")] = False,
    position: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Begin behind the change with this position, which --json prints, or at an "
            "offset.",
        ),
    ] = None,
    replica: ReplicaOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Show the changes of keys as they come, until Ctrl-C.

    With --replica those that come to the copy, as another process follows the table. What is
    written to the copy is shown once the table has taken it.
    """
    import bascule

    if state and position is not None:
        raise typer.BadParameter("give one of --state and --from")

    def on_restart() -> None:
        err.print("the present values follow again")

    if replica is not None:
        if position is not None:
            raise typer.BadParameter(
                "a copy knows no position of a change: take --state", param_hint="--from"
            )
        _show_changes(
            watch_of_copy(table, replica, pattern, key=key, state=state, on_restart=on_restart),
            json=json,
        )
        return
    start: str | int = "state" if state else "now"
    if position is not None:
        start = int(position) if position.isascii() and position.isdecimal() else position
    with bascule.connect_sync(server) as client:
        opened = client.table(table)
        changes = opened.watch(pattern, key=key, start=start, on_restart=on_restart)
        _show_changes(changes, json=json)


def _show_changes(changes: Iterator[TableChange], *, json: bool) -> None:
    for change in changes:
        if json:
            print_json(_change_as_json(change), indent=False)
        else:
            out.print(_change_as_text(change), soft_wrap=True)
        sys.stdout.flush()


@tables.command("set")
def set_value(
    table: TableArgument,
    key: KeyArgument,
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="The value; - takes all of standard input."),
    ],
    if_version: IfVersionOption = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only if the key has no value.")
    ] = False,
    content_type: Annotated[
        str | None,
        typer.Option("--content-type", metavar="TYPE", help="Kept with it, such as text/plain."),
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option(
            "--ttl",
            parser=parse_duration,
            metavar="TIME",
            help="Remove the key after this time, such as 30s or 12h; 0: never, whatever the table "
            "says.",
        ),
    ] = None,
    replica: ReplicaOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Set the value of a key; print its version once it is stored."""
    import bascule

    data = sys.stdin.buffer.read() if value == STANDARD_INPUT else value.encode()
    if replica is not None:
        if ttl is not None:
            raise typer.BadParameter(
                "a copy keeps no time to live with what it queues", param_hint="--ttl"
            )
        conditional = if_version is not None or if_absent
        write_copy(
            table, replica, key, data,
            conditional=conditional, content_type=content_type, json=json,
        )  # fmt: skip
        return
    with bascule.connect_sync(server) as client:
        version = client.table(table).set(
            key,
            data,
            if_version=if_version,
            if_absent=if_absent,
            content_type=content_type,
            ttl=None if ttl is None else ttl / 1000 or math.inf,
        )
    _print_version(version, json=json)


@tables.command("rm")
def remove_key(
    table: TableArgument,
    key: KeyArgument,
    if_version: IfVersionOption = None,
    replica: ReplicaOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a key, whether it has a value or not. `bascule table delete` deletes a table."""
    import bascule

    if replica is not None:
        write_copy(table, replica, key, None, conditional=if_version is not None, json=json)
        return
    with bascule.connect_sync(server) as client:
        version = client.table(table).remove(key, if_version=if_version)
    _print_version(version, json=json)


@tables.command("delete")
def delete_table(
    table: TableArgument,
    yes: YesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a table with all its values, and the stream that has its changes, permanently."""
    import bascule
    from bascule.wire.tables.keys import why_not_opened

    with bascule.connect_sync(server) as client:
        config = client.stream(table).definition.config
        if not config.table:
            raise NotATable(table, why_not_opened(config))
        confirm(f"delete table {table} and all its values?", yes=yes)
        client.delete_stream(table)
    if json:
        print_json({"table": table})
    else:
        out.print(f"[green]✓[/green] table {table} deleted")


@tables.command("incr")
def increment_value(
    table: TableArgument,
    key: KeyArgument,
    by: Annotated[int, typer.Option("--by", metavar="N", help="What to add.")] = 1,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Add to a value of decimal digits, and print it. No value is 0."""
    import bascule

    with bascule.connect_sync(server) as client:
        version, number = client.table(table).increment(key, by)
    if json:
        print_json({"version": version, "value": str(number)})
    else:
        out.print(str(number), highlight=False)


@tables.command("keys")
def list_keys(
    table: TableArgument,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="[PATTERN]",
            help="Only keys that match: * is one token, and > at the end all that follow, as in "
            "'user.*.name'. Without them it is what keys begin with.",
        ),
    ] = "",
    limit: LimitOption = None,
    consistency: ConsistencyOption = "session",
    at_least: AtLeastOption = None,
    replica: ReplicaOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """List the keys that have a value, in the order of their bytes, one on a line.

    Bytes that are no text are shown as \\xNN. With --json each line is an object with the version.
    """
    import bascule

    def show(found: Iterator[tuple[bytes, int]]) -> None:
        for key, version in itertools.islice(found, limit):
            if json:
                print_json({**_key_as_json(key), "version": version}, indent=False)
            else:
                out.print(Text(key.decode("utf-8", "backslashreplace")), soft_wrap=True)

    if replica is not None:
        _refuse_with_copy(at_least)
        show(keys_of_copy(table, replica, pattern))
        return
    with bascule.connect_sync(server) as client:
        opened = _opened(client, table, consistency, at_least)
        show(opened.keys(pattern))


@tables.command("range")
def list_range(
    table: TableArgument,
    first: Annotated[str, typer.Argument(metavar="[FIRST]", help="The first key.")] = "",
    end: Annotated[
        str | None, typer.Argument(metavar="[END]", help="The key behind the last one.")
    ] = None,
    limit: LimitOption = None,
    consistency: ConsistencyOption = "session",
    at_least: AtLeastOption = None,
    replica: ReplicaOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Print the keys from FIRST on and below END with their values.

    Each line is a JSON object, with --json and without.
    """
    import bascule

    if replica is not None:
        _refuse_with_copy(at_least)
        for entry in range_of_copy(table, replica, first, end, limit):
            print_json(_entry_as_json(entry), indent=False)
        return
    with bascule.connect_sync(server) as client:
        opened = _opened(client, table, consistency, at_least)
        for entry in opened.range(first, end, limit):
            print_json(_entry_as_json(entry), indent=False)


def _print_version(version: int, *, json: bool) -> None:
    if json:
        print_json({"version": version})
    else:
        out.print(f"version {version}", highlight=False)


def _key_as_json(key: bytes) -> dict[str, str]:
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": base64.b64encode(key).decode()}


def _entry_as_json(entry: TableEntry) -> dict[str, Any]:
    try:
        value = {"value": entry.value.decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(entry.value).decode()}
    return {
        **_key_as_json(entry.key),
        "version": entry.version,
        "timestamp": moment_text(entry.timestamp),
        "timestamp_ms": entry.timestamp,
        **({} if entry.content_type is None else {"content_type": entry.content_type}),
        **value,
    }


def _change_as_json(change: TableChange) -> dict[str, Any]:
    position = {"position": change.position} if change.position else {}
    if change.value is not None:
        entry = TableEntry(*change[:3], change.value, change.content_type)
        return {**_entry_as_json(entry), **position}
    return {
        **_key_as_json(change.key),
        "version": change.version,
        "timestamp": moment_text(change.timestamp),
        "timestamp_ms": change.timestamp,
        "removed": True,
        **position,
    }


def _change_as_text(change: TableChange) -> Text:
    key = change.key.decode("utf-8", "backslashreplace")
    line = Text(f"{moment_text(change.timestamp)}  {change.version:>8}  ", style="dim")
    if change.value is None:
        return line.append(f"{key} removed", style="red")
    return line.append(key, style="bold").append(
        f" = {change.value.decode('utf-8', 'backslashreplace')}", style="not dim"
    )


# Behind those of this module: the help shows commands in the order of these calls.
tables.command("follow")(follow)
