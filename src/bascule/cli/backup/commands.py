"""`bascule backup` and `bascule restore`: copies of streams outside the cluster, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from bascule.cli import exit_codes
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    err,
    out,
    print_error,
    print_json,
    print_warning,
)
from bascule.cli.units import bytes_text, counted
from bascule.errors import BasculeError, ConfigError, CorruptData, DataDirectoryInUse
from bascule.host.real import RealClock, RealFiles, RealRandom

if TYPE_CHECKING:
    # Imported where it is used, so that a node loads none of it.
    from bascule.backup.manifest import Manifest
    from bascule.backup.places import Place
    from bascule.backup.repository import Repository, UnreadableBackup
    from bascule.backup.restoring import Restored
    from bascule.backup.sources import Source
    from bascule.backup.taking import Progress as Done
    from bascule.backup.taking import Taken
    from bascule.backup.verifying import Damage
    from bascule.model import StreamDefinition

JOBS: Final = 4
SHOWN_MAX: Final = 20
REMOVE_MANIFEST: Final = (
    "the manifest of that backup is damaged: remove the file, which gives that backup up, or copy "
    "it back from elsewhere"
)

PlaceArgument = Annotated[
    str, typer.Argument(metavar="PLACE", help="A directory, or s3://BUCKET/PATH.")
]
StreamOption = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="NAME", help="Only this stream; may be repeated."),
]
AtOption = Annotated[
    str, typer.Option("--at", metavar="ID", help="This backup.", show_default="the newest")
]


def backup(
    place: PlaceArgument,
    stream: StreamOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Read this data directory of a node that does not run, and ask no server.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Read everything again; use no earlier backup.")
    ] = False,
    keep: Annotated[
        int, typer.Option(min=0, help="Then remove all backups but the newest N; 0: none.")
    ] = 0,
    show: Annotated[bool, typer.Option("--list", help="List the backups; take none.")] = False,
    check: Annotated[
        bool, typer.Option("--verify", help="Read a backup again and check it; take none.")
    ] = False,
    at: AtOption = "",
    jobs: Annotated[int, typer.Option(min=1, help="Partitions that are read at once.")] = JOBS,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Copy streams to a directory or a bucket: what came since the last backup there.

    Each partition is copied at least up to what was committed when its turn came. Committed offsets
    of consumers are a stream, too. `bascule restore` makes a new cluster of it.
    """
    repository = _repository(place)
    if show and check:
        raise ConfigError("--list and --verify exclude each other")
    if keep and stream:
        raise ConfigError(
            "--keep with --stream would remove the backups of all other streams: give one of them, "
            "or use a place for these streams alone"
        )
    if show and (keep or full):
        raise ConfigError("--list takes no backup and removes none: leave out --keep and --full")
    if at and not check:
        raise ConfigError("--at chooses the backup that --verify checks; give --verify as well")
    if show:
        _list(repository, json=json)
    elif check:
        _verify(repository, at, json=json)
    else:
        _take(repository, stream or [], data, server, full=full, keep=keep, jobs=jobs, json=json)


def restore(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACE...",
            help="A directory or s3://BUCKET/PATH; of several each partition is taken from the "
            "one that has most of it.",
        ),
    ],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="The new data directory.", file_okay=False)
    ],
    stream: StreamOption = None,
    at: AtOption = "",
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Also where a backup lacks partitions, or parts, or is damaged."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Make a data directory for the first node of a new cluster from a backup.

    The streams keep their offsets, times and ids; the cluster has a new id. Start it with
    `bascule serve --data DIR`, and let other nodes join it.
    """
    from bascule.backup.restoring import Restorer

    repositories = [_repository(each) for each in places]
    backups = [(each.place, each.chosen(at)) for each in repositories]
    total = sum(manifest.bytes for _, manifest in backups)
    with _progress("restoring", total=total) as bar:
        restorer = Restorer(
            backups, RealFiles(), clock=RealClock(), dice=RealRandom(),
            on_bytes=lambda count: bar.update(bar.task_ids[0], advance=count),
        )  # fmt: skip
        chosen = restorer.streams(stream or [])
        if not stream:
            _warn_of_left_out(repositories, backups, {each.name for each in chosen})
        incomplete = restorer.incomplete(chosen)
        if incomplete and not accept_loss:
            _show_incomplete(incomplete)
            raise ConfigError(
                "the backup is not complete: take one that is, add others of the same streams, or "
                "go on with what it has: --accept-loss"
            )
        try:
            restored = restorer.restore(str(data), chosen, accept_loss=accept_loss)
        except CorruptData:
            err.print(
                "take an older backup with --at, name another place of the same streams, or go on "
                "without what is damaged: --accept-loss; each time with a new directory",
                style="dim",
            )
            raise
    _report_restored(restored, data, [manifest.id for _, manifest in backups], json=json)


def _warn_of_left_out(
    repositories: list[Repository], backups: list[tuple[Place, Manifest]], names: set[str]
) -> None:
    """Name the streams that only the backup before the chosen one has."""
    for repository, (_, manifest) in zip(repositories, backups, strict=True):
        for name, backup in repository.left_out(manifest):
            if name not in names:
                print_warning(
                    f"backup {manifest.id} has no stream {name!r}, and {backup} has it: it was "
                    f"deleted since, or not chosen; --at {backup} restores it"
                )


def _take(
    repository: Repository,
    names: list[str],
    data: Path | None,
    server: str | None,
    *,
    full: bool,
    keep: int,
    jobs: int,
    json: bool,
) -> None:
    from bascule.backup.taking import BackupTaker

    clock = RealClock()
    with ExitStack() as stack:
        source = stack.enter_context(_source(data, server))
        streams = source.streams()
        known = {each.name for each in streams}
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"{source.address} has no stream {unknown[0]!r}")
        chosen = [each for each in streams if not names or each.name in names]
        stack.enter_context(repository.place.held())
        ids = repository.ids()
        before = _before(repository, chosen, full=full)
        _check_same_cluster(repository, before, source)
        with _progress("backing up") as bar:
            task = bar.task_ids[0]

            def on_progress(done: Done) -> None:
                bar.update(task, advance=done.bytes_read)

            taker = BackupTaker(source, repository.place, now_ms=clock.now_ms,
                                on_progress=on_progress)  # fmt: skip
            usable = None if before is None or full else repository.usable(before)
            taken = taker.take(chosen, usable, known_ids=ids, jobs=jobs)
        repository.add(taken.manifest, known=ids)
        removed, not_pruned = (0, 0), None
        if keep:
            try:
                removed = repository.forget(keep)
            except (BasculeError, OSError) as error:
                not_pruned = error
    _report(taken, removed, not_pruned, json=json)


def _before(
    repository: Repository, streams: list[StreamDefinition], *, full: bool
) -> Manifest | None:
    """What the new backup goes on from. Raises: CorruptData unless `full`, OSError."""
    try:
        return repository.latest_of(streams)
    except CorruptData as error:
        if not full:
            err.print(
                "a backup cannot go on from one whose manifest is damaged: take one with --full, "
                "or remove that file, which gives that backup up",
                style="dim",
            )
            raise
        print_warning(f"{error}; that backup cannot be restored")
        return None


def _repository(place: str) -> Repository:
    """Raises: ConfigError."""
    from bascule.backup.places import open_place
    from bascule.backup.repository import Repository

    return Repository(open_place(place))


@contextmanager
def _source(data: Path | None, server: str | None) -> Iterator[Source]:
    from bascule.backup.cluster_source import ClusterSource
    from bascule.backup.disk_source import DiskSource

    if data is None:
        yield ClusterSource(server)
        return
    try:
        found = DiskSource(str(data))
    except DataDirectoryInUse as error:
        print_error(str(error))
        err.print("its node runs: leave out --data, and give its --server", style="dim")
        raise typer.Exit(exit_codes.CONFLICT) from None
    with closing(found) as source:
        yield source


def _check_same_cluster(repository: Repository, before: Manifest | None, source: Source) -> None:
    if before is not None and before.cluster_id != source.cluster_id:
        raise ConfigError(
            f"{repository.place.address} has backups of cluster {before.cluster_id}, and "
            f"{source.address} is cluster {source.cluster_id}: name another place"
        )


def _report(
    taken: Taken,
    removed: tuple[int, int],
    not_pruned: BasculeError | OSError | None,
    *,
    json: bool,
) -> None:
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
                "read_anew": _incomplete_json(taken.read_anew),
                "incomplete": _incomplete_json(failures),
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
            gone = f"{counted(removed[0], 'older backup')} and {counted(removed[1], 'file')}"
            out.print(f"  {gone} removed")
        _show_incomplete(failures)
    if not_pruned is not None:
        print_error(f"the backup is good, and no older one was removed: {not_pruned}")
        if isinstance(not_pruned, BasculeError):
            raise _unread(not_pruned)
    if failures or not_pruned is not None:
        raise typer.Exit(exit_codes.FAILED)


def _report_restored(restored: Restored, data: Path, backups: list[str], *, json: bool) -> None:
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
                "incomplete": _incomplete_json(restored.incomplete),
            }
        )
        return
    _show_incomplete(restored.incomplete)
    out.print(
        f"[green]✓[/green] {counted(restored.streams, 'stream')}, "
        f"{counted(restored.partitions, 'partition')}{_payloads_text(restored.payloads)}, "
        f"{bytes_text(restored.bytes)}; the new cluster has the id {restored.cluster_id}"
    )
    out.print(f"  bascule serve --data {data}", style="dim", markup=False)
    out.print("  bascule node join        says how other nodes join it", style="dim")


def _list(repository: Repository, *, json: bool) -> None:
    manifests, unreadable = repository.load_all()
    unnamed = [] if unreadable else repository.unnamed(manifests)
    if json:
        print_json(
            {
                "backups": [_summary(each) for each in manifests],
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
        summary = _summary(each)
        taken = datetime.fromtimestamp(each.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        complete = "yes" if not summary["incomplete"] else f"not {len(summary['incomplete'])}"
        table.add_row(
            each.id, taken, str(summary["streams"]), str(summary["partitions"]),
            bytes_text(summary["bytes"]), complete,
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
        raise _unread(unreadable[0].error)


def _unread(error: BasculeError) -> typer.Exit:
    """Say what to do about a manifest; only a damaged one may be removed."""
    code, hint = exit_codes.explain(error)
    err.print(REMOVE_MANIFEST if isinstance(error, CorruptData) else hint, style="dim")
    return typer.Exit(code)


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "at_ms": manifest.at_ms,
        "cluster_id": manifest.cluster_id,
        "source": manifest.source,
        "streams": len(manifest.streams),
        "partitions": sum(len(each.partitions) for each in manifest.streams),
        "bytes": manifest.bytes,
        "payloads": len(manifest.payloads()),
        "incomplete": _incomplete_json(manifest.failures()),
    }


def _verify(repository: Repository, at: str, *, json: bool) -> None:
    from bascule.backup.verifying import verify

    manifest = repository.chosen(at)
    with _progress("checking", total=manifest.bytes) as bar:
        damages = verify(
            repository.place, manifest,
            on_bytes=lambda count: bar.update(bar.task_ids[0], advance=count),
        )  # fmt: skip
    if json:
        print_json({**_summary(manifest), "damaged": [each._asdict() for each in damages]})
    else:
        _show_verified(manifest, damages)
    if damages:
        raise typer.Exit(exit_codes.CORRUPT)


def _show_verified(manifest: Manifest, damages: list[Damage]) -> None:
    if not damages:
        out.print(
            f"[green]✓[/green] backup {manifest.id}: {counted(len(manifest.names()), 'file')}, "
            f"{bytes_text(manifest.bytes)}: every digest and every CRC is right"
        )
    for each in damages[:SHOWN_MAX]:
        print_error(f"{each.stream} {each.partition}: {each.why}")
    if damages:
        err.print("take a backup with --full, which reads and writes everything again", style="dim")
    _show_incomplete(manifest.failures())


def _show_incomplete(found: list[tuple[str, int, str]]) -> None:
    for name, index, why in found[:SHOWN_MAX]:
        print_warning(f"{name} {index} is not complete: {why}")
    if len(found) > SHOWN_MAX:
        print_warning(f"{len(found) - SHOWN_MAX} more are not complete")


def _payloads_text(count: int) -> str:
    return f", {counted(count, 'payload')}" if count else ""


def _incomplete_json(found: list[tuple[str, int, str]]) -> list[dict[str, object]]:
    return [{"stream": name, "partition": index, "why": why} for name, index, why in found]


@contextmanager
def _progress(what: str, *, total: int | None = None) -> Iterator[Progress]:
    """A bar of bytes, with one task."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        bar.add_task(what, total=total)
        yield bar
