"""A follower that gets damaged batches says so to its leader, which looks at its own disk."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.errors import BasculeError, Closed, CorruptData
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.partition_log import LogPosition, PartitionLog

log = logging.getLogger("bascule.controller")

DAMAGE: Final = "damage"
"""The kind of control request that says that batches of a leader are damaged."""
ANSWER_SECONDS_MAX: Final = 60.0
"""For the leader to read a segment, and CHECKED_BYTES more."""
CHECKED_BYTES: Final = 17 << 20
"""How much behind an offset is read, at least. A follower appends all that a response has of a
partition or nothing: that are up to 16 MiB (`peer.replica_fetch.FETCH_BYTES_MAX`), of one segment
or more. `PartitionLog.bytes_from` counts up to an index interval too many."""
PAUSE_SECONDS: Final = 5.0
"""Between two accusations of one partition."""


class Accusation(msgspec.Struct, array_like=True):
    """The body of a control request; the answer is empty, or says what the leader has found."""

    stream_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    """Where the batches begin of which at least one is damaged."""


class Accusations:
    """Belongs to the event loop."""

    def __init__(self, node_id: int, partitions: Partitions, peers: Peers) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._peers = peers
        self._accusing: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._checking: set[tuple[bytes, int]] = set()

    def close(self) -> None:
        """Accuse nobody any more."""
        for task in self._accusing.values():
            task.cancel()

    # -- a follower -----------------------------------------------------------------------------

    def on_damaged(self, leader: int, partition: Partition, epoch: int, offset: int) -> None:
        """Batches that a leader has sent are damaged, not for the first time."""
        key = partition.definition.id, partition.index
        if key not in self._accusing:
            accusation = Accusation(*key, epoch, offset)
            task = asyncio.get_running_loop().create_task(
                self._accuse(leader, partition, accusation)
            )
            self._accusing[key] = task
            task.add_done_callback(lambda _: self._accusing.pop(key, None))

    async def _accuse(self, leader: int, partition: Partition, accusation: Accusation) -> None:
        name, index, offset = partition.definition.name, partition.index, accusation.offset
        body = msgspec.msgpack.encode(accusation)
        try:
            found = await self._peers.control(leader, DAMAGE, body, timeout_s=ANSWER_SECONDS_MAX)
        except BasculeError as error:
            log.warning(
                "leader did not look at its damaged batches",
                extra={
                    "stream": name,
                    "partition": index,
                    "leader": leader,
                    "offset": offset,
                    "error": str(error),
                },
            )
        else:
            log.warning(
                "leader sends damaged batches",
                extra={
                    "stream": name,
                    "partition": index,
                    "leader": leader,
                    "offset": offset,
                    "found": found.decode(errors="replace"),
                },
            )
        await asyncio.sleep(PAUSE_SECONDS)

    # -- a leader -------------------------------------------------------------------------------

    async def answer(self, body: bytes) -> bytes:
        """Read what a follower gets damaged; if it is damaged here, see `Partitions.on_damaged`."""
        asked = msgspec.msgpack.decode(body, type=Accusation)
        key = asked.stream_id, asked.partition
        present = self._partitions.stream_by_id(asked.stream_id) or ()
        if asked.partition >= len(present) or key in self._checking:
            return b""
        partition = present[asked.partition]
        store = partition.log
        if not partition.is_leader or partition.failure is not None or store is None:
            return b""
        self._checking.add(key)
        try:
            await asyncio.to_thread(_check, store, asked.offset)
        except CorruptData as error:
            self._partitions.notify_damage(partition, error)
            return str(error).encode()
        except (Closed, OSError) as error:
            return str(error).encode()
        finally:
            self._checking.discard(key)
        log.warning(
            "a follower gets damaged batches that are whole here",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "offset": asked.offset,
            },
        )
        return b"nothing is wrong on the disk of the leader"


def _check(store: PartitionLog, offset: int) -> None:
    """Read from the beginning of the segment that holds `offset` to CHECKED_BYTES behind the
    offset, or to the synced end.

    Raises: CorruptData, Closed, LogFailed, OSError.
    """
    at = store.verify(LogPosition(offset, offset, 0))
    while at is not None and (
        store.bytes_from(offset) - store.bytes_from(at.offset) < CHECKED_BYTES  # or not yet there
    ):
        at = store.verify(at)
