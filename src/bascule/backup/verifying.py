"""Read a backup again: the digest of every file, the CRC of every batch, and that no file lacks."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from bascule.backup.batch_checks import BatchChecker
from bascule.backup.manifest import (
    BackedUpFile,
    BackedUpPartition,
    BackedUpPayload,
    Manifest,
)
from bascule.backup.places import Place
from bascule.errors import BasculeError, CorruptData


class Damage(NamedTuple):
    """A partition that cannot be restored from the backup."""

    stream: str
    partition: int
    why: str


UNREADABLE: Final = frozenset(
    {errno.EIO, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EINVAL,
     errno.EUCLEAN, errno.EBADMSG}
)  # fmt: skip
"""Errors of one file. Errors of object stores have no number."""
OnBytes = Callable[[int], None]
"""Called with the number of bytes after each piece was read."""
_NOTHING: Final[OnBytes] = lambda _: None  # noqa: E731


def verify(place: Place, manifest: Manifest, *, on_bytes: OnBytes = _NOTHING) -> list[Damage]:
    """What is damaged; empty: all of the backup is good. Raises: OSError where the place
    cannot be read; a file that cannot is damaged."""
    found = []
    for stream in manifest.streams:
        for partition in stream.partitions:
            try:
                for _ in verified_files(place, partition, on_bytes=on_bytes):
                    pass
                for _ in verified_behind(place, partition, on_bytes=on_bytes):
                    pass
                for payload in partition.payloads:
                    for _ in verified_payload(place, payload, on_bytes=on_bytes):
                        pass
            except BasculeError as error:
                found.append(Damage(stream.decoded().name, partition.partition, str(error)))
    return found


def verified_files(
    place: Place, partition: BackedUpPartition, *, on_bytes: OnBytes = _NOTHING
) -> Iterator[bytes]:
    """The content of each file of a partition, checked.

    Raises: CorruptData, UnexpectedOffset, UnexpectedEpoch, OSError.
    """
    checker = BatchChecker(f"partition {partition.partition}")
    yield from _verified(place, partition.files, checker, on_bytes)
    if partition.files and checker.offset != partition.end_offset:
        raise CorruptData(
            checker.origin, 0, f"batches up to offset {partition.end_offset}", str(checker.offset)
        )


def verified_behind(
    place: Place, partition: BackedUpPartition, *, on_bytes: OnBytes = _NOTHING
) -> Iterator[bytes]:
    """The content of each file of what was read behind damage of the log, checked. Raises: as
    `verified_files`."""
    checker = BatchChecker(f"partition {partition.partition}", offset=partition.end_offset)
    return _verified(place, partition.behind, checker, on_bytes)


def _verified(
    place: Place, files: Sequence[BackedUpFile], checker: BatchChecker, on_bytes: OnBytes
) -> Iterator[bytes]:
    for file in files:
        data = read_file(place, file)
        checker.origin = f"{place.address}/{file.name}"
        checker.check(memoryview(data))
        if checker.offset != file.end_offset:
            raise CorruptData(
                checker.origin, file.bytes, f"the end offset {file.end_offset}", str(checker.offset)
            )
        on_bytes(file.bytes)
        yield data


def verified_payload(
    place: Place, payload: BackedUpPayload, *, on_bytes: OnBytes = _NOTHING
) -> Iterator[bytes]:
    """The content of a payload; none where the backup lacks it. Its digest is compared at the end.

    Raises: CorruptData, OSError.
    """
    if not payload.name:
        return
    path, digest, size = f"{place.address}/{payload.name}", hashlib.sha256(), 0
    chunks = place.read_chunks(payload.name)
    while True:
        with _damage_of(path, payload.bytes):
            chunk = next(chunks, b"")
        if not chunk:
            break
        digest.update(chunk)
        size += len(chunk)
        on_bytes(len(chunk))
        yield chunk
    if digest.hexdigest() != payload.sha256:
        found = f"{digest.hexdigest()} in {size} bytes"
        raise CorruptData(path, 0, f"SHA-256 {payload.sha256}", found)


@contextmanager
def _damage_of(path: str, size: int) -> Iterator[None]:
    """A file that is gone, or that the disk does not read, is damaged; others can be read."""
    try:
        yield
    except FileNotFoundError:
        raise CorruptData(path, 0, f"a file of {size} bytes", "no such file") from None
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        why = error.strerror or str(error)
        raise CorruptData(path, 0, f"a file of {size} bytes that can be read", why) from error


def read_file(place: Place, file: BackedUpFile) -> bytes:
    """A file whose digest is right. Raises: CorruptData, OSError."""
    path = f"{place.address}/{file.name}"
    with _damage_of(path, file.bytes):
        data = place.read(file.name)
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise CorruptData(path, 0, f"SHA-256 {file.sha256}", f"{found} in {len(data)} bytes")
    return data
