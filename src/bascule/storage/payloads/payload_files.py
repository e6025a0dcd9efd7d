"""The directory of a partition's payloads: which there are, and in which state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from errno import EBADF, EIO
from typing import Final, NamedTuple

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

DIRECTORY: Final = "payloads"
FREE_PART: Final = 20
"""Payloads leave a twentieth of the disk free,"""
FREE_BYTES_MAX: Final = 1 << 30
"""but no more than this."""
READ_BYTES: Final = 1 << 20
_OPEN: Final = re.compile(r"([0-9a-f]{32})\.open")
_MARKS: Final = re.compile(r"([0-9a-f]{32})\.marks")
_WHOLE: Final = re.compile(r"([0-9a-f]{32})-([0-9a-f]{8})\.whole")
_LINKED: Final = re.compile(r"([0-9]{20})-([0-9a-f]{32})-([0-9a-f]{8})\.linked")
_SUMS: Final = re.compile(r"([0-9a-f]{32})\.sums(?:\.new)?")

__all__ = ["DIRECTORY", "FoundPayload", "PayloadFiles", "whole_paths"]


def whole_paths(files: Files, directory: str) -> dict[str, str]:
    """The files of whole payloads of a partition that nobody uses, by id; changes nothing.

    `directory` is that of the partition. Raises: OSError.
    """
    where = f"{directory}/{DIRECTORY}"
    if not files.exists(where):
        return {}
    found = {}
    for name in files.list_dir(where):
        if match := _LINKED.fullmatch(name):
            found[match[2]] = f"{where}/{name}"
        elif match := _WHOLE.fullmatch(name):
            found[match[1]] = f"{where}/{name}"
    return found


class FoundPayload(NamedTuple):
    """A whole payload; `offset` is -1 where no record names it."""

    payload: Payload
    offset: int
    path: str


class PayloadFiles:
    """Any thread may call it; a lock is held for renames and removals, never while content is
    written, read or synced. What only asks what is there takes no lock: the event loop may."""

    def __init__(self, files: Files, directory: str, guard: AbstractContextManager[object]) -> None:
        """`directory` is that of the partition. `guard` is the lock of its log. Raises: OSError."""
        self._files = files
        self.directory = f"{directory}/{DIRECTORY}"
        self._lock = guard
        self._open: set[str] = set()
        self._whole: dict[str, Payload] = {}
        self._linked: dict[str, PayloadLink] = {}
        self._ids: dict[int, str] = {}
        """The payloads of the linked records, by offset."""
        self._present: dict[str, FoundPayload] = {}
        """What `_whole` and `_linked` say together, for those without the lock: a payload changes
        its state with one assignment."""
        self._misnamed: dict[str, str] = {}
        """The paths of files whose names do not say the state of their payloads yet, by id."""
        self._being_linked: frozenset[str] = frozenset()
        """Payloads whose records are appended now. Nobody removes them."""
        self._lost: set[str] = set()
        """Payloads that no replica has."""
        self._finishing: dict[str, list[str]] = {}
        """Payloads that have come and whose names are not on the disk yet: they do not count, and
        nobody discards them. Each with the path of who has come last."""
        self._renames = self._renames_synced = 0
        """How often names have changed, and how many of these changes are on the disk."""
        self.bytes = 0
        """Of the whole ones."""
        self.changes = 0
        """One more whenever records have gained or lost payloads."""
        self._is_closed = False
        self._exists = files.exists(self.directory)
        if self._exists:
            self._load()
            # Names that a process which was killed has changed may be in the page cache only.
            files.sync_dir(directory)
            if self._present:
                files.sync_dir(self.directory)

    def _load(self) -> None:
        marked: list[str] = []
        with_sums: list[tuple[str, str]] = []
        for name in self._files.list_dir(self.directory):
            path = f"{self.directory}/{name}"
            if found := _LINKED.fullmatch(name):
                offset, id, crc = int(found[1]), found[2], int(found[3], 16)
                payload = Payload(id, self._files.size(path), crc)
                if offset in self._ids:
                    # One of the two is of a record that was truncated: a rename has failed then.
                    self._whole[id], self._misnamed[id] = payload, path
                else:
                    self._linked[id], self._ids[offset] = PayloadLink(offset, payload), id
                self.bytes += payload.size
            elif found := _WHOLE.fullmatch(name):
                payload = Payload(found[1], self._files.size(path), int(found[2], 16))
                self._whole[payload.id] = payload
                self.bytes += payload.size
            elif found := _OPEN.fullmatch(name):
                self._open.add(found[1])
            elif found := _MARKS.fullmatch(name):
                marked.append(found[1])
            elif found := _SUMS.fullmatch(name):
                with_sums.append((found[1], path))
        for id in (*self._whole, *self._linked):
            self._note(id)
        for id in marked:
            if id not in self._open:
                self._remove(self._marks_path(id))
        for id, path in with_sums:
            is_half_done = path.endswith(".new")
            if is_half_done or (id not in self._whole and id not in self._linked):
                self._remove(path)

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
        return not (self._open or self._whole or self._linked)

    @property
    def has_unlinked(self) -> bool:
        """Whether there are files that no record names."""
        return bool(self._open or self._whole)

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many are open, whole without a record, and linked."""
        return len(self._open), len(self._whole), len(self._linked)

    @property
    def linked_bytes(self) -> int:
        """Of the payloads that records name."""
        return self.bytes - sum(payload.size for payload in tuple(self._whole.values()))

    def linked_sizes(self) -> list[tuple[int, int]]:
        """The offset and the bytes of each payload that a record names, by offset."""
        links = tuple(self._linked.values())
        return sorted((link.offset, link.payload.size) for link in links)

    def find(self, id: str) -> FoundPayload | None:
        """The whole payload with this id, if it is here."""
        return self._present.get(id)

    def find_at(self, offset: int) -> FoundPayload | None:
        """The payload of the record at `offset`."""
        found = self._present.get(self._ids.get(offset, ""))
        return found if found is not None and found.offset == offset else None

    def _note(self, id: str) -> None:
        """The state of a payload has changed."""
        found = self._found(id)
        if found is None:
            self._present.pop(id, None)
        else:
            self._present[id] = found

    def _found(self, id: str) -> FoundPayload | None:
        link = self._linked.get(id)
        if link is not None:
            return FoundPayload(link.payload, link.offset, self._path_of(id))
        payload = self._whole.get(id)
        return None if payload is None else FoundPayload(payload, -1, self._path_of(id))

    def _path_of(self, id: str) -> str:
        """Where the file of a whole or linked payload is."""
        return self._misnamed.get(id) or self._named_path(id)

    def _unlinked_path(self, id: str) -> str:
        """Where the whole file is that no record names. If it came again, a record names another
        one of the same payload."""
        return self._whole_path(self._whole[id]) if id in self._linked else self._path_of(id)

    def _named_path(self, id: str) -> str:
        """Where it is once its name says its state."""
        link = self._linked.get(id)
        return self._whole_path(self._whole[id]) if link is None else self._linked_path(link)

    def open_whole(self, id: str) -> tuple[Payload, File]:
        """A whole payload and its file, for reading. Raises: PayloadMissing, OSError."""
        with self._lock:  # against a rename between the look and the opening
            found = self._found(id)
            if found is None:
                raise PayloadMissing(id, self.directory)
            return found.payload, self._files.open(found.path, write=False)

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
        a packet of an earlier sender, is cut off. Raises: OSError; it stays open then.
        """
        size = file.size()
        if size > payload.size:
            file.truncate(payload.size)
        elif size < payload.size:
            raise OSError(EIO, f"{size} bytes, expected {payload.size}", file.path)
        file.sync()
        id, path = payload.id, self._whole_path(payload)
        attempt = [path]
        with self._lock:
            self._check_open()
            self._files.rename(self._open_path(id), path)
            self._open.discard(id)
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
            self._note_whole(payload)
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
            self._remove(path)
        raise OSError(EIO, "the payload has come again meanwhile", path)

    def _open_again(self, id: str, attempt: list[str]) -> None:
        """The name of a payload that has come may not be on the disk: it is not whole."""
        [path] = attempt
        with self._lock:
            if self._finishing.get(id) is not attempt:
                return
            del self._finishing[id]
            if self._is_closed or id in self._open or self._is_known(id, path):
                return
            with suppress(OSError):
                self._files.rename(path, self._open_path(id))
                self._open.add(id)

    def _is_known(self, id: str, path: str) -> bool:
        """Whether the file there counts as whole."""
        return id in self._whole and self._unlinked_path(id) == path

    def _note_whole(self, payload: Payload) -> None:
        """A file with the name of a whole payload is on the disk."""
        id, path = payload.id, self._whole_path(payload)
        earlier = self._whole.get(id)
        former = path if earlier is None else self._unlinked_path(id)
        if id not in self._linked:
            self._misnamed.pop(id, None)
        self._whole[id] = payload
        self.bytes += payload.size
        if earlier is not None:
            self.bytes -= earlier.size
        if former != path:
            self._remove(former)
        self._note(id)

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
        """Remove a whole payload that no record names, nor one that is appended now; return its
        bytes. Raises: OSError."""
        with self._lock:
            payload = self._whole.get(id)
            if payload is None or self._is_closed or id in self._being_linked:
                return 0
            self._remove(self._unlinked_path(id))
            self._remove_sums(payload)
            if id not in self._linked:
                self._misnamed.pop(id, None)
            del self._whole[id]
            self._note(id)
            self.bytes -= payload.size
            return payload.size

    def open_ids(self) -> list[str]:
        """Those that are received in part."""
        return list(self._open)

    def whole_ids(self) -> list[str]:
        """Those that no record names."""
        return list(self._whole)

    # -- damage ---------------------------------------------------------------------------------

    def load_sums(self, payload: Payload) -> BlockSums | None:
        """The checksums of a payload's blocks; None if they have not been written, are damaged, or
        cannot be read: the payload itself says then what they are."""
        if payload.size <= BLOCK_BYTES:
            return sums_of_one_block(payload)
        try:
            sums = decode_sums(self._files.read_bytes(self._sums_path(payload.id)))
        except OSError:
            return None
        return sums if sums is not None and sums.crc == payload.crc else None

    def save_sums(self, id: str, sums: BlockSums) -> None:
        """Write the checksums of a payload's blocks, if it has several.

        Where that fails, as on a full disk, they are made again when they are needed: what can be
        made again from the payload must not stop who reads, copies or repairs it.
        """
        if sums.size <= BLOCK_BYTES:
            return
        with self._lock:
            if self._found(id) is None or self._is_closed:
                return
            path = self._sums_path(id)
            new = f"{path}.new"
            try:
                file = self._files.open(new, create=True)
                file.truncate(0)
                file.write_at(0, encode_sums(sums))
                file.close()
                self._files.rename(new, path)
            except OSError:
                with suppress(OSError):
                    self._remove(new)

    def replace(self, file: File, payload: Payload) -> bool:
        """Put a file that `create` has made in the place of a damaged one of a linked payload.

        The caller has compared size and checksum. False if no record names it here; it stays open
        then. Raises: OSError; it stays open then.
        """
        file.sync()
        with self._lock:
            link = self._linked.get(payload.id)
            if link is None:
                return False
            self._check_open()
            self._files.rename(self._open_path(payload.id), self._path_of(payload.id))
            self._open.discard(payload.id)
            self._linked[payload.id] = PayloadLink(link.offset, payload)
            self._note(payload.id)
            self.bytes += payload.size - link.payload.size
        self._files.sync_dir(self.directory)
        return True

    def is_given_up(self, id: str) -> bool:
        """Whether no replica has this payload."""
        return id in self._lost

    # -- links ----------------------------------------------------------------------------------

    def missing(self, links: Iterable[PayloadLink]) -> list[PayloadLink]:
        """Those of `links` whose payloads are not whole here."""
        return [
            link
            for link in links
            if link.payload.id not in self._lost and not self._has(link.payload)
        ]

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

    def _has(self, payload: Payload) -> bool:
        found = self._present.get(payload.id)
        return found is not None and found.payload == payload

    def give_up(self, id: str) -> None:
        """No replica has this payload any more: its record is appended without it."""
        with self._lock:
            self._lost.add(id)

    def link(self, links: Iterable[PayloadLink]) -> None:
        """Records that name payloads have been appended. On the log writer thread.

        A rename that fails is made up for by `settle`.
        """
        with self._lock:
            self.changes += 1
            for link in links:
                id, payload = link.payload.id, link.payload
                if id in self._linked:
                    continue  # a second record of one payload: it lives with the first
                if self._whole.get(id) != payload:
                    continue  # none, or one of another size: its file is damaged
                self._misnamed[id] = self._path_of(id)
                del self._whole[id]
                self._linked[id], self._ids[link.offset] = PayloadLink(link.offset, payload), id
                self._note(id)
            self._rename()

    def _rename(self) -> None:
        """Have names say the states of payloads, as far as the disk lets it."""
        for id, path in tuple(self._misnamed.items()):
            named = self._named_path(id)
            if path != named:
                try:
                    self._files.rename(path, named)
                except OSError:
                    continue
                self._renames += 1
            del self._misnamed[id]
            self._note(id)

    def settle(self) -> None:
        """Sync the names. A checkpoint must not pass a link before. Raises: OSError."""
        with self._lock:
            if self._misnamed:
                self._rename()
            if self._misnamed:
                raise OSError(EIO, "a payload cannot be renamed", self.directory)
            renames = self._renames
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
            for at in [each for each in self._ids if each >= offset]:
                id = self._ids[at]
                self._misnamed[id] = self._path_of(id)
                self._whole[id] = self._linked[id].payload
                del self._ids[at], self._linked[id]
                self._note(id)
            self._rename()

    def remove_linked(self, offsets: Iterable[int]) -> int:
        """Remove the payloads of records that are gone for good; return their bytes.

        Raises: OSError; the next call removes the rest.
        """
        removed = 0
        for offset in offsets:
            with self._lock:  # not for all of them: the log writer and other payloads need it
                id = self._ids.get(offset)
                if id is None:
                    continue
                link = self._linked[id]
                self._remove(self._path_of(id))
                self._remove_sums(link.payload)
                self._misnamed.pop(id, None)
                del self._ids[offset], self._linked[id]
                self.changes += 1
                self._note(id)
                self.bytes -= link.payload.size
            removed += link.payload.size
        return removed

    def linked_offsets(self) -> list[int]:
        """Of all records that have payloads, in their order."""
        return sorted(self._ids)

    def _remove(self, path: str) -> None:
        try:
            self._files.remove(path)
        except FileNotFoundError:
            return

    def _remove_sums(self, payload: Payload) -> None:
        if payload.size > BLOCK_BYTES:
            self._remove(self._sums_path(payload.id))

    def _sums_path(self, id: str) -> str:
        return f"{self.directory}/{id}.sums"

    def _open_path(self, id: str) -> str:
        return f"{self.directory}/{id}.open"

    def _marks_path(self, id: str) -> str:
        return f"{self.directory}/{id}.marks"

    def _whole_path(self, payload: Payload) -> str:
        return f"{self.directory}/{payload.id}-{payload.crc:08x}.whole"

    def _linked_path(self, link: PayloadLink) -> str:
        return (
            f"{self.directory}/{link.offset:020d}-{link.payload.id}-{link.payload.crc:08x}.linked"
        )
