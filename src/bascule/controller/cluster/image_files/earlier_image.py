"""The metadata of a node of an earlier release, which kept its image in a file of its own.

Such a node is taken over into the metadata group at its first start: see `adoption`. The file is
renamed once the group has everything, so that a crash at any point leaves one or the other.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from bascule.cluster_version import OLDEST, TABLES
from bascule.controller import held_partitions
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.directories import STREAMS_DIRECTORY, StreamDirectories
from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.metadata import codec
from bascule.metadata.commands import AdoptDeletions, Command, CreateStream, SetClusterVersion
from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionState
from bascule.storage.epochs import read_epochs

log = logging.getLogger("bascule.controller")

FILE_NAME: Final = "metadata.json"
RETIRED_SUFFIX: Final = ".adopted"
MISSING: Final = "raft/raft.sqlite"
"""What is missing where there are partitions and no metadata."""


class EarlierImage:
    """The file in one data directory. Blocks on the disk."""

    def __init__(self, files: Files, data_directory: str) -> None:
        self._files = files
        self._data = data_directory
        self._path = f"{data_directory}/{FILE_NAME}"

    def load(self, image: Image) -> Image | None:
        """What the file says; None where there is none. `image` is that of the metadata group.

        Raises: CorruptData where the file is damaged, or there are partitions and neither the file
        nor the group knows of any; UnsupportedFormat, OSError.
        """
        if self._files.exists(self._path):
            return codec.decode_image(self._files.read_bytes(self._path), self._path)
        if not image.nodes and self._has_partitions():
            raise CorruptData(
                f"{self._data}/{MISSING}",
                0,
                "the metadata of the streams in this directory",
                "no such file, or an empty one",
            )
        return None

    def latest_epoch(self, image: Image) -> int:
        """The latest leader epoch of all logs of `image`, -1 without any. Raises: OSError."""
        directories = StreamDirectories(self._files, self._data)
        latest = -1
        for name, definition in image.streams.items():
            for index in range(definition.partition_count):
                try:
                    found = read_epochs(self._files, directories.partition(name, index))
                except CorruptData:
                    continue  # The partition will not open.
                latest = max(latest, -1 if found is None else found.latest)
        return latest

    def retire(self) -> None:
        """Rename the file: the metadata group has its content. Raises: OSError."""
        self._files.rename(self._path, self._path + RETIRED_SUFFIX)
        self._files.sync_dir(self._data)

    def _has_partitions(self) -> bool:
        streams = f"{self._data}/{STREAMS_DIRECTORY}"
        if self._files.exists(f"{self._data}/{held_partitions.FILE_NAME}"):
            return True
        return self._files.exists(streams) and bool(self._files.list_dir(streams))


async def take_over(metadata: MetadataGroup, earlier: EarlierImage, *, node_id: int) -> None:
    """Put what a node had as an earlier release into its metadata group; idempotent.

    Raises: CorruptData, UnsupportedFormat, OSError, and as `MetadataGroup.commit`.
    """
    await metadata.lead_alone()
    found = await asyncio.to_thread(earlier.load, metadata.image)
    if found is None:
        return
    epoch = await asyncio.to_thread(earlier.latest_epoch, found)
    if metadata.image.cluster_version < (needed := _version_of(found)):
        await metadata.commit((SetClusterVersion(needed),))
    await metadata.commit(adoption(found, node_id=node_id, leader_epoch=max(epoch, 0)))
    await asyncio.to_thread(earlier.retire)
    log.info("metadata of an earlier release taken over", extra={"streams": len(found.streams)})


def _version_of(image: Image) -> int:
    """The cluster version that the streams need: a restored image may have tables. The node is
    alone, and this release supports it."""
    has_tables = any(
        each.config.table or each.config.table_ttl_ms for each in image.streams.values()
    )
    return TABLES if has_tables else OLDEST


def adoption(image: Image, *, node_id: int, leader_epoch: int) -> tuple[Command, ...]:
    """The commands that put the streams of `image` into a metadata group.

    `node_id` is the only replica of every partition, and enough until other nodes have joined and
    have the others that a stream wants. `leader_epoch` is one that no log is beyond.
    """
    state = PartitionState(
        replicas=(node_id,), isr=(node_id,), leader=NO_LEADER, leader_epoch=leader_epoch,
        version=0, min_isr=1,
    )  # fmt: skip
    return (
        *(
            CreateStream(definition, (state,) * definition.partition_count)
            for _, definition in sorted(image.streams.items())
        ),
        AdoptDeletions(
            tuple((id, deletion.name) for id, deletion in sorted(image.deletions.items())), node_id
        ),
    )
