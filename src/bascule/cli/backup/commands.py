"""`bascule backup` and `bascule restore`: copies of streams outside the cluster, and back."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)

from bascule.cli import exit_codes
from bascule.cli.backup.reports import (
    hint_at_older,
    print_list,
    report,
    report_pruned,
    report_restored,
    show_incomplete,
    show_verified,
    summary,
)
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    err,
    print_error,
    print_json,
    print_warning,
)
from bascule.errors import (
    BasculeError,
    ConfigError,
    CorruptData,
    DataDirectoryInUse,
    UnsupportedFormat,
)
from bascule.host.real import RealClock, RealFiles, RealRandom

if TYPE_CHECKING:
    # Imported where it is used, so that a node loads none of it.
    from bascule.backup.manifest import Manifest
    from bascule.backup.places import Place
    from bascule.backup.repository import Repository
    from bascule.backup.sources import Source
    from bascule.backup.taking import Progress as Done
    from bascule.model import StreamDefinition

JOBS: Final = 4
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

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
    prune: Annotated[
        bool, typer.Option("--prune", help="Only remove backups, as --keep says; take none.")
    ] = False,
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
    if show + check + prune > 1:
        raise ConfigError("--list, --verify and --prune exclude each other")
    if prune and not keep:
        raise ConfigError("--prune removes all backups but the newest N: give --keep N as well")
    if keep and stream:
        raise ConfigError(
            "--keep with --stream would leave one backup of all other streams: give one of them, "
            "or use a place for these streams alone"
        )
    if keep and data is not None and not prune:
        raise ConfigError(
            "--keep with --data could remove what the directory lacks: leave out --keep, or use a "
            "place for this directory alone and remove backups there with --prune"
        )
    if show and (keep or full):
        raise ConfigError("--list takes no backup and removes none: leave out --keep and --full")
    if prune and full:
        raise ConfigError("--prune takes no backup: leave out --full")
    if at and not check:
        raise ConfigError("--at chooses the backup that --verify checks; give --verify as well")
    with _ended_by_sigterm():
        if show:
            print_list(repository, json=json)
        elif check:
            _verify(repository, at, json=json)
        elif prune:
            with repository.place.held():
                removed = repository.forget(keep)
            report_pruned(removed, json=json)
        else:
            with _hint_at_room(repository):
                _take(
                    repository, stream or [], data, server,
                    full=full, keep=keep, jobs=jobs, json=json,
                )  # fmt: skip


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
    backups = [(each.place, _chosen(each, at)) for each in repositories]
    total = sum(manifest.bytes for _, manifest in backups)
    with _ended_by_sigterm(), _progress("restoring", total=total) as bar:
        restorer = Restorer(
            backups, RealFiles(), clock=RealClock(), dice=RealRandom(),
            on_bytes=lambda count: bar.update(bar.task_ids[0], advance=count),
        )  # fmt: skip
        chosen = restorer.streams(stream or [])
        if not stream:
            _warn_of_left_out(repositories, backups, {each.name for each in chosen})
        incomplete = restorer.incomplete(chosen)
        unknown = [manifest.failure for _, manifest in backups]
        if all(unknown):
            print_warning(unknown[0])
        if (incomplete or all(unknown)) and not accept_loss:
            show_incomplete(incomplete)
            raise ConfigError(
                "the backup is not complete: take one that is, add others of the same streams, or "
                "go on with what it has: --accept-loss"
            )
        try:
            restored = restorer.restore(str(data), chosen, accept_loss=accept_loss)
        except CorruptData:
            _check_kept(repositories, backups)
            err.print(
                "take an older backup with --at, name another place of the same streams, or go on "
                "without what is damaged: --accept-loss; each time with a new directory",
                style="dim",
            )
            raise
    report_restored(restored, data, [manifest.id for _, manifest in backups], json=json)


def _warn_of_left_out(
    repositories: list[Repository], backups: list[tuple[Place, Manifest]], names: set[str]
) -> None:
    """Name the streams that only backups before the chosen one have."""
    for repository, (_, manifest) in zip(repositories, backups, strict=True):
        left_out, unreadable = repository.left_out(manifest)
        for bad in unreadable:
            print_warning(f"whether backup {bad.id} has other streams is not known: {bad.error}")
        for name, backup in left_out:
            if name not in names:
                print_warning(
                    f"backup {manifest.id} has no stream {name!r}, and {backup} has it: it was "
                    f"deleted since, or not chosen; --at {backup} restores it"
                )


def _chosen(repository: Repository, at: str) -> Manifest:
    """The backup with this id, or the newest. Raises: as `Repository.load`."""
    try:
        return repository.chosen(at)
    except (CorruptData, UnsupportedFormat) as error:
        if not at:
            hint_at_older(repository, error)
        raise


def _check_kept(repositories: list[Repository], backups: list[tuple[Place, Manifest]]) -> None:
    """Raises: ConfigError where a backup was removed while it was read: that is no damage."""
    for repository, (place, manifest) in zip(repositories, backups, strict=True):
        if manifest.id not in repository.ids():
            raise ConfigError(
                f"backup {manifest.id} of {place.address} was removed meanwhile: take a newer one"
            )


@contextmanager
def _hint_at_room(repository: Repository) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            err.print(
                f"make room: `bascule backup {repository.place.address} --prune --keep N` removes "
                "all backups but the newest N, and what interrupted ones have left",
                style="dim",
            )
        raise


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does, which removes what was begun."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
        # Before the streams are asked for: an older backup has none that is newer than the answer.
        ids = repository.ids()
        streams = source.streams()
        known = {each.name for each in streams}
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"{source.address} has no stream {unknown[0]!r}")
        chosen = [each for each in streams if not names or each.name in names]
        names_all_streams = source.names_all_streams and not names
        if data is None and not source.names_all_streams and not source.failure:
            print_warning(
                f"{source.address} cannot confirm which streams there are, since nodes of an "
                "earlier release are in the cluster: older backups keep what this one lacks"
            )
        keeps_others_out = stack.enter_context(repository.place.held())
        repository.check_alone(ids)
        before = _before(repository, chosen, full=full)
        _check_same_cluster(repository, before, source)
        if keep and keeps_others_out:
            with suppress(BasculeError):  # `forget` names it below
                repository.remove_unnamed()
        with _progress("backing up") as bar:
            task = bar.task_ids[0]

            def on_progress(done: Done) -> None:
                bar.update(task, advance=done.bytes_read)

            taker = BackupTaker(source, repository.place, now_ms=clock.now_ms,
                                on_progress=on_progress)  # fmt: skip
            usable = None if before is None else repository.usable(before)
            taken = taker.take(
                chosen, usable, known_ids=ids, is_full=full, jobs=jobs,
                names_all_streams=names_all_streams,
            )  # fmt: skip
        repository.add(taken.manifest, known=ids)
        removed, not_pruned = (0, 0), None
        if keep:
            try:
                removed = repository.forget(keep, own=taken.manifest.id)
            except (BasculeError, OSError) as error:
                not_pruned = error
    report(taken, removed, not_pruned, json=json)


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
        return repository.latest_of(streams, passes_damage=True)


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


def _verify(repository: Repository, at: str, *, json: bool) -> None:
    from bascule.backup.verifying import verify

    manifest = _chosen(repository, at)
    with _progress("checking", total=manifest.bytes) as bar:
        damages = verify(
            repository.place, manifest,
            on_bytes=lambda count: bar.update(bar.task_ids[0], advance=count),
        )  # fmt: skip
    if damages:
        _check_kept([repository], [(repository.place, manifest)])
    if json:
        print_json({**summary(manifest), "damaged": [each._asdict() for each in damages]})
    else:
        show_verified(manifest, damages)
    if damages:
        raise typer.Exit(exit_codes.CORRUPT)


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
