"""The backups at one place: which there are, and which files each of them has."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from bascule.backup.manifest import (
    DIRECTORY,
    SUFFIX,
    BackedUpPartition,
    BackedUpPayload,
    BackedUpStream,
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_name,
)
from bascule.backup.places import Place
from bascule.errors import (
    BackupPlaceInUse,
    BasculeError,
    ConfigError,
    CorruptData,
    UnsupportedFormat,
)
from bascule.model import StreamDefinition
from bascule.storage.checkpoint import NEW_SUFFIX

STREAMS: Final = "streams"
"""Below it are the files of record batches and of payloads."""
PAYLOAD_SUFFIX: Final = ".payload"
BAD_FILE: Final = frozenset({errno.EIO, errno.EISDIR, errno.EUCLEAN, errno.EBADMSG})
"""Errors of a manifest that count as damage: to remove the file helps."""
_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z(-[0-9]{1,9})?")


def id_order(backup: str) -> tuple[str, int]:
    """(time, number of the backup in it): ids sort by it as the backups began."""
    at, _, number = backup.partition("-")
    return at, int(number) if number.isdecimal() else 1


class UnreadableBackup(NamedTuple):
    """A backup whose manifest cannot be read."""

    id: str
    error: BasculeError


class Repository:
    """The backups at one place."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def ids(self) -> list[str]:
        """All backups, oldest first. Raises: OSError."""
        names = (each.rpartition("/")[2] for each in self.place.names(DIRECTORY))
        ids = (each.removesuffix(SUFFIX) for each in names if each.endswith(SUFFIX))
        return sorted((each for each in ids if _ID.fullmatch(each)), key=id_order)

    def load(self, backup: str) -> Manifest:
        """Raises: CorruptData, UnsupportedFormat, OSError; ConfigError: there is no such one."""
        name = manifest_name(backup)
        path = f"{self.place.address}/{name}"
        try:
            data = self.place.read(name)
        except FileNotFoundError:
            known = ", ".join(self.ids()[-5:]) or "none"
            raise ConfigError(
                f"{self.place.address} has no backup {backup!r}; the last ones: {known}"
            ) from None
        except OSError as error:
            if error.errno not in BAD_FILE:
                raise
            why = error.strerror or str(error)
            raise CorruptData(path, 0, "a file that can be read", why) from error
        return decode_manifest(data, path)

    def load_all(self) -> tuple[list[Manifest], list[UnreadableBackup]]:
        """All backups, oldest first, and those whose manifests cannot be read. One that another
        process removes meanwhile is none. Raises: OSError."""
        return self._load(self.ids())

    def _load(self, ids: Iterable[str]) -> tuple[list[Manifest], list[UnreadableBackup]]:
        found, unreadable = [], []
        for each in ids:
            try:
                found.append(self.load(each))
            except ConfigError:
                continue
            except BasculeError as error:
                unreadable.append(UnreadableBackup(each, error))
        return found, unreadable

    def latest(self) -> Manifest | None:
        """The newest backup; None without any. Raises: as `load`."""
        ids = self.ids()
        return self.load(ids[-1]) if ids else None

    def latest_of(
        self, streams: Collection[StreamDefinition], *, passes_damage: bool = False
    ) -> Manifest | None:
        """The newest backup, with each of `streams` that it lacks as the newest one that has it;
        None without any backup. Older ones that cannot be read are passed over; `passes_damage`:
        the newest ones as well. Raises: as `load`."""
        latest: Manifest | None = None
        found: dict[bytes, BackedUpStream] = {}
        wanted = {each.id for each in streams}
        for each in reversed(self.ids()):
            try:
                manifest = self.load(each)
            except (CorruptData, UnsupportedFormat):
                if latest is None and not passes_damage:
                    raise
                continue
            latest = latest or manifest
            for stream in manifest.streams:
                found.setdefault(stream.decoded().id, stream)
            if wanted <= found.keys():
                break
        return None if latest is None else replace(latest, streams=tuple(found.values()))

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
            behind = tuple(file for file in each.behind if file.name in present)
            each = replace(each, payloads=payloads, behind=behind)
            missing = [file.name for file in each.files if file.name not in present]
            if not missing:
                return each
            return replace(each, files=(), failure=gone(missing[0]))

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

    def left_out(self, manifest: Manifest) -> tuple[list[tuple[str, str]], list[UnreadableBackup]]:
        """(name, backup) of the streams that `manifest` lacks and the newest backup before it that
        has them: they were deleted since, or it is one of chosen streams. Also which of the earlier
        ones cannot be read. Raises: OSError."""
        earlier = [each for each in self.ids() if id_order(each) < id_order(manifest.id)]
        found, unreadable = self._load(reversed(earlier))
        known = {each.decoded().id for each in manifest.streams}
        lacking = []
        for before in found:
            for each in before.streams:
                stream = each.decoded()
                if stream.id not in known:
                    known.add(stream.id)
                    lacking.append((stream.name, before.id))
        return lacking, unreadable

    def add(self, manifest: Manifest, *, known: Collection[str]) -> None:
        """Make the backup count; its files are there already. `known` are the backups that were
        there when it began.

        Raises: BackupPlaceInUse where another one has been added since: it may have the same id,
        and its `keep` may have removed files that this one names. OSError.
        """
        self.check_alone(known)
        name = manifest_name(manifest.id)
        self.place.write(name, encode_manifest(manifest))
        try:
            self.check_alone({*known, manifest.id})  # in a bucket both may have come to this point
        except BackupPlaceInUse:
            self.place.remove(name)
            raise

    def check_alone(self, known: Collection[str]) -> None:
        """Raises: BackupPlaceInUse where there is another backup than the `known` ones; OSError."""
        if later := [each for each in self.ids() if each not in known]:
            raise BackupPlaceInUse(
                self.place.address, f"backup {later[-1]}, which was taken while this one was"
            )

    def forget(self, keep: int, *, own: str = "") -> tuple[int, int]:
        """Remove all backups but the newest `keep` and backup `own`, and the files that no other
        one names, also those of backups that were interrupted. A partition that is not complete in
        any of these, or that none of them names, stays in an older one that has most of it, unless
        its stream was deleted. Nothing is removed where a manifest cannot be read: what it names is
        not known. A backup that is being taken by others fails when it ends.

        Returns the numbers of backups and files that were removed. Raises: as `load`.
        """
        ids = self.ids()
        every = {each: self.load(each) for each in ids}
        manifests = list(every.values())
        needed = _needed({*ids[-keep:], own}, manifests)
        kept = [each for each in manifests if each.id in needed]
        old = [each for each in ids if each not in needed]
        names = {name for each in kept for name in each.names()}
        removed: set[str] = set()
        for each in old:
            gone = every[each].names() - names
            # Its manifest first: one without its files would be damage.
            self.place.remove(manifest_name(each))
            for name in sorted(gone - removed):
                self.place.remove(name)
            removed |= gone
        left = [name for name in self.unnamed(kept) if name not in removed]
        for name in left:
            self.place.remove(name)
        return len(old), len(removed) + len(left)

    def remove_unnamed(self) -> int:
        """Remove the files that no backup names, as interrupted ones leave them; how many. Nobody
        else may take a backup meanwhile. Raises: as `load`."""
        names = self.unnamed([self.load(each) for each in self.ids()])
        for name in names:
            self.place.remove(name)
        return len(names)

    def unnamed(self, manifests: Iterable[Manifest]) -> list[str]:
        """Files that none of all backups names, as one leaves them that was interrupted, sorted.
        Raises: OSError."""
        named = {name for each in manifests for name in each.names()}
        cut = [each for each in self.place.names(DIRECTORY) if each.endswith(SUFFIX + NEW_SUFFIX)]
        return [*cut, *(name for name in self.place.names(STREAMS) if name not in named)]


_Partitions = set[tuple[str, int]]
"""(stream id, partition) of each."""


def _needed(newest: Collection[str], manifests: Sequence[Manifest]) -> set[str]:
    """The ids of those of `manifests`, oldest first, that have to stay so that `newest` can: for
    each partition one that has it complete, or else one that has records of it."""
    needed = set(newest)
    gone = _deleted(manifests)
    # Of a partition that is complete in no backup, what there is of it is kept.
    for measure in (_complete, _complete_or_with_records):
        has = {each.id: measure(each) for each in manifests}
        old = [each.id for each in manifests if each.id not in needed]
        wanted = _union(has[each] for each in old)
        wanted -= _union(has[each.id] for each in manifests if each.id in needed)
        wanted = {each for each in wanted if each[0] not in gone}
        needed |= _newest_with(wanted, old, has)
    return needed


def _union(sets: Iterable[_Partitions]) -> _Partitions:
    return set().union(*sets)


def _complete(manifest: Manifest) -> _Partitions:
    return {key for key, why in manifest.partitions().items() if not why}


def _complete_or_with_records(manifest: Manifest) -> _Partitions:
    return _complete(manifest) | manifest.with_records()


def _deleted(manifests: Iterable[Manifest]) -> set[str]:
    """The ids of the streams that a backup does not name, although it names all that the cluster
    had, and an older one does. Backups of chosen streams, or of a data directory, prove nothing."""
    known: set[str] = set()
    gone: set[str] = set()
    for each in manifests:
        names = {str(stream.definition["id"]) for stream in each.streams}
        if each.names_all_streams:
            gone |= known - names
        known |= names
    return gone


def _newest_with(
    wanted: _Partitions, ids: Sequence[str], has: Mapping[str, _Partitions]
) -> set[str]:
    """Those of `ids`, oldest first, that have `wanted`: one that has all of it, or as many as it
    takes."""
    needed: set[str] = set()
    for each in reversed(ids):
        if wanted and wanted <= has[each]:
            return {each}
    for each in reversed(ids):
        if wanted & has[each]:
            needed.add(each)
            wanted = wanted - has[each]
    return needed
