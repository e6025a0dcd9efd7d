"""What `bascule backup` and `bascule restore` print."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.table import Table

from bascule.cli import exit_codes
from bascule.cli.output import err, out, print_error, print_json, print_warning
from bascule.cli.units import bytes_text, counted
from bascule.errors import BasculeError, CorruptData

if TYPE_CHECKING:
    # Imported where it is used, so that a node loads none of it.
    from bascule.backup.manifest import Manifest
    from bascule.backup.repository import Repository, UnreadableBackup
    from bascule.backup.restoring import Restored
    from bascule.backup.taking import Taken
    from bascule.backup.verifying import Damage

SHOWN_MAX: Final = 20
REMOVE_MANIFEST: Final = (
    "the manifest of that backup is damaged: remove the file, which gives that backup up, or copy "
    "it back from elsewhere"
)


def report(
    taken: Taken,
    removed: tuple[int, int],
    not_pruned: BasculeError | OSError | None,
    *,
    json: bool,
) -> None:
    """A backup that was taken, and the numbers of backups and files that were removed. Raises:
    typer.Exit where something of it is missing, or nothing was removed."""
    manifest = taken.manifest
    failures = manifest.failures()
    partitions = sum(len(each.partitions) for each in manifest.streams)
    if json:
        print_json(
            {
                "id": manifest.id,
                "cluster_id": manifest.cluster_id,
                "streams": len(manifest.streams),
                "partitions": partitions,
                "bytes": manifest.bytes,
                "payloads": len(manifest.payloads()),
                "bytes_written": taken.bytes_written,
                "files_written": taken.files_written,
                "read_anew": incomplete_json(taken.read_anew),
                "incomplete": incomplete_json(failures),
                "failure": manifest.failure,
                "backups_removed": removed[0],
                "files_removed": removed[1],
                "not_pruned": None if not_pruned is None else str(not_pruned),
            }
        )
    else:
        out.print(
            f"[green]✓[/green] backup {manifest.id}: {counted(len(manifest.streams), 'stream')}, "
            f"{counted(partitions, 'partition')}{_payloads_text(len(manifest.payloads()))}, "
            f"{bytes_text(manifest.bytes)}; "
            f"{bytes_text(taken.bytes_written)} of it new"
        )
        for name, index, why in taken.read_anew[:SHOWN_MAX]:
            out.print(f"  {name} {index} was read from its start: {why}", markup=False)
        if removed[0]:
            out.print(f"  {_removed_text(removed)} removed")
        show_incomplete(failures)
        if manifest.failure:
            print_warning(manifest.failure)
    if not_pruned is not None:
        print_error(f"the backup is good, and no older one was removed: {not_pruned}")
        if isinstance(not_pruned, BasculeError):
            raise unread(not_pruned)
    if not manifest.is_complete or not_pruned is not None:
        raise typer.Exit(exit_codes.FAILED)


def _removed_text(removed: tuple[int, int]) -> str:
    return f"{counted(removed[0], 'older backup')} and {counted(removed[1], 'file')}"


def report_pruned(removed: tuple[int, int], *, json: bool) -> None:
    """The numbers of backups and files that were removed."""
    if json:
        print_json({"backups_removed": removed[0], "files_removed": removed[1]})
    else:
        out.print(f"[green]✓[/green] {_removed_text(removed)} removed")


def hint_at_older(repository: Repository, error: BasculeError) -> None:
    """Say which backups can be restored where the manifest of the newest one cannot be read."""
    readable = [each.id for each in repository.load_all()[0]]
    hint = f"--at {readable[-1]} takes an older backup" if readable else "no other backup is there"
    if isinstance(error, CorruptData):
        hint += f"; to give the damaged one up, remove its manifest {error.file}"
    err.print(hint, style="dim")


def report_restored(restored: Restored, data: Path, backups: list[str], *, json: bool) -> None:
    """A new data directory made of these backups."""
    if json:
        print_json(
            {
                "cluster_id": restored.cluster_id,
                "data": str(data),
                "backups": backups,
                "streams": restored.streams,
                "partitions": restored.partitions,
                "bytes": restored.bytes,
                "payloads": restored.payloads,
                "incomplete": incomplete_json(restored.incomplete),
            }
        )
        return
    show_incomplete(restored.incomplete)
    out.print(
        f"[green]✓[/green] {counted(restored.streams, 'stream')}, "
        f"{counted(restored.partitions, 'partition')}{_payloads_text(restored.payloads)}, "
        f"{bytes_text(restored.bytes)}; the new cluster has the id {restored.cluster_id}"
    )
    out.print(f"  bascule serve --data {data}", style="dim", markup=False)
    out.print("  bascule node join        says how other nodes join it", style="dim")


def print_list(repository: Repository, *, json: bool) -> None:
    """The backups at a place. Raises: typer.Exit where one cannot be read; OSError."""
    manifests, unreadable = repository.load_all()
    unnamed = [] if unreadable else repository.unnamed(manifests)
    if json:
        print_json(
            {
                "backups": [summary(each) for each in manifests],
                "unreadable": [{"id": each.id, "why": str(each.error)} for each in unreadable],
                "unnamed_files": unnamed,
            }
        )
        _exit_if_unreadable(unreadable)
        return
    if not manifests and not unreadable:
        out.print(f"{repository.place.address} has no backup")
    table = Table(box=None, pad_edge=False, show_header=bool(manifests))
    for column in ("backup", "taken", "streams", "partitions", "size", "complete"):
        table.add_column(column, justify="right" if column in ("streams", "size") else "left")
    for each in manifests:
        found = summary(each)
        taken = datetime.fromtimestamp(each.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        complete = "yes"
        if not each.is_complete:
            complete = f"not {len(found['incomplete'])}" if found["incomplete"] else "not known"
        table.add_row(
            each.id, taken, str(found["streams"]), str(found["partitions"]),
            bytes_text(found["bytes"]), complete,
        )  # fmt: skip
    out.print(table)
    if unnamed:
        out.print(
            f"{counted(len(unnamed), 'file')} of no backup: one was interrupted, or is being taken",
            style="dim",
        )
    for bad in unreadable:
        print_error(f"backup {bad.id}: {bad.error}")
    _exit_if_unreadable(unreadable)


def _exit_if_unreadable(unreadable: list[UnreadableBackup]) -> None:
    if unreadable:
        raise unread(unreadable[0].error)


def unread(error: BasculeError) -> typer.Exit:
    """Say what to do about a manifest; only a damaged one may be removed."""
    code, hint = exit_codes.explain(error)
    err.print(REMOVE_MANIFEST if isinstance(error, CorruptData) else hint, style="dim")
    return typer.Exit(code)


def summary(manifest: Manifest) -> dict[str, Any]:
    """A backup in JSON."""
    return {
        "id": manifest.id,
        "at_ms": manifest.at_ms,
        "cluster_id": manifest.cluster_id,
        "source": manifest.source,
        "streams": len(manifest.streams),
        "partitions": sum(len(each.partitions) for each in manifest.streams),
        "bytes": manifest.bytes,
        "payloads": len(manifest.payloads()),
        "incomplete": incomplete_json(manifest.failures()),
        "failure": manifest.failure,
    }


def incomplete_json(found: list[tuple[str, int, str]]) -> list[dict[str, object]]:
    """(stream, partition, why) of each in JSON."""
    return [{"stream": name, "partition": index, "why": why} for name, index, why in found]


def show_verified(manifest: Manifest, damages: list[Damage]) -> None:
    """What was found damaged in a backup, and what it lacks."""
    if not damages:
        out.print(
            f"[green]✓[/green] backup {manifest.id}: {counted(len(manifest.names()), 'file')}, "
            f"{bytes_text(manifest.bytes)}: every digest and every CRC is right"
        )
    for each in damages[:SHOWN_MAX]:
        print_error(f"{each.stream} {each.partition}: {each.why}")
    if damages:
        err.print("take a backup with --full, which reads and writes everything again", style="dim")
    show_incomplete(manifest.failures())
    if manifest.failure:
        print_warning(manifest.failure)


def show_incomplete(found: list[tuple[str, int, str]]) -> None:
    """Warn of (stream, partition, why) each."""
    for name, index, why in found[:SHOWN_MAX]:
        print_warning(f"{name} {index} is not complete: {why}")
    if len(found) > SHOWN_MAX:
        print_warning(f"{len(found) - SHOWN_MAX} more are not complete")


def _payloads_text(count: int) -> str:
    return f", {counted(count, 'payload')}" if count else ""
