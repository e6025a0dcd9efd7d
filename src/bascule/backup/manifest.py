"""What a backup consists of: one JSON document per backup, which names files of record batches and
of payloads.

Files are shared between backups: a backup names those of the one before it again, and those that
it has added. So each manifest is complete, and the files of one that is given up can be removed
where no other one names them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from crc32c import crc32c

from bascule.errors import BasculeError, CorruptData, UnsupportedFormat
from bascule.metadata.codec import decode_definition, encode_definition
from bascule.model import Cleanup, StreamConfig, StreamDefinition
from bascule.record.payload_links import Payload, PayloadLink

FORMAT: Final = "bascule-backup"
VERSION: Final = 2
"""Backups of version 1 have no payloads."""
DIRECTORY: Final = "manifests"
SUFFIX: Final = ".json"
NOT_THERE: Final = "no part of it is in the backup"
NOT_COMPACTED: Final = -1
"""For `BackedUpPartition.tombstones_ms`."""
RANGES_MAX: Final = 5
"""Of offsets in one text; a compacted log may have thousands."""


class BackedUpFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of whole record batches, back to back, as they are in the log."""

    name: str
    """Path below the repository."""
    first_offset: int
    """Base offset of the first batch."""
    end_offset: int
    """End of the last batch."""
    bytes: int
    sha256: str
    has_payloads: bool = False
    """Whether a record of it has a payload."""


class BackedUpPayload(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a record: a file with its content and nothing else, or why there is none."""

    offset: int
    """Of the record."""
    id: str
    bytes: int
    crc32c: str
    """8 hexadecimal digits, as in the header of the record."""
    name: str = ""
    """Path below the repository; empty: there is no file."""
    sha256: str = ""
    failure: str = ""
    """Why the backup lacks it."""
    is_replaced: bool = False
    """Compaction has removed its record since it was read. Without a failure, the record that came
    later is in the backup."""

    @property
    def is_settled(self) -> bool:
        """Whether nobody needs it: a later record of its key is in the backup."""
        return self.is_replaced and not self.failure

    @property
    def link(self) -> PayloadLink:
        """What its record says. Raises: ValueError for a checksum that is none."""
        return PayloadLink(self.offset, Payload(self.id, self.bytes, int(self.crc32c, 16)))


class BackedUpPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix of one partition's committed records; of a damaged log also what is behind it."""

    partition: int
    start_offset: int
    """The log start: the first offset that readers may request."""
    end_offset: int
    """Everything below was in the log, or compaction had removed it."""
    leader_epoch: int = -1
    """Of the last batch; -1 without any."""
    read_ms: int = 0
    """Unix time at which the last reading began that came to the end, milliseconds; 0: none did."""
    tombstones_ms: int | None = None
    """How long the log has kept tombstones at least since `read_ms`, milliseconds, by the settings
    that backups have seen; NOT_COMPACTED: all of them. None in manifests of earlier releases."""
    files: tuple[BackedUpFile, ...] = ()
    failure: str = ""
    """Why the last backup could not read its log, or only a part; empty: the log is complete."""
    behind: tuple[BackedUpFile, ...] = ()
    """What was read behind damage of the log, above `end_offset`."""
    log_end_offset: int = 0
    """Where a log ended that could be read only in part; 0: not known."""
    log_epoch: int = -1
    """Its latest leader epoch; -1: not known."""
    payloads: tuple[BackedUpPayload, ...] = ()
    """Of the records from `start_offset` on, in their order."""

    @property
    def log_failure(self) -> str:
        """Why the log is not complete, and what of it is there; empty: it is."""
        return self.failure + _behind_text(self.behind) if self.failure else ""

    @property
    def why_incomplete(self) -> str:
        """What is not in the backup, and why; empty: it is complete."""
        return self.log_failure or lacking_text(self.payloads)


class BackedUpStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream and its partitions."""

    definition: dict[str, Any]
    partitions: tuple[BackedUpPartition, ...]

    def decoded(self) -> StreamDefinition:
        """Raises: ValueError and the like where it is no definition; see `decode_manifest`."""
        return decode_definition(self.definition)

    def why_incomplete(self) -> dict[int, str]:
        """Why each partition of the stream is not complete, by index; empty: it is. A data
        directory may lack partitions."""
        found = dict.fromkeys(range(self.decoded().partition_count), NOT_THERE)
        return found | {each.partition: each.why_incomplete for each in self.partitions}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup."""

    id: str
    """When it began, as in 20261123T061530Z; with a suffix if that is not after the last one."""
    at_ms: int
    cluster_id: str
    source: str
    """Where it was read: addresses of nodes, or a data directory."""
    streams: tuple[BackedUpStream, ...]
    failure: str = ""
    """Why streams may be missing: the metadata of a data directory were damaged."""
    names_all_streams: bool = False
    """Whether a stream that it does not name was deleted: it names all that the cluster had. Of
    manifests of earlier releases that is not known."""

    def files(self) -> dict[str, BackedUpFile]:
        """The files of record batches, by name."""
        return {
            file.name: file
            for stream in self.streams
            for partition in stream.partitions
            for file in (*partition.files, *partition.behind)
        }

    def payloads(self) -> dict[str, BackedUpPayload]:
        """The files of payloads, by name."""
        return {
            each.name: each
            for stream in self.streams
            for partition in stream.partitions
            for each in partition.payloads
            if each.name
        }

    def names(self) -> set[str]:
        """All files but the manifest's own."""
        return {*self.files(), *self.payloads()}

    @property
    def bytes(self) -> int:
        """Of all files but the manifest's own."""
        batches = sum(each.bytes for each in self.files().values())
        return batches + sum(each.bytes for each in self.payloads().values())

    @property
    def is_complete(self) -> bool:
        """Whether nothing lacks of the streams that it names, and no stream may be missing."""
        return not self.failure and not self.failures()

    def partitions(self) -> dict[tuple[str, int], str]:
        """(stream id, partition) of the streams that it names, and why each is not complete; empty:
        it is."""
        return {
            (str(stream.definition["id"]), index): why
            for stream in self.streams
            for index, why in stream.why_incomplete().items()
        }

    def with_records(self) -> set[tuple[str, int]]:
        """(stream id, partition) of those of which it has a file of records."""
        return {
            (str(stream.definition["id"]), each.partition)
            for stream in self.streams
            for each in stream.partitions
            if each.files or each.behind
        }

    def failures(self) -> list[tuple[str, int, str]]:
        """(stream, partition, why) of what is not complete."""
        return [
            (str(stream.definition["name"]), index, why)
            for stream in self.streams
            for index, why in stream.why_incomplete().items()
            if why
        ]


def tombstones_ms(config: StreamConfig) -> int:
    """How long a log with these settings keeps tombstones, ms, or NOT_COMPACTED."""
    return config.tombstone_retention_ms if Cleanup.COMPACT in config.cleanup else NOT_COMPACTED


def known_partitions(stream: BackedUpStream, config: StreamConfig) -> list[BackedUpPartition]:
    """The partitions of a backup, with `tombstones_ms` after the settings of the stream have become
    `config`."""
    earlier, now = tombstones_ms(stream.decoded().config), tombstones_ms(config)
    found = []
    for each in stream.partitions:
        kept = each.tombstones_ms
        if kept is None:
            # Of an earlier release. The settings of the last reading that came to the end are
            # known if it was that of this backup.
            kept = 0 if each.failure and earlier != NOT_COMPACTED else earlier
        kept = min((ms for ms in (kept, now) if ms != NOT_COMPACTED), default=NOT_COMPACTED)
        found.append(msgspec.structs.replace(each, tombstones_ms=kept))
    return found


def _behind_text(files: Iterable[BackedUpFile]) -> str:
    """What of the log is in the backup behind damage; empty: nothing."""
    ranges: list[list[int]] = []
    for file in files:
        if ranges and ranges[-1][1] == file.first_offset:
            ranges[-1][1] = file.end_offset
        else:
            ranges.append([file.first_offset, file.end_offset])
    if not ranges:
        return ""
    found = ", ".join(f"{first} to {end - 1}" for first, end in ranges[:RANGES_MAX])
    more = f" and {len(ranges) - RANGES_MAX} more parts" if len(ranges) > RANGES_MAX else ""
    return f"; of what is behind it, offsets {found}{more} are in the backup"


def lacking_text(payloads: Iterable[BackedUpPayload]) -> str:
    """What to say of those of `payloads` that are in no file; empty: all are, or are settled."""
    lacking = [each for each in payloads if not each.name and not each.is_settled]
    if not lacking:
        return ""
    first = lacking[0]
    others = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return f"the payload of offset {first.offset} is not in the backup{others}: {first.failure}"


def backed_up(
    definition: StreamDefinition, partitions: tuple[BackedUpPartition, ...]
) -> BackedUpStream:
    """A stream as it is in a manifest."""
    return BackedUpStream(definition=encode_definition(definition), partitions=partitions)


def manifest_name(backup: str) -> str:
    """The name of the manifest of the backup with this id."""
    return f"{DIRECTORY}/{backup}{SUFFIX}"


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest's file."""
    content = msgspec.json.encode(manifest)
    head = {"format": FORMAT, "version": VERSION, "crc32c": f"{crc32c(content):08x}"}
    document = {**head, "backup": msgspec.Raw(content)}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


class _Document(msgspec.Struct):
    format: str
    version: int
    crc32c: str
    backup: msgspec.Raw


def decode_manifest(data: bytes, name: str) -> Manifest:
    """The manifest in the bytes of a file.

    Raises: CorruptData where the bytes differ from what was written; UnsupportedFormat where a
    newer program wrote them.
    """
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptData(name, 0, f'JSON of format "{FORMAT}"', str(error)) from None
    if document.format != FORMAT:
        raise CorruptData(name, 0, f'format "{FORMAT}"', repr(document.format))
    if document.version > VERSION:
        raise UnsupportedFormat(name, document.version, VERSION)
    found = f"{crc32c(_canonical(document.backup)):08x}"
    if found != document.crc32c:
        raise CorruptData(name, 0, f"crc32c {document.crc32c}", found)
    try:
        manifest = msgspec.json.decode(document.backup, type=Manifest)
        for stream in manifest.streams:
            stream.decoded()
        for payload in manifest.payloads().values():
            payload.link  # noqa: B018
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, BasculeError) as error:
        raise CorruptData(name, 0, "a backup", str(error)) from None
    return manifest


def _canonical(content: msgspec.Raw) -> bytes:
    """Without the white space that makes the file readable."""
    return msgspec.json.format(bytes(content), indent=-1)
