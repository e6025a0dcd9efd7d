"""The place where backups are: a directory, or a bucket of an object store such as S3."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec.structs import replace

from bascule.backup.manifest import (
    DIRECTORY,
    SUFFIX,
    BackedUpPartition,
    BackedUpPayload,
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_name,
)
from bascule.errors import BackupPlaceInUse, ConfigError, DataDirectoryInUse
from bascule.host.api import Files
from bascule.host.real import DirectoryLock, RealFiles
from bascule.model import StreamDefinition
from bascule.storage.checkpoint import NEW_SUFFIX, replace_file

STREAMS: Final = "streams"
"""Below it are the files of record batches and of payloads."""
CHUNK_BYTES: Final = 1 << 20
NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""File systems without locks, such as some that are mounted from elsewhere."""
PAYLOAD_SUFFIX: Final = ".payload"
_PAYLOAD: Final = re.compile(
    rf"[0-9]{{20}}-[0-9a-f]{{32}}-(.+){re.escape(PAYLOAD_SUFFIX)}(?:{re.escape(NEW_SUFFIX)})?"
)


class Place(Protocol):
    """Named files. Several threads may use it. Every method raises OSError."""

    address: str

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all; it is durable on return."""

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        """As `write`, of a file that need not fit into memory; `name` is a new one. What `chunks`
        raises leaves no file."""

    def read(self, name: str) -> bytes: ...

    def read_chunks(self, name: str) -> Iterator[bytes]:
        """The content in pieces of up to CHUNK_BYTES."""

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""

    def held(self) -> AbstractContextManager[object]:
        """Keep others from writing a backup, where the place can. Raises: BackupPlaceInUse."""

    def names(self, directory: str) -> list[str]:
        """All files below a directory, as paths below the place, sorted; also those of writes that
        the end of a process has cut."""


def file_chunks(files: Files, path: str) -> Iterator[bytes]:
    """The content of a file in pieces of up to CHUNK_BYTES. Raises: OSError."""
    file = files.open(path, write=False)
    try:
        position = 0
        while chunk := file.read_at(position, CHUNK_BYTES):
            yield chunk
            position += len(chunk)
    finally:
        file.close()


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file in an OSError of a call that knows only its number, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


class LocalPlace:
    """A directory of this machine."""

    def __init__(self, path: str) -> None:
        self.address = str(Path(path).absolute())
        self._files = RealFiles()

    def write(self, name: str, data: bytes) -> None:
        path = f"{self.address}/{name}"
        with _naming(path):
            self._files.make_dirs(path.rpartition("/")[0])
            replace_file(self._files, path, data)

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        path = f"{self.address}/{name}"
        directory = path.rpartition("/")[0]
        with _naming(path):
            self._files.make_dirs(directory)
            file = self._files.open(path + NEW_SUFFIX, create=True)
            try:
                file.truncate(0)
                for chunk in chunks:
                    file.append(chunk)
                file.sync()
            except BaseException:
                self._files.remove(path + NEW_SUFFIX)
                raise
            finally:
                file.close()
            self._files.rename(path + NEW_SUFFIX, path)
            self._files.sync_dir(directory)

    def read(self, name: str) -> bytes:
        return self._files.read_bytes(f"{self.address}/{name}")

    def read_chunks(self, name: str) -> Iterator[bytes]:
        return file_chunks(self._files, f"{self.address}/{name}")

    def remove(self, name: str) -> None:
        path = f"{self.address}/{name}"
        if self._files.exists(path):
            self._files.remove(path)

    @contextmanager
    def held(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._files.make_dirs(self.address)
            try:
                stack.enter_context(DirectoryLock(self.address))
            except DataDirectoryInUse as error:
                raise BackupPlaceInUse(self.address, error.holder) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            yield

    def names(self, directory: str) -> list[str]:
        found = []
        for root, _, names in os.walk(f"{self.address}/{directory}"):
            below = os.path.relpath(root, self.address)
            found += [f"{below}/{name}" for name in names]
        return sorted(found)


class RemotePlace:
    """A part of an object store, by Arrow. A file appears there when its upload is complete."""

    def __init__(self, address: str) -> None:
        """Raises: ConfigError for an address that Arrow does not know."""
        import pyarrow as pa
        from pyarrow import fs

        self.address = address.partition("?")[0].rstrip("/")
        try:
            self._store, path = fs.FileSystem.from_uri(address)
        except (pa.ArrowInvalid, ValueError) as error:
            raise ConfigError(f"{address!r} is no place for backups: {error}") from None
        self._path = path.rstrip("/")
        self._is_file: Callable[[Any], bool] = lambda found: found.type == fs.FileType.File
        self._select = fs.FileSelector

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._path}/{name}"
        self._store.create_dir(path.rpartition("/")[0], recursive=True)
        with self._store.open_output_stream(path) as file:
            file.write(data)

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        path = f"{self._path}/{name}"
        self._store.create_dir(path.rpartition("/")[0], recursive=True)
        file = self._store.open_output_stream(path)
        try:
            for chunk in chunks:
                file.write(chunk)
        except BaseException:
            # To close it is all that Arrow can do with it, and makes a file of what was written.
            file.close()
            self._store.delete_file(path)
            raise
        file.close()

    def read(self, name: str) -> bytes:
        with self._store.open_input_file(f"{self._path}/{name}") as file:
            return bytes(file.read())

    def read_chunks(self, name: str) -> Iterator[bytes]:
        with self._store.open_input_file(f"{self._path}/{name}") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield bytes(chunk)

    def remove(self, name: str) -> None:
        path = f"{self._path}/{name}"
        if self._is_file(self._store.get_file_info(path)):
            self._store.delete_file(path)

    def held(self) -> AbstractContextManager[object]:
        return nullcontext()

    def names(self, directory: str) -> list[str]:
        selector = self._select(f"{self._path}/{directory}", recursive=True, allow_not_found=True)
        found = self._store.get_file_info(selector)
        return sorted(each.path[len(self._path) + 1 :] for each in found if self._is_file(each))


def open_place(address: str) -> Place:
    """The place at a path, or at a URL such as s3://bucket/path. Raises: ConfigError."""
    if not address:
        raise ConfigError("the place of the backup is empty: name a directory or s3://BUCKET/PATH")
    if address.startswith("file://"):
        return LocalPlace(address.removeprefix("file://"))
    return RemotePlace(address) if "://" in address else LocalPlace(address)


def id_order(backup: str) -> tuple[str, int]:
    """(time, number of the backup in it): ids sort by it as the backups began."""
    at, _, number = backup.partition("-")
    return at, int(number) if number.isdecimal() else 1


def backup_of(name: str) -> str:
    """The backup that has written the file of a payload, or a part of it; empty: another file."""
    found = _PAYLOAD.fullmatch(name.rpartition("/")[2])
    return found[1] if found else ""


class Repository:
    """The backups at one place."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def ids(self) -> list[str]:
        """All backups, oldest first. Raises: OSError."""
        names = (each.rpartition("/")[2] for each in self.place.names(DIRECTORY))
        return sorted(
            (each.removesuffix(SUFFIX) for each in names if each.endswith(SUFFIX)), key=id_order
        )

    def load(self, backup: str) -> Manifest:
        """Raises: CorruptData, UnsupportedFormat, OSError; ConfigError: there is no such one."""
        name = manifest_name(backup)
        try:
            data = self.place.read(name)
        except FileNotFoundError:
            known = ", ".join(self.ids()[-5:]) or "none"
            raise ConfigError(
                f"{self.place.address} has no backup {backup!r}; the last ones: {known}"
            ) from None
        return decode_manifest(data, f"{self.place.address}/{name}")

    def latest(self) -> Manifest | None:
        """The newest backup; None without any. Raises: as `load`."""
        ids = self.ids()
        return self.load(ids[-1]) if ids else None

    def latest_of(self, streams: Collection[StreamDefinition]) -> Manifest | None:
        """The newest backup, with each of `streams` that it lacks as the newest one that has it;
        None without any backup. Raises: as `load`."""
        ids = self.ids()
        if not ids:
            return None
        latest = self.load(ids.pop())
        found = {each.decoded().id: each for each in latest.streams}
        wanted = {each.id for each in streams}
        while ids and not wanted <= found.keys():
            for each in self.load(ids.pop()).streams:
                found.setdefault(each.decoded().id, each)
        return replace(latest, streams=tuple(found.values()))

    def usable(self, manifest: Manifest) -> Manifest:
        """What a new backup can build on: without the payloads whose files are gone, and without
        the records of partitions that lack a file, so that both are copied again. Raises: OSError.
        """
        present = set(self.place.names(STREAMS))

        def gone(name: str) -> str:
            return f"{self.place.address}/{name} is gone"

        def payload_left(each: BackedUpPayload) -> BackedUpPayload:
            if not each.name or each.name in present:
                return each
            return replace(each, name="", sha256="", failure=gone(each.name))

        def left(each: BackedUpPartition) -> BackedUpPartition:
            payloads = tuple(payload_left(payload) for payload in each.payloads)
            missing = [file.name for file in each.files if file.name not in present]
            if not missing:
                return replace(each, payloads=payloads)
            return replace(each, payloads=payloads, files=(), failure=gone(missing[0]))

        streams = tuple(
            replace(stream, partitions=tuple(left(each) for each in stream.partitions))
            for stream in manifest.streams
        )
        return replace(manifest, streams=streams)

    def chosen(self, backup: str) -> Manifest:
        """The backup with this id; empty: the newest. Raises: as `load`."""
        found = self.load(backup) if backup else self.latest()
        if found is None:
            raise ConfigError(f"{self.place.address} has no backup: take one with `bascule backup`")
        return found

    def left_out(self, manifest: Manifest) -> list[tuple[str, str]]:
        """(name, backup) of the streams that `manifest` lacks and the backup before it has: they
        were deleted since, or it is one of chosen streams. Raises: as `load`."""
        earlier = [each for each in self.ids() if id_order(each) < id_order(manifest.id)]
        if not earlier:
            return []
        known = {each.decoded().id for each in manifest.streams}
        before = [each.decoded() for each in self.load(earlier[-1]).streams]
        return [(each.name, earlier[-1]) for each in before if each.id not in known]

    def add(self, manifest: Manifest, *, known: Collection[str]) -> None:
        """Make the backup count; its files are there already. `known` are the backups that were
        there when it began.

        Raises: BackupPlaceInUse where another one has been added since: it may have the same id,
        and its `keep` may have removed files that this one names. OSError.
        """
        if later := [each for each in self.ids() if each not in known]:
            raise BackupPlaceInUse(
                self.place.address, f"backup {later[-1]}, which was taken while this one was"
            )
        self.place.write(manifest_name(manifest.id), encode_manifest(manifest))

    def forget(self, keep: int) -> tuple[int, int]:
        """Remove all backups but the newest `keep`, and the files that no other one names. The
        newest one that is complete stays as well. So do no payloads of backups that were
        interrupted, and had begun before the oldest that is kept.

        Returns the numbers of backups and files that were removed. Raises: as `load`.
        """
        ids = self.ids()
        kept = [self.load(each) for each in ids[-keep:]]
        old = ids[:-keep]
        if not any(each.is_complete for each in kept):
            for each in reversed(old):
                manifest = self.load(each)
                if manifest.is_complete:
                    kept.insert(0, manifest)
                    old.remove(each)
                    break
        names = {name for each in kept for name in each.names()}
        removed: set[str] = set()
        for each in old:
            gone = self.load(each).names() - names
            # Its manifest first: one without its files would be damage.
            self.place.remove(manifest_name(each))
            for name in sorted(gone - removed):
                self.place.remove(name)
            removed |= gone
        for name in self._interrupted(names, before=kept[0].id) if kept else ():
            self.place.remove(name)
            removed.add(name)
        return len(old), len(removed)

    def _interrupted(self, named: set[str], *, before: str) -> list[str]:
        """The payloads, whole or in part, of backups that began before that one and never came to
        their end."""
        return [
            name
            for name in self.place.names(STREAMS)
            if name not in named and (backup := backup_of(name))
            if id_order(backup) < id_order(before)
        ]

    def unnamed(self) -> Iterator[str]:
        """Files that no backup names, as one leaves them that was interrupted. Raises: as `load`"""
        named: set[str] = set()
        for each in self.ids():
            named |= self.load(each).names()
        return (name for name in self.place.names(STREAMS) if name not in named)
