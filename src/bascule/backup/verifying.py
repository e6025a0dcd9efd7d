"""Read a backup again: the digest of every file, the CRC of every batch, and that no file lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
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


OnBytes = Callable[[int], None]
"""Called with the number of bytes after each piece was read."""
_NOTHING: Final[OnBytes] = lambda _: None  # noqa: E731


def verify(place: Place, manifest: Manifest, *, on_bytes: OnBytes = _NOTHING) -> list[Damage]:
    """What is damaged; empty: all of the backup is good. Raises: OSError but for missing files."""
    found = []
    for stream in manifest.streams:
        for partition in stream.partitions:
            try:
                for _ in verified_files(place, partition, on_bytes=on_bytes):
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
    for file in partition.files:
        data = read_file(place, file)
        checker.origin = f"{place.address}/{file.name}"
        checker.check(memoryview(data))
        if checker.offset != file.end_offset:
            raise CorruptData(
                checker.origin, file.bytes, f"the end offset {file.end_offset}", str(checker.offset)
            )
        on_bytes(file.bytes)
        yield data
    if partition.files and checker.offset != partition.end_offset:
        raise CorruptData(
            checker.origin, 0, f"batches up to offset {partition.end_offset}", str(checker.offset)
        )


def verified_payload(
    place: Place, payload: BackedUpPayload, *, on_bytes: OnBytes = _NOTHING
) -> Iterator[bytes]:
    """The content of a payload; none where the backup lacks it. Its digest is compared at the end.

    Raises: CorruptData, OSError.
    """
    if not payload.name:
        return
    path, digest, size = f"{place.address}/{payload.name}", hashlib.sha256(), 0
    try:
        for chunk in place.read_chunks(payload.name):
            digest.update(chunk)
            size += len(chunk)
            on_bytes(len(chunk))
            yield chunk
    except FileNotFoundError:
        raise CorruptData(path, 0, f"a file of {payload.bytes} bytes", "no such file") from None
    if digest.hexdigest() != payload.sha256:
        found = f"{digest.hexdigest()} in {size} bytes"
        raise CorruptData(path, 0, f"SHA-256 {payload.sha256}", found)


def read_file(place: Place, file: BackedUpFile) -> bytes:
    """A file whose digest is right. Raises: CorruptData, OSError."""
    path = f"{place.address}/{file.name}"
    try:
        data = place.read(file.name)
    except FileNotFoundError:
        raise CorruptData(path, 0, f"a file of {file.bytes} bytes", "no such file") from None
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise CorruptData(path, 0, f"SHA-256 {file.sha256}", f"{found} in {len(data)} bytes")
    return data
