"""Copy the payloads of the records of a backup that earlier backups do not have."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing
from typing import Final

from crc32c import crc32c

from bascule.backup.manifest import BackedUpPayload
from bascule.backup.repository import Place
from bascule.backup.sources import PartitionRead
from bascule.errors import (
    BasculeError,
    Broken,
    OffsetOutOfRange,
    PayloadDamaged,
    UnknownPayload,
    UnknownStream,
)
from bascule.record.payload_links import PayloadLink, links_of

SUFFIX: Final = ".payload"
REPLACED: Final = (
    "its record was removed while the backup was taken: the next one has the record that came later"
)


class PayloadCopier:
    """Copies the payloads of one partition."""

    def __init__(
        self,
        read: PartitionRead,
        place: Place,
        directory: str,
        backup: str,
        *,
        on_bytes: Callable[[int], None],
    ) -> None:
        """`directory` is that of the partition in the repository, `backup` the id of the new
        one."""
        self._read = read
        self._place = place
        self._directory = directory
        self._backup = backup
        self._on_bytes = on_bytes
        self.log_start = read.start_offset
        """What is below has been removed: known from payloads that were gone with their records."""
        self.bytes_written = 0
        self.files_written = 0

    def copy(
        self, links: Sequence[PayloadLink], earlier: Collection[BackedUpPayload], *, new_from: int
    ) -> tuple[BackedUpPayload, ...]:
        """The payloads of `links`, but for those whose records are gone.

        `earlier` are those of the backup before, and are not copied again. The records from offset
        `new_from` on were read just now.

        Raises: UnknownStream; OSError where the place cannot be written.
        """
        copied = {(each.id, each.bytes, each.crc32c): each for each in earlier if each.name}
        found: list[BackedUpPayload] = []
        silent = ""
        for link in sorted(links):
            wanted = _without_file(link)
            known = copied.get((wanted.id, wanted.bytes, wanted.crc32c))
            if known is not None:
                each: BackedUpPayload | None = _with_file(wanted, known.name, known.sha256)
            elif silent:
                each = _lacking(wanted, silent)
            else:
                try:
                    each = self._copy(link, wanted)
                except UnknownPayload as gone:
                    each = self._gone(link, wanted, gone, is_new=link.offset >= new_from)
                except Broken as error:
                    # To wait for each one of them in vain would take for ever.
                    silent = str(error)
                    each = _lacking(wanted, silent)
                except UnknownStream:
                    raise
                except BasculeError as error:
                    each = _lacking(wanted, str(error))
            if each is None:
                continue
            found.append(each)
            if each.name:
                copied[each.id, each.bytes, each.crc32c] = each
        return tuple(each for each in found if each.offset >= self.log_start)

    def _copy(self, link: PayloadLink, wanted: BackedUpPayload) -> BackedUpPayload:
        name = f"{self._directory}/{link.offset:020d}-{link.payload.id}-{self._backup}{SUFFIX}"
        digest = hashlib.sha256()
        # Closed here, also where the place fails: what the garbage collector closes at the end of
        # the process waits for threads that cannot be started any more.
        with closing(self._checked(link, digest.update)) as chunks:
            self._place.write_chunks(name, chunks)
        self.bytes_written += link.payload.size
        self.files_written += 1
        return _with_file(wanted, name, digest.hexdigest())

    def _checked(
        self, link: PayloadLink, add: Callable[[bytes], None]
    ) -> Generator[bytes, None, None]:
        """The content; `add` gets it as well. Raises: PayloadDamaged where it is not what its
        record says."""
        id, size, crc = link.payload
        found_size = found_crc = 0
        with closing(self._read.read_payload(link)) as chunks:
            for chunk in chunks:
                add(chunk)
                found_size, found_crc = found_size + len(chunk), crc32c(chunk, found_crc)
                self._on_bytes(len(chunk))
                yield chunk
        if (found_size, found_crc) != (size, crc):
            raise PayloadDamaged(
                id, "content", f"of {found_size} bytes, checksum {found_crc:08x}",
                f"{size} bytes, {crc:08x}",
            )  # fmt: skip

    def _gone(
        self, link: PayloadLink, wanted: BackedUpPayload, error: UnknownPayload, *, is_new: bool
    ) -> BackedUpPayload | None:
        """What the backup says of a payload that nobody has; None: its record is gone as well."""
        try:
            block = next(self._read.read(link.offset), None)
            if block is not None and any(link == each for each in links_of(block)):
                return _lacking(wanted, str(error))
        except OffsetOutOfRange as outside:
            if link.offset < outside.start:
                self.log_start = max(self.log_start, outside.start)
                return None
            return _lacking(wanted, str(outside))
        except BasculeError as failed:
            return _lacking(wanted, str(failed))
        # Compaction has removed it, so a later record of its key was there before that: of records
        # that an earlier backup has read, this one has it.
        return _lacking(wanted, REPLACED) if is_new else None


def _without_file(link: PayloadLink) -> BackedUpPayload:
    id, size, crc = link.payload
    return BackedUpPayload(offset=link.offset, id=id, bytes=size, crc32c=f"{crc:08x}")


def _with_file(wanted: BackedUpPayload, name: str, sha256: str) -> BackedUpPayload:
    return BackedUpPayload(
        offset=wanted.offset, id=wanted.id, bytes=wanted.bytes, crc32c=wanted.crc32c,
        name=name, sha256=sha256,
    )  # fmt: skip


def _lacking(wanted: BackedUpPayload, why: str) -> BackedUpPayload:
    return BackedUpPayload(
        offset=wanted.offset, id=wanted.id, bytes=wanted.bytes, crc32c=wanted.crc32c, failure=why
    )
