"""The directories of streams, their removal, and directories of no known stream.

::

    <data>/layout.json            the version of this layout
    <data>/streams/<name>/<n>/    partition n of a stream; its identity file says of which stream
    <data>/removed/<stream id>/   data of a deleted stream, about to be removed
    <data>/removed/<stream id>-<n>/  a partition whose replica moved to another node, likewise
    <data>/aside/<name>.<k>/      a directory found in streams/ that belonged to no known stream
    <data>/aside/<name>-<n>.<k>/  a partition whose records were given up by a repair, or that has
                                  moved away and does not say of which stream it is
    <data>/aside/damage.<k>       bytes of a damaged log that was healed; see `healing`
    <data>/held-partitions        see `held_partitions`
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Collection, Mapping
from typing import Final

from bascule.errors import CorruptData, InvalidName, UnsupportedFormat
from bascule.host.api import Files
from bascule.metadata.image import Deletion, Image
from bascule.model import StreamDefinition
from bascule.replica.log_identity import FILE_NAME as IDENTITY_FILE
from bascule.replica.log_identity import LogIdentity, read_identity
from bascule.storage.checkpoint import NEW_SUFFIX, replace_file

log = logging.getLogger("bascule.controller")

STREAMS_DIRECTORY: Final = "streams"
LAYOUT_FILE_NAME: Final = "layout.json"
FILE_NAME_BYTES_MAX: Final = 255
"""Of most file systems, those of Linux among them."""
PROBED_LENGTH: Final = 100
"""Names from this length on are tried on the file system before a stream gets them. Some, of
encrypted files for example, take 143 bytes and less."""
LAYOUT_FORMAT: Final = "bascule-data"
LAYOUT_VERSION: Final = 2
"""2: each partition has an identity file. 1, without the layout file, had none."""
_UNFINISHED: Final = frozenset({IDENTITY_FILE + NEW_SUFFIX})
"""All that a creation leaves which fails before its identity file is there."""


class StreamDirectories:
    """The stream directories below one data directory. Blocks on the disk."""

    def __init__(self, files: Files, data_directory: str) -> None:
        self.files = files
        self._streams = f"{data_directory}/{STREAMS_DIRECTORY}"
        self._removed = f"{data_directory}/removed"
        self.aside = f"{data_directory}/aside"
        """What nobody uses any more, and nobody has decided to remove."""
        self._layout = f"{data_directory}/{LAYOUT_FILE_NAME}"

    def partition(self, name: str, index: int) -> str:
        """The directory of a partition's log."""
        return f"{self._streams}/{name}/{index}"

    def prepare(self, image: Image) -> None:
        """Make the directories, finish removals, put aside what belongs to no known stream.

        Raises: OSError.
        """
        files = self.files
        files.make_dirs(self._streams)
        files.make_dirs(self._removed)
        # A process that was killed may have left names in the page cache alone: these, `aside` and
        # those of streams.
        files.sync_dir(self._streams.rpartition("/")[0])
        files.sync_dir(self._streams)
        # Everything in there belongs to a recorded deletion.
        for leftover in files.list_dir(self._removed):
            files.remove_tree(f"{self._removed}/{leftover}")
        deleted = {deletion.name for deletion in image.deletions.values()}
        for name in files.list_dir(self._streams):
            if name not in image.streams and name not in deleted:
                try:
                    self._put_aside(name)
                except OSError as error:
                    log.error(
                        "a directory of no known stream cannot be put aside",
                        extra={"directory": f"{self._streams}/{name}", "error": str(error)},
                    )

    def identities_required(self) -> bool:
        """Whether every log has an identity file, so that a missing one means damage.

        Raises: CorruptData, UnsupportedFormat, OSError.
        """
        if not self.files.exists(self._layout):
            return False
        data = self.files.read_bytes(self._layout)
        try:
            content = json.loads(data)
            version = int(content["version"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise CorruptData(
                self._layout, 0, f'JSON of format "{LAYOUT_FORMAT}"', repr(data[:24])
            ) from None
        if version > LAYOUT_VERSION:
            raise UnsupportedFormat(self._layout, version, LAYOUT_VERSION)
        return version == LAYOUT_VERSION

    def require_identities(self) -> None:
        """Persist that every log has an identity file. Raises: OSError."""
        content = {"format": LAYOUT_FORMAT, "version": LAYOUT_VERSION}
        replace_file(self.files, self._layout, json.dumps(content).encode() + b"\n")

    def check_name(self, name: str) -> None:
        """Try a long name on the file system.

        Raises: OSError; InvalidName where the file system takes no name of this length.
        """
        if len(name) >= PROBED_LENGTH:
            self._probe(name)

    def free_name(self, definition: StreamDefinition, deletions: Mapping[bytes, Deletion]) -> None:
        """Move away what another stream has in the directory of a stream that is to be created.

        Data that names a recorded deletion is moved to `removed`, anything else to `aside`.
        Raises: OSError.
        """
        name = definition.name
        directory = f"{self._streams}/{name}"
        if not self.files.exists(directory) or self._has_only(directory, definition.id):
            return
        for stream_id, deleted in deletions.items():
            if deleted.name == name:
                self._move_removed(stream_id, name, is_taken=True)
        if self.files.exists(f"{self._streams}/{name}"):
            self._put_aside(name)

    def _probe(self, name: str) -> None:
        """Make and remove a directory of this name where leftovers are removed at the start."""
        probed = f"{self._removed}/{name}"
        try:
            self.files.make_dirs(probed)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            why = f"{len(name)} characters are too long for the file system of the data directory"
            raise InvalidName("stream name", name, why) from None
        self.files.remove_tree(probed)

    def remove(self, stream_id: bytes, name: str, *, is_taken: bool) -> None:
        """Remove the data of a deleted stream; idempotent.

        `is_taken`: a later stream has the name. What does not say whose it is stays then.
        Raises: OSError.
        """
        self._move_removed(stream_id, name, is_taken=is_taken)
        target = f"{self._removed}/{stream_id.hex()}"
        if self.files.exists(target):
            self.files.remove_tree(target)

    def present(self, names: Collection[str]) -> dict[str, set[int]]:
        """Which partitions of the streams of these names have a directory. Raises: OSError."""
        found = {}
        for name in set(names).intersection(self.files.list_dir(self._streams)):
            entries = self.files.list_dir(f"{self._streams}/{name}")
            found[name] = {int(entry) for entry in entries if entry.isdecimal()}
        return found

    def has_earlier(self, name: str, identity: LogIdentity) -> bool:
        """Whether the log of a partition is of an earlier replica than that of `identity`; False
        where its own identity is damaged. Raises: OSError."""
        try:
            found = read_identity(self.files, self.partition(name, identity.partition))
        except CorruptData:
            return False
        if found is None or found.place != identity.place:
            return False
        return found.since < identity.since

    def remove_partition(self, stream_id: bytes, name: str, index: int) -> str | None:
        """Remove the data of one partition, if it is that of this stream, or what is left of a
        creation that failed; idempotent.

        Data that does not say whose it is may be that of another stream, and is moved to `aside`.
        Returns where it is now; None: there was none. Raises: OSError.
        """
        source = self.partition(name, index)
        target = f"{self._removed}/{stream_id.hex()}-{index}"
        moved_to = None
        if self.files.exists(source):
            try:
                found = read_identity(self.files, source)
                is_known = found is not None or self._is_unfinished(source)
            except CorruptData:
                found, is_known = None, False
            if found is not None and found.stream_id != stream_id:
                return None
            if not is_known:
                moved_to = self.put_partition_aside(name, index)
        if self.files.exists(source):
            if self.files.exists(target):
                self.files.remove_tree(target)
            self.files.rename(source, target)
            self.files.sync_dir(f"{self._streams}/{name}")
        if self.files.exists(target):
            self.files.remove_tree(target)
        return moved_to

    def _is_unfinished(self, directory: str) -> bool:
        """Whether a creation failed before the identity file was there."""
        return _UNFINISHED.issuperset(self.files.list_dir(directory))

    def _move_removed(self, stream_id: bytes, name: str, *, is_taken: bool) -> None:
        """Move a stream's directory to `removed` with one rename, if it belongs to that stream."""
        source, target = f"{self._streams}/{name}", f"{self._removed}/{stream_id.hex()}"
        if not self.files.exists(source):
            return
        if not self._belongs(source, stream_id, is_taken=is_taken):
            return
        if self.files.exists(target):
            self.files.remove_tree(target)
        self.files.rename(source, target)
        self.files.sync_dir(self._streams)

    def _has_only(self, directory: str, stream_id: bytes) -> bool:
        """Whether everything in `directory` is marked as this stream's: an unfinished creation."""
        for index in self.files.list_dir(directory):
            try:
                found = read_identity(self.files, f"{directory}/{index}")
            except CorruptData:
                return False
            if found is None or found.stream_id != stream_id:
                return False
        return True

    def _belongs(self, directory: str, stream_id: bytes, *, is_taken: bool) -> bool:
        """Whether no identity file in `directory` names another stream, and one names this stream
        where another one has the name.

        A directory has the partitions of one stream: see `free_name`. Without a readable identity
        it may be that of the later stream, whose files are damaged.
        """
        is_named = False
        for index in self.files.list_dir(directory):
            try:
                found = read_identity(self.files, f"{directory}/{index}")
            except CorruptData:
                continue
            if found is not None and found.stream_id != stream_id:
                return False
            is_named = is_named or found is not None
        return is_named or not is_taken

    def put_partition_aside(self, name: str, index: int) -> str | None:
        """Move a partition's directory to `aside`; return where it is now, None: there was none.

        Raises: OSError.
        """
        if not self.files.exists(self.partition(name, index)):
            return None
        return self._move_aside(f"{self._streams}/{name}", str(index), f"{name}-{index}")

    def _put_aside(self, name: str) -> None:
        source = f"{self._streams}/{name}"
        target = self._move_aside(self._streams, name, name)
        log.warning(
            "a directory of no known stream is put aside",
            extra={"directory": source, "moved_to": target},
        )

    def _move_aside(self, parent: str, entry: str, name: str) -> str:
        """Move `entry` of the directory `parent` to `aside` under a free name; return its path."""
        files = self.files
        files.make_dirs(self.aside)
        taken = set(files.list_dir(self.aside))
        number = 1
        while (free := _aside_name(name, number)) in taken:
            number += 1
        target = f"{self.aside}/{free}"
        files.rename(f"{parent}/{entry}", target)
        files.sync_dir(parent)
        files.sync_dir(self.aside)
        return target


def _aside_name(name: str, number: int) -> str:
    """The name in `aside`; a directory that somebody else made may have one of any length."""
    suffix = f".{number}"
    while len(f"{name}{suffix}".encode("utf-8", "surrogateescape")) > FILE_NAME_BYTES_MAX:
        name = name[:-1]
    return name + suffix
