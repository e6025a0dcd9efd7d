"""The whole payloads of a partition: the records that name each of them, and its files' names.

One payload may have several records: a replica that lags, or compacts later, still has a record
whose payload the leader has removed and received again. All of them share one file, which has the
offset of one of them in its name; each of the others has an empty file of that form. So the names
say all. When the record goes whose name the file has, the file is renamed to that of another one,
over the empty file.

An id may also have several payloads: other content was sent under it once the first was removed on
the leader. Each has a file of its own, and records name it by size and checksum, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from errno import EIO, ENOENT
from typing import Final, NamedTuple

from bascule.host.api import Files
from bascule.record.payload_links import Payload

WHOLE: Final = re.compile(r"([0-9a-f]{32})-([0-9a-f]{8})\.whole")
LINKED: Final = re.compile(r"([0-9]{20})-([0-9a-f]{32})-([0-9a-f]{8})\.linked")
NOT_LINKED: Final = -1

__all__ = [
    "FoundPayload",
    "StoredPayload",
    "StoredPayloads",
    "linked_path",
    "sums_path",
    "whole_path",
]


class FoundPayload(NamedTuple):
    """A whole payload; `offset` is -1 where no record names it."""

    payload: Payload
    offset: int
    path: str


class StoredPayload(NamedTuple):
    """A file of a whole payload."""

    payload: Payload
    offsets: tuple[int, ...]
    """Of the records that name it, ascending."""
    path: str

    @property
    def found(self) -> FoundPayload:
        """With its last record."""
        offset = self.offsets[-1] if self.offsets else NOT_LINKED
        return FoundPayload(self.payload, offset, self.path)


class FileOnDisk(NamedTuple):
    """A file of a whole payload, or the empty one of a further record, by its name."""

    id: str
    crc: int
    offset: int
    """-1: no record names it."""
    path: str
    size: int


def whole_path(directory: str, payload: Payload) -> str:
    """Where a payload is that no record names."""
    return f"{directory}/{payload.id}-{payload.crc:08x}.whole"


def linked_path(directory: str, offset: int, payload: Payload) -> str:
    """Where a payload is that a record names, or the empty file of a further record."""
    return f"{directory}/{offset:020d}-{payload.id}-{payload.crc:08x}.linked"


def sums_path(directory: str, id: str, crc: int) -> str:
    """Where the checksums of a payload's blocks are; see `block_sums`."""
    return f"{directory}/{id}-{crc:08x}.sums"


def file_on_disk(files: Files, directory: str, name: str) -> FileOnDisk | None:
    """None if this is not the name of such a file. Raises: OSError."""
    path = f"{directory}/{name}"
    if found := LINKED.fullmatch(name):
        return FileOnDisk(found[2], int(found[3], 16), int(found[1]), path, files.size(path))
    if found := WHOLE.fullmatch(name):
        return FileOnDisk(found[1], int(found[2], 16), NOT_LINKED, path, files.size(path))
    return None


def with_content(
    files: Iterable[FileOnDisk],
) -> Iterator[tuple[list[FileOnDisk], list[FileOnDisk]]]:
    """For each id and checksum the files that have the content, and those of further records.

    Of empty files only one has the content: that of an empty payload, or of one that was cut.
    """
    by_content: dict[tuple[str, int], list[FileOnDisk]] = defaultdict(list)
    for each in files:
        by_content[each.id, each.crc].append(each)
    for group in by_content.values():
        group.sort(key=lambda each: each.offset)
        content = [each for each in group if each.size] or group[-1:]
        yield content, [each for each in group if each not in content]


class StoredPayloads:
    """Who changes it holds the lock of the payloads; who looks something up need not: a payload
    changes its state with one assignment."""

    def __init__(self, files: Files, directory: str) -> None:
        """`directory` is that of the payloads."""
        self._files = files
        self._directory = directory
        self._by_id: dict[str, tuple[StoredPayload, ...]] = {}
        self._at: dict[int, StoredPayload] = {}
        """By the offsets of records."""
        self._whole: dict[str, None] = {}
        """The ids of payloads that no record names."""
        self._empty: dict[str, set[str]] = {}
        """The paths of the files of further records, by id."""
        self._unwanted: dict[str, set[str]] = {}
        """The paths of files that are to be removed, by id."""
        self._misnamed: dict[str, None] = {}
        """Ids whose files do not have the names yet that say their state."""
        self.renames = 0
        """How often names have changed."""
        self.bytes = 0
        """Of all payloads."""
        self.whole_bytes = 0
        """Of those that no record names."""

    # -- what is there --------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self._by_id

    def of(self, id: str) -> tuple[StoredPayload, ...]:
        """All with an id."""
        return self._by_id.get(id, ())

    def all(self) -> Iterator[StoredPayload]:
        """All of them."""
        for each in tuple(self._by_id.values()):
            yield from each

    def at(self, offset: int) -> StoredPayload | None:
        """That of a record."""
        return self._at.get(offset)

    def find(self, id: str) -> StoredPayload | None:
        """That which the last record names, else the last one that none names."""
        found = self._by_id.get(id)
        if found is None:
            return None
        if len(found) == 1:
            return found[0]
        return max(reversed(found), key=lambda each: each.offsets[-1:])

    def same(self, payload: Payload) -> StoredPayload | None:
        """One with this size and checksum, if possible one that no record names."""
        found = [each for each in self._by_id.get(payload.id, ()) if each.payload == payload]
        return min(found, key=lambda each: each.offsets[-1:], default=None)

    def whole_ids(self) -> list[str]:
        """Those of payloads that no record names."""
        return list(self._whole)

    @property
    def has_whole(self) -> bool:
        return bool(self._whole)

    def offsets(self) -> list[int]:
        """Of all records that name payloads, ascending."""
        return sorted(self._at)

    # -- changes --------------------------------------------------------------------------------

    def load(self, files: Iterable[FileOnDisk]) -> None:
        """Take over what a process before this one has left."""
        for content, further in with_content(files):
            stored = [self._load(each) for each in content][-1]
            for each in further:
                self._empty.setdefault(each.id, set()).add(each.path)
                if each.offset >= 0 and each.offset not in self._at:
                    stored = self._with_offset(stored, each.offset)
            if further:
                self._misnamed[stored.payload.id] = None

    def _load(self, file: FileOnDisk) -> StoredPayload:
        """The payload that has the content of this file now."""
        id, crc = file.id, file.crc
        is_taken = file.offset in self._at
        offsets = (file.offset,) if file.offset >= 0 and not is_taken else ()
        if is_taken:
            # One of the two is of a record that was truncated: a rename has failed then.
            self._misnamed[id] = None
        if not offsets:
            same = [each for each in self.of(id) if not each.offsets and each.payload.crc == crc]
            if same:  # they would have one name
                self.remove_later(id, file.path)
                return same[0]
        stored = StoredPayload(Payload(id, file.size, crc), offsets, file.path)
        self._put(None, stored)
        return stored

    def keep(self, id: str, path: str) -> None:
        """A file that is wanted is there: if one was to be removed there, that is void."""
        self._unwanted.get(id, set()).discard(path)

    def remove_later(self, id: str, path: str) -> None:
        """A file that no payload has is removed with the next names."""
        self._unwanted.setdefault(id, set()).add(path)
        self._misnamed[id] = None

    def add_whole(self, payload: Payload, *, keeps_others: bool = False) -> None:
        """A payload has come, and has got its name some time before. It replaces those of its id
        that no record names.

        `keeps_others`: only those of the same checksum. A record may be appended now that names
        one of the others.

        Where the same content was here before, its file was replaced with that name, and a record
        may have been appended since: it has the file now. Raises: OSError, also if such a record
        has gone with the file.
        """
        path = whole_path(self._directory, payload)
        present = next((each for each in self.of(payload.id) if each.path == path), None)
        if present is not None and present.offsets:  # it could not be renamed for its record yet
            self.replace(present, payload)
            return
        if present is None and not self._files.exists(path):
            if self.same(payload) is None:
                raise OSError(ENOENT, "the payload was removed meanwhile", path)
            return
        replaced = [
            each
            for each in self.of(payload.id)
            if not each.offsets and (not keeps_others or each.payload.crc == payload.crc)
        ]
        self.keep(payload.id, path)
        self._put(None, StoredPayload(payload, (), path))
        for each in replaced:
            self._drop(each, is_replaced=each is present)

    def replace(self, stored: StoredPayload, payload: Payload) -> None:
        """The file of a payload was replaced by one that is right."""
        self._put(stored, stored._replace(payload=payload))

    def link(self, offset: int, payload: Payload) -> bool:
        """A record names a payload; whether it is here."""
        present = self._at.get(offset)
        if present is not None:
            if present.payload == payload:
                return True
            self.unlink(offset)
        stored = self.same(payload)
        if stored is None:
            return False
        self._with_offset(stored, offset)
        self._misnamed[payload.id] = None
        return True

    def unlink(self, offset: int) -> None:
        """The record at an offset is gone. If no other one names its payload, it stays without."""
        stored = self._at[offset]
        rest = tuple(each for each in stored.offsets if each != offset)
        payload = stored.payload
        is_there = not rest and any(
            not each.offsets and each.payload.crc == payload.crc for each in self.of(payload.id)
        )
        if is_there:  # they would have one name
            self._drop(stored)
        else:
            self._put(stored, stored._replace(offsets=rest))
        self._misnamed[payload.id] = None

    def forget(self, stored: StoredPayload) -> None:
        """The file of a payload was removed."""
        self._put(stored, None)

    def _with_offset(self, stored: StoredPayload, offset: int) -> StoredPayload:
        new = stored._replace(offsets=tuple(sorted((*stored.offsets, offset))))
        self._put(stored, new)
        return new

    def _drop(self, stored: StoredPayload, *, is_replaced: bool = False) -> None:
        """Its file is removed with the next names, unless another one has its name already, and
        so are the checksums of its blocks, unless there is another one of its content."""
        payload = stored.payload
        self._put(stored, None)
        if is_replaced:
            return
        self.remove_later(payload.id, stored.path)
        if all(each.payload.crc != payload.crc for each in self.of(payload.id)):
            self.remove_later(payload.id, sums_path(self._directory, payload.id, payload.crc))

    def _put(self, old: StoredPayload | None, new: StoredPayload | None) -> None:
        """Have one in the place of another one of the same id."""
        some = new or old
        assert some is not None
        id = some.payload.id
        others = tuple(each for each in self.of(id) if each is not old)
        contents = others if new is None else (*others, new)
        if old is not None:
            self._count(old, -1)
            for offset in old.offsets:
                if new is None or offset not in new.offsets:
                    del self._at[offset]
        if new is not None:
            self._count(new, 1)
            for offset in new.offsets:
                self._at[offset] = new
        if contents:
            self._by_id[id] = contents
        else:
            self._by_id.pop(id, None)
        if any(not each.offsets for each in contents):
            self._whole[id] = None
        else:
            self._whole.pop(id, None)

    def _count(self, stored: StoredPayload, sign: int) -> None:
        size = sign * stored.payload.size
        self.bytes += size
        if not stored.offsets:
            self.whole_bytes += size

    # -- names ----------------------------------------------------------------------------------

    def rename(self) -> bool:
        """Have names say the states of payloads, as far as the disk lets it; whether all do."""
        for id in tuple(self._misnamed):
            try:
                self._rename(id)
            except OSError:
                continue
            del self._misnamed[id]
        return not self._misnamed

    def _rename(self, id: str) -> None:
        """Raises: OSError."""
        empty, unwanted = self._empty.get(id, set()), self._unwanted.get(id, set())
        wanted: set[str] = set()
        for stored in sorted(self.of(id), key=self._rename_order):
            names = [linked_path(self._directory, each, stored.payload) for each in stored.offsets]
            if not names:
                path = whole_path(self._directory, stored.payload)
            else:
                path = stored.path if stored.path in names else names[-1]
                wanted.update(names)
                wanted.discard(path)
            if path == stored.path:
                continue
            if any(each.path == path for each in self.of(id)):
                raise OSError(EIO, "the name of another payload still", path)
            self._files.rename(stored.path, path)
            self.renames += 1
            empty.discard(path)
            unwanted.discard(path)
            self._put(stored, stored._replace(path=path))
        for paths, gone in ((unwanted, unwanted), (empty, empty - wanted)):
            for path in sorted(gone):
                self._remove(path)
                paths.discard(path)
        for path in sorted(wanted - empty):
            self._files.open(path, create=True).close()
            self.renames += 1
            self._empty.setdefault(id, empty).add(path)
        self._unwanted.pop(id, None)
        if not empty:
            self._empty.pop(id, None)

    def _rename_order(self, stored: StoredPayload) -> int:
        """Those that no record names any more come before those that may get their names, and
        after those that still have a name as if no record named them."""
        if not stored.offsets:
            return 1
        return 0 if stored.path == whole_path(self._directory, stored.payload) else 2

    def _remove(self, path: str) -> None:
        try:
            self._files.remove(path)
        except FileNotFoundError:
            return
        self.renames += 1

    def paths(self) -> list[str]:
        """All files of whole payloads, and those of further records."""
        found = [each.path for each in self.all()]
        for each in tuple(self._empty.values()):
            found += each
        return found
