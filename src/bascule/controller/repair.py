"""Repair of a stream: its failed partitions are opened again, also where records are given up.

Giving up the records of a partition is the one act on its files that no decision of the image
records, since it concerns this node's disk alone. What is there is moved to `aside`, and an empty
log takes its place, whole or not at all: it is made in another directory and renamed.
"""

from __future__ import annotations

import logging
from typing import Final

from bascule.controller.directories import StreamDirectories
from bascule.host.api import Clock
from bascule.model import Cleanup, StreamDefinition
from bascule.replica.log_identity import LogIdentity, write_identity
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config
from bascule.storage.truncation.salvage import salvage

log = logging.getLogger("bascule.controller")

_NEW_SUFFIX: Final = ".new"


def keep_readable(
    directories: StreamDirectories,
    clock: Clock,
    definition: StreamDefinition,
    partition: int,
    *,
    is_copied: bool,
) -> bool:
    """Prepare a damaged log so that it opens up to its first damage; False: nothing is left of it.

    `is_copied`: it goes on with the records of another replica; see `salvage`. Raises: OSError.
    """
    config = log_config(definition.config)
    directory = directories.partition(definition.name, partition)
    end = salvage(
        directories.files,
        directory,
        index_interval_bytes=config.index_interval_bytes,
        gaps_allowed=config.gaps_allowed,
        clock=clock,
        is_copied=is_copied,
        others_compact=Cleanup.COMPACT in definition.config.cleanup,
    )
    if end is None:
        return False
    log.warning(
        "records behind the first damage given up",
        extra={
            "stream": definition.name,
            "partition": partition,
            "end_offset": end.offset,
            "segment": end.segment_base,
            "position": end.position,
        },
    )
    return True


def replace_log(
    directories: StreamDirectories,
    clock: Clock,
    definition: StreamDefinition,
    partition: int,
    *,
    since: int,
    start_offset: int,
) -> str | None:
    """Put an empty log that begins at `start_offset` in place of a partition's log. `since` is as
    in its identity.

    Returns where the old directory is now; None: there was none. Raises: OSError, and the partition
    is then failed as before, or its directory is missing.
    """
    files = directories.files
    directory = directories.partition(definition.name, partition)
    new = directory + _NEW_SUFFIX
    if files.exists(new):
        files.remove_tree(new)
    files.make_dirs(new)
    write_identity(files, new, LogIdentity(definition.id, partition, since))
    empty = PartitionLog.open(files, new, log_config(definition.config), clock)
    if start_offset:
        empty.start_at(start_offset, epoch=0)
    empty.close(high_watermark=start_offset)
    moved_to = directories.put_partition_aside(definition.name, partition)
    files.rename(new, directory)
    files.sync_dir(directory.rpartition("/")[0])
    log.warning(
        "records of a partition given up: an empty log takes its place",
        extra={
            "stream": definition.name,
            "partition": partition,
            "start_offset": start_offset,
            "moved_to": moved_to,
        },
    )
    return moved_to
