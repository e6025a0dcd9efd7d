"""What an operator, or the settings of a stream, allow to be lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from bascule.metadata.image import Image
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.log_contents import Key, key_of
from bascule.sim.cluster.world.loop import NS

SETTLED_NS: Final = 2 * NS
"""So long after an unclean election, and after the last look at a leader that had not heard of it,
nobody stores anything that is undone again."""


class AllowedLosses:
    """The unclean elections of a run. Records of before one may be lost, and nothing else may."""

    def __init__(self) -> None:
        self.allowed: set[str] = set()
        """Streams for which an operator has allowed them."""
        self._epochs: dict[Key, int] = {}
        self._settled_ns: dict[Key, int] = {}
        """From when on what is sent is to be kept again."""

    def epoch(self, key: Key) -> int:
        """The latest leader epoch that began with an unclean election; 0: none."""
        return self._epochs.get(key, 0)

    @property
    def count(self) -> int:
        """Partitions that had an unclean election."""
        return len(self._epochs)

    def may_lose(self, key: Key, sent_ns: int) -> bool:
        """Whether a message may be lost that was sent first at this time: it was before the last
        unclean election, or while a leader of before it may have been there."""
        return sent_ns < self._settled_ns.get(key, 0)

    def is_outdated(self, partition: Partition, key: Key) -> bool:
        """Whether a replica does not know of the latest unclean election yet, or may not have
        truncated its log to that of its leader."""
        unclean = self.epoch(key)
        if not unclean or partition.log is None:
            return False
        if partition.state is None or partition.state.unclean_epoch < unclean:
            return True
        return not partition.is_leader and partition.log.epochs.latest < unclean

    def look(
        self, partitions: Sequence[Partition], images: Iterable[Image], now_ns: int
    ) -> Collection[Key]:
        """Note the unclean elections; the partitions with a new one. Raises: InvariantBroken."""
        found: dict[Key, int] = {}
        for partition in partitions:
            if partition.state is not None and partition.state.unclean_epoch:
                key = key_of(partition)
                found[key] = max(found.get(key, 0), partition.state.unclean_epoch)
        for image in images:
            for name in self.allowed:
                definition = image.streams.get(name)
                for index, state in enumerate(
                    image.partitions[definition.id] if definition else ()
                ):
                    if state.unclean_epoch:
                        key = name, index
                        found[key] = max(found.get(key, 0), state.unclean_epoch)
        new = [key for key, epoch in found.items() if epoch > self.epoch(key)]
        for key in new:
            if key[0] not in self.allowed:
                raise InvariantBroken(
                    "unclean elections are allowed",
                    f"{key} has one in epoch {found[key]}, and its stream does not allow any",
                )
            self._epochs[key] = found[key]
            self._settled_ns[key] = now_ns + SETTLED_NS
        for partition in partitions:
            if partition.is_leader and self.is_outdated(partition, key_of(partition)):
                self._settled_ns[key_of(partition)] = now_ns + SETTLED_NS
        return new
