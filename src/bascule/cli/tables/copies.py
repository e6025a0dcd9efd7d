"""Reading and writing a copy of a table that `bascule table follow` keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import typer
from rich.table import Table as Grid
from rich.text import Text

from bascule.cli.output import err, out, print_json
from bascule.cli.units import counted, moment_text
from bascule.errors import ConfigError
from bascule.table_results import TableChange, TableEntry

if TYPE_CHECKING:
    from bascule.client.tables import SyncLocalReplica
    from bascule.client.tables.replica import ReplicaEntry

REFUSED_SHOWN: Final = 10
NO_VERSION: Final = -1


@contextmanager
def opened_copy(table: str, directory: Path) -> Iterator[SyncLocalReplica]:
    """Raises: ConfigError if there is none."""
    import bascule

    if not directory.is_dir():
        raise ConfigError(
            f"there is no copy of a table in {directory}: make one with `bascule table follow "
            f"{table} --to {directory}`"
        )
    with bascule.open_replica_sync(table, directory, follow=False) as copy:
        yield copy


def values_of_copy(table: str, directory: Path, keys: list[str]) -> dict[bytes, TableEntry]:
    """Those that have a value, at one position. See `_entry` for the versions."""
    with opened_copy(table, directory) as copy:
        found = copy.get_many(dict.fromkeys(keys)).entries
    return {key: _entry(each) for key, each in found.items()}


def range_of_copy(
    table: str, directory: Path, first: str, end: str | None, limit: int | None
) -> Iterator[TableEntry]:
    """As `TableClient.range`. See `_entry` for the versions."""
    with opened_copy(table, directory) as copy:
        yield from map(_entry, copy.range(first, end, limit))


def watch_of_copy(
    table: str,
    directory: Path,
    pattern: str,
    *,
    key: str | None,
    state: bool,
    on_restart: Callable[[], None],
) -> Iterator[TableChange]:
    """As `TableClient.watch`."""
    with opened_copy(table, directory) as copy:
        start: Literal["now", "state"] = "state" if state else "now"
        yield from copy.watch(pattern, key=key, start=start, on_restart=on_restart)


def _entry(found: ReplicaEntry) -> TableEntry:
    """One that was written there and not taken yet has the version of the record that it replaces,
    or -1."""
    version = NO_VERSION if found.version is None else found.version
    return TableEntry(found.key, version, found.timestamp, found.value, found.content_type)


def keys_of_copy(table: str, directory: Path, pattern: str) -> Iterator[tuple[bytes, int]]:
    """As `TableClient.keys`."""
    with opened_copy(table, directory) as copy:
        for entry in copy.entries(pattern):
            yield entry.key, NO_VERSION if entry.version is None else entry.version


def write_copy(
    table: str,
    directory: Path,
    key: str,
    value: bytes | None,
    *,
    conditional: bool,
    content_type: str | None = None,
    json: bool,
) -> None:
    """Set a key there, or remove it."""
    if conditional:
        raise typer.BadParameter(
            "a write to a copy is always under the condition that the key is as it is there"
        )
    with opened_copy(table, directory) as copy:
        if value is None:
            copy.remove(key)
        else:
            copy.set(key, value, content_type=content_type)
        pending = copy.status().pending
    if json:
        print_json({"pending": pending})
    else:
        err.print(f"kept in {directory}; `bascule table follow` offers it to the cluster")


def show_copy(table: str, directory: Path, *, verify: bool, json: bool) -> None:
    """How far it is, and the writes that were refused; `verify` compares all checksums first."""
    with opened_copy(table, directory) as copy:
        rows = copy.verify() if verify else None
        status, keys, refused = copy.status(), copy.count(), copy.refused(REFUSED_SHOWN)
    if json:
        print_json(
            {
                "table": status.table,
                "keys": keys,
                "position": status.position,
                "high_watermark": status.high_watermark,
                "is_whole": status.is_whole,
                "pending": status.pending,
                "refused": status.refused,
                "verified_rows": rows,
                "latest_refused": [
                    {
                        "key": each.write.key.decode("utf-8", "backslashreplace"),
                        "timestamp": moment_text(each.write.timestamp),
                        "timestamp_ms": each.write.timestamp,
                        "removes": each.write.value is None,
                        "reason": each.reason,
                    }
                    for each in refused
                ],
            }
        )
        return
    grid = Grid.grid(padding=(0, 2))
    grid.add_row("table", Text(status.table))
    grid.add_row("copy in", Text(str(directory)))
    grid.add_row("keys", f"{keys:,}" if status.is_whole else f"{keys:,}, not all yet")
    behind = max(status.high_watermark - status.position, 0)
    grid.add_row("position", f"{status.position:,}" + (f" ({behind:,} behind)" if behind else ""))
    if rows is not None:
        grid.add_row("verified", f"{counted(rows, 'row')}: every checksum is right")
    grid.add_row("to offer", counted(status.pending, "write"))
    grid.add_row("refused", counted(status.refused, "write"))
    for each in refused:
        key = each.write.key.decode("utf-8", "backslashreplace")
        what = "removal" if each.write.value is None else "value"
        when = moment_text(each.write.timestamp)
        grid.add_row("", Text(f"{key}: {what} of {when}: {each.reason}"))
    out.print(grid)
