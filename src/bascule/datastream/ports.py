"""What data streaming needs of the rest of the node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from bascule.datastream.protocol.chains import Links
from bascule.errors import Closed, LogFailed
from bascule.record.payload_links import Payload
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.payloads.verified_file import VerifiedFile
from bascule.wire.datastream.messages import OpenPayload, ReplicaAddress


class PayloadPlace(NamedTuple):
    """Where a payload belongs."""

    stream: str
    stream_id: bytes
    partition: int
    leader: int
    """-1 where there is none now."""
    replicas: tuple[ReplicaAddress, ...]
    """Those on nodes that are alive."""
    replica_count: int
    """With those on lost nodes."""
    store: PayloadLog | None
    """This node's; None where it has no replica."""
    all_nodes: tuple[int, ...]
    """Those with replicas, alive or not."""
    high_watermark: int
    """This node's replica has this many committed records, at least."""
    is_confirmed: bool = False
    """Whether this node has asked whether it leads since the question came, and does; the watermark
    is that of then."""

    def confirmed(self, high_watermark: int) -> PayloadPlace:
        """The place, once this node knows that it leads: with the watermark of then."""
        return self._replace(high_watermark=high_watermark, is_confirmed=True)

    @property
    def is_closed(self) -> bool:
        """Whether this node's log was closed since, as one that healed: it is another one now."""
        try:
            if self.store is not None:
                self.store.check_open()
        except Closed:
            return True
        except LogFailed:
            return False  # who uses it hears of that
        return False

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(each.node for each in self.replicas)

    @property
    def racks(self) -> Mapping[int, str]:
        return {each.node: each.rack for each in self.replicas}


class FoundFile(NamedTuple):
    """The payload of a record on this node, or the HTTP address of a node to ask."""

    payload: Payload | None
    """What the record says. The file may be damaged, or gone."""
    elsewhere: str = ""
    """Of another living node with a replica; empty if there is none."""
    open: Callable[[int, int], Awaitable[VerifiedFile]] | None = None
    """Its bytes from one position to another one. Raises: PayloadMissing, PayloadDamaged, OSError;
    Broken where the node stops."""
    on_damage: Callable[[Exception], None] = lambda _: None
    """Damaged bytes were read. Any thread may call it."""


class PayloadCluster(Protocol):
    """Any thread may call it."""

    def place(self, opening: OpenPayload) -> PayloadPlace:
        """Where a payload of a client belongs, by partition, key or subject.

        Raises: UnknownStream, UnknownPartition, PublishRejected.
        """
        ...

    def place_of(self, stream: str, partition: int) -> PayloadPlace:
        """Raises: UnknownStream, UnknownPartition."""
        ...

    def peer_address(self, node: int) -> tuple[str, int] | None:
        """That of a node's peer listener."""
        ...

    def links_between(self, nodes: Collection[int]) -> Links:
        """What is known of the ways between these nodes."""
        ...

    def confirm_leads(self, place: PayloadPlace) -> Future[int]:
        """Ask the cluster whether this node leads a partition; an offset, such that all records
        that were committed before the call are below it.

        The future fails with a BasculeError where it does not lead, or cannot know it.
        """
        ...

    def catch_up_wait(self, place: PayloadPlace, node: int, count: int) -> float:
        """How many seconds `count` bytes of a payload for another node's replica have to wait until
        they are asked for again; 0: they count as sent. Only a replica that is not in sync waits.
        """
        ...

    def link(
        self, place: PayloadPlace, opening: OpenPayload, payload: Payload, nodes: list[int]
    ) -> Future[dict[str, Any]]:
        """Have the leader append the record of a payload that `nodes` have; its ack.

        The future fails with a BasculeError.
        """
        ...


OnFetched = Callable[[Exception | None], None]
"""Called once a payload is whole here, or with the reason why it is not."""
