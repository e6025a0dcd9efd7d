"""The directory of a partition's payloads: which there are, and in which state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from errno import EBADF, EIO
from typing import Final

from crc32c import crc32c

from bascule.errors import DiskFull, PayloadMissing
from bascule.host.api import File, Files
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.payloads.block_steps import Steps
from bascule.storage.payloads.block_sums import (
    BLOCK_BYTES,
    BlockSums,
    decode_sums,
    encode_sums,
    sums_of_one_block,
)
from bascule.storage.payloads.part_marks import SYNCED_AT, decode_marks
from bascule.storage.payloads.stored_payloads import (
    FileOnDisk,
    FoundPayload,
    StoredPayload,
    StoredPayloads,
    file_on_disk,
    sums_path,
    whole_path,
    with_content,
)

DIRECTORY: Final = "payloads"
FREE_PART: Final = 20
"""Payloads leave a twentieth of the disk free,"""
FREE_BYTES_MAX: Final = 1 << 30
"""but no more than this."""
READ_BYTES: Final = 1 << 20
_OPEN: Final = re.compile(r"([0-9a-f]{32})\.open")
_MARKS: Final = re.compile(r"([0-9a-f]{32})\.marks")
_SUMS: Final = re.compile(r"([0-9a-f]{32})(?:-([0-9a-f]{8}))?\.sums(?:\.new)?")

__all__ = ["DIRECTORY", "FoundPayload", "PayloadFiles", "whole_paths"]


def whole_paths(files: Files, directory: str) -> dict[tuple[str, int], str]:
    """The files of whole payloads of a partition that nobody uses, by id and CRC-32C; changes
    nothing.

    `directory` is that of the partition. Raises: OSError.
    """
    where = f"{directory}/{DIRECTORY}"
    if not files.exists(where):
        return {}
    found = [file_on_disk(files, where, name) for name in files.list_dir(where)]
    return {
        (each.id, each.crc): each.path
        for content, _ in with_content(each for each in found if each is not None)
        for each in content
    }


class PayloadFiles:
    """Any thread may call it; a lock is held for renames and removals, never while content is
    written, read or synced. What only asks what is there takes no lock: the event loop may."""

    def __init__(self, files: Files, directory: str, guard: AbstractContextManager[object]) -> None:
        """`directory` is that of the partition. `guard` is the lock of its log. Raises: OSError."""
        self._files = files
        self.directory = f"{directory}/{DIRECTORY}"
        self._lock = guard
        self._open: set[str] = set()
        self._stored = StoredPayloads(files, self.directory)
        self._being_linked: frozenset[str] = frozenset()
        """Payloads whose records are appended now. Nobody removes them."""
        self._lost: dict[int, Payload] = {}
        """Payloads of records that no replica has, by offset."""
        self._finishing: dict[str, list[str]] = {}
        """Payloads that have come and whose names are not on the disk yet: they do not count, and
        nobody discards them. Each with the path of who has come last."""
        self._older_sums: set[str] = set()
        """Ids with a file of checksums as releases before this one have named it."""
        self._renames_synced = 0
        """How many changes of names are on the disk."""
        self.changes = 0
        """One more whenever records have gained or lost payloads."""
        self._is_closed = False
        self._exists = files.exists(self.directory)
        if self._exists:
            self._load()
            # Names that a process which was killed has changed may be in the page cache only.
            files.sync_dir(directory)
            if not self._stored.is_empty:
                files.sync_dir(self.directory)

    def _load(self) -> None:
        marked: list[str] = []
        with_sums: list[tuple[str, str | None, str]] = []
        whole: list[FileOnDisk] = []
        for name in self._files.list_dir(self.directory):
            if file := file_on_disk(self._files, self.directory, name):
                whole.append(file)
            elif found := _OPEN.fullmatch(name):
                self._open.add(found[1])
            elif found := _MARKS.fullmatch(name):
                marked.append(found[1])
            elif found := _SUMS.fullmatch(name):
                with_sums.append((found[1], found[2], f"{self.directory}/{name}"))
        self._stored.load(whole)
        for id in marked:
            if id not in self._open:
                self._remove(self._marks_path(id))
        for id, crc, path in with_sums:
            crcs = {f"{each.payload.crc:08x}" for each in self._stored.of(id)}
            if path.endswith(".new") or not crcs or (crc is not None and crc not in crcs):
                self._remove(path)
            elif crc is None:
                self._older_sums.add(id)

    def close(self) -> None:
        """The log is closed, and may be opened again: nothing is received by way of this object any
        more. Who receives something gets an OSError, and asks for the payloads of the other one."""
        with self._lock:
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(EBADF, "the log was closed", self.directory)

    @property
    def is_empty(self) -> bool:
        """Whether there is no file at all."""
        return not self._open and self._stored.is_empty

    @property
    def has_unlinked(self) -> bool:
        """Whether there are files that no record names."""
        return bool(self._open) or self._stored.has_whole

    @property
    def has_lost(self) -> bool:
        """Whether there are records whose payloads no replica has."""
        return bool(self._lost)

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many are open, whole without a record, and linked."""
        linked = [bool(each.offsets) for each in self._stored.all()]
        return len(self._open), linked.count(False), linked.count(True)

    @property
    def bytes(self) -> int:
        """Of the whole ones."""
        return self._stored.bytes

    @property
    def linked_bytes(self) -> int:
        """Of the payloads that records name."""
        return self._stored.bytes - self._stored.whole_bytes

    def linked_sizes(self) -> list[tuple[int, int]]:
        """The offset and the bytes of each payload that a record names, by offset. One that several
        records name counts with the last one."""
        return sorted(
            (each.offsets[-1], each.payload.size) for each in self._stored.all() if each.offsets
        )

    def linked(self) -> list[FoundPayload]:
        """The payloads that records name, each with its last record."""
        return [each.found for each in self._stored.all() if each.offsets]

    def linked_as(self, id: str) -> list[FoundPayload]:
        """Those of them with an id: several where other content was sent under it."""
        return [each.found for each in self._stored.of(id) if each.offsets]

    def whole_file_names(self) -> list[str]:
        """Of whole payloads, and of further records of theirs."""
        return [each.rpartition("/")[2] for each in self._stored.paths()]

    def find(self, id: str) -> FoundPayload | None:
        """A whole payload with this id, if one is here: that which the last record names, or else
        the last one that none names."""
        stored = self._stored.find(id)
        return None if stored is None else stored.found

    def find_at(self, offset: int) -> FoundPayload | None:
        """The payload of the record at `offset`."""
        stored = self._stored.at(offset)
        return None if stored is None else FoundPayload(stored.payload, offset, stored.path)

    def has(self, payload: Payload) -> bool:
        """Whether it is whole here, with this size and checksum."""
        return self._stored.same(payload) is not None

    def open_whole(self, id: str) -> tuple[Payload, File]:
        """What `find` finds, and its file, for reading. Raises: PayloadMissing, OSError."""
        with self._lock:  # against a rename between the look and the opening
            return self._opened(self._stored.find(id), id)

    def open_linked(self, link: PayloadLink) -> tuple[Payload, File]:
        """The payload of a record, and its file; if its file does not name the record, one of the
        same size and checksum. Raises: PayloadMissing, OSError."""
        payload = link.payload
        with self._lock:
            stored = self._stored.at(link.offset)
            if stored is None or stored.payload[::2] != payload[::2]:  # it may have been cut
                stored = self._stored.same(payload)
            return self._opened(stored, payload.id)

    def _opened(self, stored: StoredPayload | None, id: str) -> tuple[Payload, File]:
        if stored is None:
            raise PayloadMissing(id, self.directory)
        return stored.payload, self._files.open(stored.path, write=False)

    # -- receiving ------------------------------------------------------------------------------

    def check_room(self, size: int = 0) -> None:
        """Raises: DiskFull if payloads, with `size` bytes more, would leave too little of the disk
        to the logs; OSError."""
        parent = self.directory.rpartition("/")[0]
        free, total = self._files.room(parent)
        if free - size < min(total // FREE_PART, FREE_BYTES_MAX):
            raise DiskFull(parent, free)

    def create(self, id: str) -> File:
        """The file of a payload that is about to be received, or is received in part.

        Raises: OSError.
        """
        with self._lock:
            self._check_open()
            self._make_directory()
            file = self._files.open(self._open_path(id), create=True)
            self._open.add(id)
            return file

    def create_marks(self, id: str) -> File:
        """The file that says how much of a payload has been received; see `part_marks`.

        Raises: OSError.
        """
        with self._lock:
            self._check_open()
            self._make_directory()
            return self._files.open(self._marks_path(id), create=True)

    def _make_directory(self) -> None:
        if not self._exists:
            self._files.make_dirs(self.directory)
            # An attempt that failed may have left the name in the page cache only.
            self._files.sync_dir(self.directory.rpartition("/")[0])
            self._exists = True

    def recover_part(self, id: str) -> Steps[tuple[int, int]]:
        """How much of a payload is here as its sender has sent it, and the CRC-32C of that. What
        is behind it is cut off at the end; nothing is where the last step is not taken.

        Reads that much of the file. Raises: OSError, also once the log was closed.
        """
        file = self.create(id)
        marks = decode_marks(self.create_marks(id).read_at(0, 2 * SYNCED_AT))
        position, crc = 0, 0
        confirmed = 0, 0
        for end in sorted(marks):
            while position < end:
                if position:
                    yield
                    self._check_open()
                data = file.read_at(position, min(READ_BYTES, end - position))
                if not data:
                    break
                position, crc = position + len(data), crc32c(data, crc)
            if position == end and crc == marks[end]:
                confirmed = end, crc
        if file.size() > confirmed[0]:
            file.truncate(confirmed[0])
        return confirmed

    def finish(self, file: File, payload: Payload) -> None:
        """Sync a file that has all bytes of its payload, and its name; it is whole on return, and
        not before.

        The caller has compared size and checksum. What the file has behind them, such as a part of
        a packet of an earlier sender, is cut off. Raises: OSError; it stays open then, unless it
        has come again, or was linked and removed meanwhile.
        """
        size = file.size()
        if size > payload.size:
            file.truncate(payload.size)
        elif size < payload.size:
            raise OSError(EIO, f"{size} bytes, expected {payload.size}", file.path)
        file.sync()
        id, path = payload.id, whole_path(self.directory, payload)
        attempt = [path]
        with self._lock:
            self._check_open()
            self._files.rename(self._open_path(id), path)
            self._open.discard(id)
            self._stored.keep(id, path)
            self._finishing[id] = attempt
        try:
            # Records are appended and synced as soon as it counts as whole.
            self._files.sync_dir(self.directory)
        except OSError:
            self._open_again(id, attempt)
            raise
        with self._lock:
            self._check_open()
            self._end_attempt(id, attempt)
            self._stored.add_whole(payload, keeps_others=id in self._being_linked)
            self._stored.rename()
            if id not in self._open:
                self._remove(self._marks_path(id))

    def _end_attempt(self, id: str, attempt: list[str]) -> None:
        """The name of a payload is on the disk. Raises: OSError if it has come again since: what
        came last counts."""
        latest, [path] = self._finishing.get(id), attempt
        if latest is attempt:
            del self._finishing[id]
            return
        if latest != attempt and not self._is_known(id, path):  # else its file was replaced
            self._stored.remove_later(id, path)
            self._stored.rename()
        raise OSError(EIO, "the payload has come again meanwhile", path)

    def _open_again(self, id: str, attempt: list[str]) -> None:
        """The name of a payload that has come may not be on the disk: it is not whole. If it
        cannot get its name from before, it is removed."""
        [path] = attempt
        with self._lock:
            latest = self._finishing.get(id)
            if latest is attempt:
                del self._finishing[id]
            if self._is_closed or self._is_known(id, path):
                return
            if latest is not attempt and latest == attempt:  # its file was replaced
                return
            if latest is attempt and id not in self._open:
                with suppress(OSError):
                    self._files.rename(path, self._open_path(id))
                    self._open.add(id)
                    return
            self._stored.remove_later(id, path)
            self._stored.rename()

    def _is_known(self, id: str, path: str) -> bool:
        """Whether the file there counts as whole."""
        return any(each.path == path for each in self._stored.of(id))

    def discard(self, id: str) -> int:
        """Remove what was received of a payload; return its bytes. Raises: OSError."""
        with self._lock:
            path, size = self._open_path(id), 0
            if id in self._open and not self._is_closed:
                if self._files.exists(path):
                    size = self._files.size(path)
                    self._files.remove(path)
                self._open.discard(id)
                self._remove(self._marks_path(id))
            return size

    def discard_whole(self, id: str) -> int:
        """Remove whole payloads that no record names, nor one that is appended now; return their
        bytes. Raises: OSError."""
        with self._lock:
            if self._is_closed or id in self._being_linked:
                return 0
            removed = 0
            for each in self._stored.of(id):
                if not each.offsets:
                    removed += self._remove_payload(each)
            return removed

    def _remove_payload(self, stored: StoredPayload) -> int:
        """Remove the file of a payload; return its bytes. Raises: OSError; the file is there then,
        for it counts as whole."""
        payload = stored.payload
        others = [each for each in self._stored.of(payload.id) if each is not stored]
        if payload.size > BLOCK_BYTES and all(each.payload.crc != payload.crc for each in others):
            self._remove(sums_path(self.directory, payload.id, payload.crc))
        if not others and payload.id in self._older_sums:
            self._remove(self._older_sums_path(payload.id))
            self._older_sums.discard(payload.id)
        if self._finishing.get(payload.id) != [stored.path]:  # else one that has come is there
            self._remove(stored.path)
        self._stored.forget(stored)
        return payload.size

    def open_ids(self) -> list[str]:
        """Those that are received in part."""
        return list(self._open)

    def whole_ids(self) -> list[str]:
        """Those that no record names."""
        return self._stored.whole_ids()

    # -- damage ---------------------------------------------------------------------------------

    def load_sums(self, payload: Payload) -> BlockSums | None:
        """The checksums of a payload's blocks; None if they have not been written, are damaged, or
        cannot be read: the payload itself says then what they are."""
        if payload.size <= BLOCK_BYTES:
            return sums_of_one_block(payload)
        paths = [sums_path(self.directory, payload.id, payload.crc)]
        if payload.id in self._older_sums:
            paths.append(self._older_sums_path(payload.id))
        for path in paths:
            with suppress(OSError):
                sums = decode_sums(self._files.read_bytes(path))
                if sums is not None and sums.crc == payload.crc:
                    return sums
        return None

    def save_sums(self, id: str, sums: BlockSums) -> None:
        """Write the checksums of a payload's blocks, if it has several.

        Where that fails, as on a full disk, they are made again when they are needed: what can be
        made again from the payload must not stop who reads, copies or repairs it.
        """
        if sums.size <= BLOCK_BYTES:
            return
        with self._lock:
            is_there = any(each.payload.crc == sums.crc for each in self._stored.of(id))
            if not is_there or self._is_closed:
                return
            path = sums_path(self.directory, id, sums.crc)
            new = f"{path}.new"
            try:
                file = self._files.open(new, create=True)
                file.truncate(0)
                file.write_at(0, encode_sums(sums))
                file.close()
                self._files.rename(new, path)
                self._stored.keep(id, path)
            except OSError:
                with suppress(OSError):
                    self._remove(new)

    def replace(self, file: File, link: PayloadLink) -> bool:
        """Put a file that `create` has made in the place of the damaged one of a record.

        The caller has compared size and checksum. False if the record has none here; it stays open
        then. Raises: OSError; it stays open then.
        """
        payload = link.payload
        file.sync()
        with self._lock:
            stored = self._stored.at(link.offset)
            if stored is None or stored.payload[::2] != payload[::2]:
                return False
            self._check_open()
            self._files.rename(self._open_path(payload.id), stored.path)
            self._open.discard(payload.id)
            self._stored.replace(stored, payload)
        self._files.sync_dir(self.directory)
        return True

    def is_given_up(self, link: PayloadLink) -> bool:
        """Whether no replica has the payload of this record."""
        return self._lost.get(link.offset) == link.payload

    # -- links ----------------------------------------------------------------------------------

    def missing(self, links: Iterable[PayloadLink]) -> list[PayloadLink]:
        """Those of `links` whose payloads are not whole here."""
        return [link for link in links if not self.has(link.payload) and not self.is_given_up(link)]

    @contextmanager
    def keeping(self, links: Iterable[PayloadLink]) -> Iterator[None]:
        """Keep the payloads of records that are about to be appended. On the log writer thread."""
        ids = frozenset(link.payload.id for link in links)
        with self._lock:  # who removes one has done it, or finds it here
            self._being_linked = ids
        try:
            yield
        finally:
            self._being_linked = frozenset()

    def give_up(self, link: PayloadLink) -> None:
        """No replica has this payload any more: its record is appended without it. A later record
        of the same payload is not."""
        with self._lock:
            self._lost[link.offset] = link.payload

    def link(self, links: Iterable[PayloadLink]) -> None:
        """Records that name payloads have been appended. On the log writer thread.

        One whose payload is missing, or of another size since its file is damaged, has none. A
        rename that fails is made up for by `settle`.
        """
        with self._lock:
            self.changes += 1
            for link in links:
                if self._stored.link(link.offset, link.payload):
                    self._lost.pop(link.offset, None)
            self._stored.rename()

    def settle(self) -> None:
        """Sync the names. A checkpoint must not pass a link before. Raises: OSError."""
        with self._lock:
            if not self._stored.rename():
                raise OSError(EIO, "a payload cannot be renamed", self.directory)
            renames = self._stored.renames
        # Whoever else syncs them now may not be done yet.
        if renames > self._renames_synced:
            self._files.sync_dir(self.directory)
            with self._lock:
                self._renames_synced = max(self._renames_synced, renames)

    def unlink_from(self, offset: int) -> None:
        """The records from `offset` on are gone, and may come back.

        A rename that fails is made up for by `settle`.
        """
        with self._lock:
            self.changes += 1
            for at in self._stored.offsets():
                if at >= offset:
                    self._stored.unlink(at)
            for at in [each for each in self._lost if each >= offset]:
                del self._lost[at]
            self._stored.rename()

    def unlink(self, link: PayloadLink) -> None:
        """A record that was linked late is gone."""
        with self._lock:
            stored = self._stored.at(link.offset)
            if stored is not None and stored.payload == link.payload:
                self.changes += 1
                self._stored.unlink(link.offset)
                self._stored.rename()

    def remove_linked(self, offsets: Iterable[int]) -> int:
        """Remove the payloads of records that are gone for good; return their bytes. One that
        another record names stays, also if that is appended now.

        Raises: OSError where some could not be removed, after all others; the next call removes
        these.
        """
        removed = 0
        failure: OSError | None = None
        for offset in offsets:
            with self._lock:  # not for all of them: the log writer and other payloads need it
                stored = self._stored.at(offset)
                if stored is None:
                    continue
                self.changes += 1
                try:
                    if len(stored.offsets) > 1 or stored.payload.id in self._being_linked:
                        self._stored.unlink(offset)
                        self._stored.rename()
                    else:
                        removed += self._remove_payload(stored)
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure
        return removed

    def forget_lost_below(self, offset: int) -> None:
        """The records below `offset` are gone, with what is known of their lost payloads."""
        with self._lock:
            for at in [each for each in self._lost if each < offset]:
                del self._lost[at]

    def linked_offsets(self) -> list[int]:
        """Of all records that have payloads, in their order."""
        return self._stored.offsets()

    def _remove(self, path: str) -> None:
        try:
            self._files.remove(path)
        except FileNotFoundError:
            return

    def _older_sums_path(self, id: str) -> str:
        return f"{self.directory}/{id}.sums"

    def _open_path(self, id: str) -> str:
        return f"{self.directory}/{id}.open"

    def _marks_path(self, id: str) -> str:
        return f"{self.directory}/{id}.marks"
