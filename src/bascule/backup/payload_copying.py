"""Copy the payloads of the records of a backup that earlier backups do not have."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from typing import Final, TypeAlias

from crc32c import crc32c
from msgspec.structs import replace

from bascule.backup.manifest import BackedUpPayload
from bascule.backup.places import Place
from bascule.backup.repository import PAYLOAD_SUFFIX
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

FAILED_MAX: Final = 100
"""Of payloads that fail one after the other; the rest is left to the next backup."""
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
        known = {_key(each): each for each in earlier}
        found: list[BackedUpPayload] = []
        silent, failed = "", 0
        for link in sorted(links, key=lambda link: self._turn(link, known)):
            wanted = _without_file(link)
            before = known.get(_key(wanted))
            if before is not None and before.name:
                each: BackedUpPayload | None = replace(before, offset=link.offset)
            elif before is not None and before.is_settled and link.offset < new_from:
                each = replace(before, offset=link.offset)
            elif silent:
                each = _lacking(wanted, silent)
            else:
                was_replaced = before is not None and before.is_replaced
                try:
                    each = self._try(
                        link, wanted, is_settled=was_replaced and link.offset < new_from
                    )
                except Broken as error:
                    # To wait for each one of them in vain would take for ever.
                    silent = str(error)
                    each = _lacking(wanted, silent)
                failed = failed + 1 if each is not None and each.failure else 0
                if failed == FAILED_MAX and each is not None:
                    silent = each.failure
            if each is None:
                continue
            found.append(each)
            if each.name:
                known[_key(each)] = each
        return tuple(
            each for each in sorted(found, key=lambda each: each.offset)
            if each.offset >= self.log_start
        )  # fmt: skip

    def _turn(
        self, link: PayloadLink, known: Mapping[_Key, BackedUpPayload]
    ) -> tuple[int, PayloadLink]:
        """By offset. What the last backup lacks comes last, in another order in each backup: what
        is lost for good stops nothing else for ever."""
        before = known.get(_key(_without_file(link)))
        if before is None or before.name:
            return 0, link
        return 1 + crc32c(f"{self._backup} {link.payload.id}".encode()), link

    def _try(
        self, link: PayloadLink, wanted: BackedUpPayload, *, is_settled: bool
    ) -> BackedUpPayload | None:
        """A copied payload, or what is said of it; None: its record is below the log start now.

        Raises: Broken if the log does not answer either; UnknownStream; OSError.
        """
        why, tried = "", 0
        while not tried or tried < self._read.copies:
            tried += 1
            try:
                return self._copy(link, wanted)
            except UnknownStream:
                raise
            except (PayloadDamaged, UnknownPayload) as error:
                why = str(error)
            except BasculeError as error:
                why = str(error)
                break
        return self._lost(link, wanted, why, is_settled=is_settled)

    def _copy(self, link: PayloadLink, wanted: BackedUpPayload) -> BackedUpPayload:
        name = (
            f"{self._directory}/{link.offset:020d}-{link.payload.id}-{self._backup}{PAYLOAD_SUFFIX}"
        )
        digest = hashlib.sha256()
        # Closed here, also where the place fails: what the garbage collector closes at the end of
        # the process waits for threads that cannot be started any more.
        with closing(self._checked(link, digest.update)) as chunks:
            self._place.write_chunks(name, chunks)
        self.bytes_written += link.payload.size
        self.files_written += 1
        return replace(wanted, name=name, sha256=digest.hexdigest())

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

    def _lost(
        self, link: PayloadLink, wanted: BackedUpPayload, why: str, *, is_settled: bool
    ) -> BackedUpPayload | None:
        """What the backup says of a payload that nobody has sent; None: its record is below the log
        start now. Raises: Broken, UnknownStream."""
        try:
            block = next(self._read.read(link.offset), None)
            if block is not None and any(link == each for each in links_of(block)):
                return _lacking(wanted, why)
        except OffsetOutOfRange as outside:
            if link.offset < outside.start:
                self.log_start = max(self.log_start, outside.start)
                return None
            return _lacking(wanted, str(outside))
        except (Broken, UnknownStream):
            raise
        except BasculeError:
            return _lacking(wanted, why)
        # Compaction has removed it, maybe after the log was read up to its end. An earlier backup
        # that has found it removed has proved that the record which came later is in this one.
        if is_settled:
            return replace(wanted, is_replaced=True)
        return replace(wanted, is_replaced=True, failure=REPLACED)


_Key: TypeAlias = tuple[str, int, str]


def _key(payload: BackedUpPayload) -> _Key:
    return payload.id, payload.bytes, payload.crc32c


def _without_file(link: PayloadLink) -> BackedUpPayload:
    id, size, crc = link.payload
    return BackedUpPayload(offset=link.offset, id=id, bytes=size, crc32c=f"{crc:08x}")


def _lacking(wanted: BackedUpPayload, why: str) -> BackedUpPayload:
    return replace(wanted, failure=why)
