"""What an operator, or the settings of a stream, allow to be lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bascule.metadata.image import Image
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.log_contents import Key, key_of


class AllowedLosses:
    """The unclean elections of a run. Records of before one may be lost, and nothing else may."""

    def __init__(self) -> None:
        self.allowed: set[str] = set()
        """Streams for which an operator has allowed them."""
        self._epochs: dict[Key, int] = {}

    def epoch(self, key: Key) -> int:
        """The latest leader epoch that began with an unclean election; 0: none."""
        return self._epochs.get(key, 0)

    def look(self, partitions: Iterable[Partition], images: Iterable[Image]) -> Collection[Key]:
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
        return new
