"""Removes what a node has stored of streams and replicas, and the notes that it holds them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping

from bascule.controller.directories import StreamDirectories
from bascule.controller.held_partitions import HeldPartitions
from bascule.errors import BasculeError
from bascule.model import StreamDefinition
from bascule.replica.log_identity import LogIdentity

log = logging.getLogger("bascule.controller")


class ReplicaRemoval:
    """Each removal may be repeated: what is removed already does not matter."""

    def __init__(self, directories: StreamDirectories, held: HeldPartitions) -> None:
        self._directories = directories
        self._held = held
        self._unfinished: set[tuple[bytes, int]] = set()
        """Stream id and partition of removals that failed. The next start finishes them, too."""

    def remove_stream(self, stream_id: bytes, name: str, *, is_taken: bool) -> None:
        """Remove the data of a deleted stream. Blocks on the disk.

        `is_taken`: a later stream has the name. Raises: OSError.
        """
        self._directories.remove(stream_id, name, is_taken=is_taken)
        self._held.release(stream_id)

    def remove_earlier(self, definition: StreamDefinition, since: Mapping[int, int]) -> None:
        """Remove logs of replicas that moved away and came back while this node was down.

        `since` has, by index, the version of the state that made this node a replica again. Blocks
        on the disk. Raises: OSError.
        """
        for index, version in since.items():
            identity = LogIdentity(definition.id, index, version)
            if self._directories.has_earlier(definition.name, identity):
                self._remove_replica(definition, index)

    async def remove_replicas(
        self,
        definition: StreamDefinition,
        indexes: Collection[int],
        failures: dict[bytes, Exception],
    ) -> set[int]:
        """Remove the data of partitions that the image gives to other nodes; which are removed.

        Failures get into `failures`, by stream id.
        """
        removed = set()
        for index in sorted(indexes):
            try:
                await asyncio.to_thread(self._remove_replica, definition, index)
            except (OSError, BasculeError) as error:
                failures[definition.id] = error
                log.error(
                    "data of a replica that has moved away not removed; it is tried again",
                    extra={"stream": definition.name, "partition": index, "error": str(error)},
                )
                continue
            removed.add(index)
        return removed

    def left_of(self, definition: StreamDefinition, indexes: Iterable[int]) -> set[int]:
        """Which of these partitions are noted as held here, or not all removed. Others may have a
        directory."""
        id = definition.id
        return {i for i in indexes if self._held.holds(id, i) or (id, i) in self._unfinished}

    def _remove_replica(self, definition: StreamDefinition, index: int) -> None:
        self._unfinished.add((definition.id, index))
        # First: a replica that comes back finds its old log and removes it, but a log that is held
        # and is not there is taken for lost.
        self._held.drop(definition.id, index)
        moved_to = self._directories.remove_partition(definition.id, definition.name, index)
        self._unfinished.discard((definition.id, index))
        if moved_to is not None:
            log.warning(
                "data of a replica that has moved away is put aside: its identity is not readable",
                extra={"stream": definition.name, "partition": index, "moved_to": moved_to},
            )
            return
        log.info(
            "replica removed; its partition is on other nodes",
            extra={"stream": definition.name, "partition": index},
        )
