"""The backups at one place: which there are, and which files each of them has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

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
from bascule.backup.places import Place
from bascule.errors import BackupPlaceInUse, BasculeError, ConfigError
from bascule.model import StreamDefinition

STREAMS: Final = "streams"
"""Below it are the files of record batches and of payloads."""
PAYLOAD_SUFFIX: Final = ".payload"
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
        try:
            data = self.place.read(name)
        except FileNotFoundError:
            known = ", ".join(self.ids()[-5:]) or "none"
            raise ConfigError(
                f"{self.place.address} has no backup {backup!r}; the last ones: {known}"
            ) from None
        return decode_manifest(data, f"{self.place.address}/{name}")

    def load_all(self) -> tuple[list[Manifest], list[UnreadableBackup]]:
        """All backups, oldest first, and those whose manifests cannot be read. One that another
        process removes meanwhile is none. Raises: OSError."""
        found, unreadable = [], []
        for each in self.ids():
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
        self._check_alone(known)
        name = manifest_name(manifest.id)
        self.place.write(name, encode_manifest(manifest))
        try:
            self._check_alone({*known, manifest.id})  # in a bucket both may have come to this point
        except BackupPlaceInUse:
            self.place.remove(name)
            raise

    def _check_alone(self, known: Collection[str]) -> None:
        if later := [each for each in self.ids() if each not in known]:
            raise BackupPlaceInUse(
                self.place.address, f"backup {later[-1]}, which was taken while this one was"
            )

    def forget(self, keep: int) -> tuple[int, int]:
        """Remove all backups but the newest `keep`, and the files below `streams/` that no other
        one names, also those of backups that were interrupted. The newest one that is complete
        stays as well. Nothing is removed where a manifest cannot be read: what it names is not
        known. A backup that is being taken by others fails when it ends.

        Returns the numbers of backups and files that were removed. Raises: as `load`.
        """
        ids = self.ids()
        every = {each: self.load(each) for each in ids}
        kept = [every[each] for each in ids[-keep:]]
        old = ids[:-keep]
        if not any(each.is_complete for each in kept):
            for each in reversed(old):
                if every[each].is_complete:
                    kept.insert(0, every[each])
                    old.remove(each)
                    break
        names = {name for each in kept for name in each.names()}
        removed: set[str] = set()
        for each in old:
            gone = every[each].names() - names
            # Its manifest first: one without its files would be damage.
            self.place.remove(manifest_name(each))
            for name in sorted(gone - removed):
                self.place.remove(name)
            removed |= gone
        for name in sorted(set(self.place.names(STREAMS)) - names - removed):
            self.place.remove(name)
            removed.add(name)
        return len(old), len(removed)

    def unnamed(self, manifests: Iterable[Manifest]) -> list[str]:
        """Files that none of all backups names, as one leaves them that was interrupted, sorted.
        Raises: OSError."""
        named = {name for each in manifests for name in each.names()}
        return [name for name in self.place.names(STREAMS) if name not in named]
