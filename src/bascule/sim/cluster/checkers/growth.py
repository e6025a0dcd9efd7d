"""`PartitionGrowth`: streams that get more partitions while messages are sent to them.

While nodes know of different numbers a message may be stored by nobody or twice. Once all know the
same, and nothing fails any more, each message is stored once and acknowledged, and all messages of
a key are in one partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from bascule.metadata.image import Image
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.log_contents import Key, StoredRecord
from bascule.sim.cluster.checkers.losses import AllowedLosses
from bascule.sim.cluster.publishers import Publication
from bascule.sim.cluster.world.loop import NS

ROUTED: Final = "more partitions store each message once"
KNOWN_NS: Final = 3 * NS
"""So long after all nodes know of the partitions they use them."""


class PartitionGrowth:
    """How many partitions the streams of a run have."""

    def __init__(self, partitions: Mapping[str, int], losses: AllowedLosses) -> None:
        """`partitions` is how many each stream is created with."""
        self._counts = dict(partitions)
        self._losses = losses
        self._moving_ns: dict[str, int] = {}
        """Stream -> until when its number of partitions may be known to some nodes only."""
        self._calm_ns = 0
        """From when on nothing fails any more."""

    @property
    def has_grown(self) -> bool:
        return bool(self._moving_ns)

    def may_move(self, stream: str, sent_ns: int) -> bool:
        """Whether nodes may have chosen different partitions for a message that was sent then."""
        if stream not in self._moving_ns:
            return False
        return not self._calm_ns or sent_ns < max(self._calm_ns, self._moving_ns[stream])

    def on_calm(self, now_ns: int) -> None:
        """All nodes run, and nothing fails from now on."""
        self._calm_ns = now_ns + KNOWN_NS

    def on_asked(self, stream: str, now_ns: int) -> None:
        """An operator has asked for more partitions."""
        self._moving_ns[stream] = now_ns + KNOWN_NS

    def look(self, images: Iterable[Image], now_ns: int) -> None:
        """Note how many partitions the nodes know that run."""
        for image in images:
            for name in self._moving_ns:
                definition = image.streams.get(name)
                count = len(image.partitions[definition.id]) if definition else 0
                if count != self._counts[name]:
                    self._counts[name] = max(self._counts[name], count)
                    self._moving_ns[name] = now_ns + KNOWN_NS

    def check(
        self,
        sent: Iterable[Publication],
        logs: Mapping[Key, tuple[int, Mapping[int, StoredRecord]]],
        unrepaired: Collection[Key],
        *,
        is_damaged: bool,
        by_key: bool,
    ) -> None:
        """Check the messages to one stream; `logs` has the start and the records of each partition,
        and none of compacted ones. A damaged replica may lead nobody for a while.

        Raises: InvariantBroken.
        """
        places: dict[bytes | None, list[tuple[Key, int]]] = {}
        for key, (_, records) in logs.items():
            for offset, record in records.items():
                places.setdefault(record.body, []).append((key, offset))
        partitions: dict[bytes, Publication] = {}
        for each in sent:
            key = each.stream, each.partition
            is_known = each.stream in self._moving_ns and key not in unrepaired
            if not is_known or self.may_move(each.stream, each.sent_ns):
                continue
            if self._losses.may_lose(key, each.sent_ns):
                continue
            if each.offset < 0:
                if not is_damaged and not unrepaired:
                    raise InvariantBroken(ROUTED, f"{each.id} got no ack: {each.errors}")
                continue
            if by_key and each.key is not None:
                first = partitions.setdefault(each.key, each)
                if first.partition != each.partition:
                    raise InvariantBroken(
                        ROUTED,
                        f"{first.id} and {each.id} have the key {each.key!r}, and are in the "
                        f"partitions {first.partition} and {each.partition} of {each.stream}",
                    )
            found = [place for place in places.get(each.body, ()) if place[0][0] == each.stream]
            if len(found) > 1:
                raise InvariantBroken(ROUTED, f"{each.id} is at {found}")
