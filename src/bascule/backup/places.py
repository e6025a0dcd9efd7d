"""Where backups are: a directory, or a bucket of an object store such as S3."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from bascule.errors import BackupPlaceInUse, ConfigError, DataDirectoryInUse
from bascule.host.api import Files
from bascule.host.real import DirectoryLock, RealFiles, RealRandom
from bascule.storage.checkpoint import NEW_SUFFIX, replace_file

CHUNK_BYTES: Final = 1 << 20
NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""File systems without locks, such as some that are mounted from elsewhere."""
NODE_FILES: Final = ("node.json", "raft")
"""A data directory has these; its node keeps nothing below `streams/` that it does not know."""
NODE_STREAMS: Final = "streams"
CLAIMS: Final = "backing-up"
"""Below it each backup that is being taken in a bucket has a file."""
CLAIM_RENEWAL_SECONDS: Final = 60.0
CLAIM_SECONDS: Final = 600
"""A claim that was not renewed for so long is of a process that has ended."""


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

    def held(self) -> AbstractContextManager[bool]:
        """Keep others from writing a backup; whether that is certain. Raises: BackupPlaceInUse,
        ConfigError."""

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
def naming(path: str) -> Iterator[None]:
    """Name the file in an OSError of a call that knows only its number, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def _refuse(error: OSError) -> None:
    """A directory that cannot be read is not an empty one."""
    if not isinstance(error, FileNotFoundError):
        raise error


class LocalPlace:
    """A directory of this machine."""

    def __init__(self, path: str) -> None:
        self.address = str(Path(path).absolute())
        self._files = RealFiles()

    def write(self, name: str, data: bytes) -> None:
        path = f"{self.address}/{name}"
        with naming(path):
            self._files.make_dirs(path.rpartition("/")[0])
            try:
                replace_file(self._files, path, data)
            except OSError:
                if self._files.exists(path + NEW_SUFFIX):
                    self._files.remove(path + NEW_SUFFIX)  # on a full disk it takes the room left
                raise

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        path = f"{self.address}/{name}"
        directory = path.rpartition("/")[0]
        with naming(path):
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
    def held(self) -> Iterator[bool]:
        self._check_no_data()
        is_certain = True
        with ExitStack() as stack:
            self._files.make_dirs(self.address)
            try:
                stack.enter_context(DirectoryLock(self.address))
            except DataDirectoryInUse as error:
                raise BackupPlaceInUse(self.address, error.holder) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                is_certain = False
            yield is_certain

    def _check_no_data(self) -> None:
        """Raises: ConfigError where a node would remove the place, as what it does not know."""
        path = Path(self.address)
        data = [path]
        parents = list(path.parents)
        data += [up for up, below in zip(parents[1:], parents, strict=False)
                 if below.name == NODE_STREAMS]  # fmt: skip
        data += [path.parent] if path.name == NODE_STREAMS else []
        for each in data:
            if any(self._files.exists(f"{each}/{name}") for name in NODE_FILES):
                raise ConfigError(
                    f"{self.address} is in the data directory of a node, {each}, which removes "
                    "what it does not know: name another place for backups"
                )

    def names(self, directory: str) -> list[str]:
        found = []
        for root, _, names in os.walk(f"{self.address}/{directory}", onerror=_refuse):
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
        if not self._path:
            raise ConfigError(f"{address!r} names no bucket: s3://BUCKET/PATH does")
        self._is_file: Callable[[Any], bool] = lambda found: found.type == fs.FileType.File
        self._is_missing: Callable[[Any], bool] = lambda found: found.type == fs.FileType.NotFound
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

    @contextmanager
    def held(self) -> Iterator[bool]:
        """A bucket has no locks: each backup has a file there while it is taken."""
        claim = f"{CLAIMS}/{RealRandom().bytes(16).hex()}"
        holder = f"process {os.getpid()} of {socket.gethostname()}"
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(CLAIM_RENEWAL_SECONDS):
                # Once that has failed for long another backup counts, and this one is told so.
                with suppress(OSError):
                    self.write(claim, holder.encode())

        self.write(claim, holder.encode())
        renewing = threading.Thread(target=renew, name="backup-claim", daemon=True)
        try:
            self._check_claims(claim)
            renewing.start()
            yield True
        finally:
            ended.set()
            if renewing.is_alive():
                renewing.join()
            self.remove(claim)

    def _check_claims(self, own: str) -> None:
        """Remove those that nobody renews. Raises: BackupPlaceInUse where there is another one; of
        two that begin at the same moment both are refused.

        Ages are compared by the clock of the store.
        """
        claims = {each.path[len(self._path) + 1 :]: each.mtime for each in self._infos(CLAIMS)}
        latest = max(claims.values(), default=None)  # of what was written just now
        for claim, at in claims.items():
            if claim == own:
                continue
            if (latest - at).total_seconds() > CLAIM_SECONDS:
                self.remove(claim)
                continue
            try:
                holder = self.read(claim).decode(errors="replace")
            except FileNotFoundError:
                continue  # it has just ended
            raise BackupPlaceInUse(
                self.address,
                f"{holder} (if that has ended without removing {claim}, it counts for "
                f"{CLAIM_SECONDS // 60} minutes)",
            )

    def _infos(self, directory: str) -> list[Any]:
        selector = self._select(f"{self._path}/{directory}", recursive=True, allow_not_found=True)
        return [each for each in self._store.get_file_info(selector) if self._is_file(each)]

    def names(self, directory: str) -> list[str]:
        """Raises: ConfigError where there is no such bucket."""
        found = sorted(each.path[len(self._path) + 1 :] for each in self._infos(directory))
        if not found:
            self._check_bucket()
        return found

    def _check_bucket(self) -> None:
        """A bucket whose name is mistyped is no empty place. Raises: ConfigError."""
        bucket = self._path.partition("/")[0]
        if self._store.type_name == "local":
            return
        with suppress(OSError):  # who may see the place need not see the bucket
            if self._is_missing(self._store.get_file_info(bucket)):
                raise ConfigError(f"{self.address}: there is no bucket {bucket!r}")


def open_place(address: str) -> Place:
    """The place at a path, or at a URL such as s3://bucket/path. Raises: ConfigError."""
    if not address:
        raise ConfigError("the place of the backup is empty: name a directory or s3://BUCKET/PATH")
    if address.startswith("file:"):
        found = urlsplit(address)
        if found.netloc not in ("", "localhost") or not found.path.startswith("/"):
            raise ConfigError(f"{address!r} is no directory of this machine: file:///PATH is one")
        return LocalPlace(unquote(found.path))
    return RemotePlace(address) if "://" in address else LocalPlace(address)
