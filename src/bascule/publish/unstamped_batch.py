"""A record batch that is complete but for its offset, time and CRC, and the port that takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bascule.model import StreamDefinition
from bascule.publish.acks import OnCommitted
from bascule.publish.headers import PublishHeaders


@dataclass(slots=True)
class UnstampedBatch:
    """One v2 batch without base offset, timestamps, leader epoch and CRC.

    Admission may take records out of it before it is stamped.
    """

    data: memoryview
    """The batch; its first 61 bytes, the header, are still to be written."""
    record_count: int
    ack_entries: bytes = b""
    """Ack entries (see `wire._hot`) of the records whose publishers wait for an ack."""
    refused_entries: bytes = b""
    """Ack entries of messages over the stream's size limit; they have no record."""
    refused_count: int = 0
    headers: PublishHeaders | None = None
    """What publishers asked for in headers; None where no record asks for anything."""
    on_committed: OnCommitted | None = None


class Replica(Protocol):
    """A partition's replica on this node, as a caller of `Append` names it."""

    @property
    def definition(self) -> StreamDefinition: ...
    @property
    def index(self) -> int: ...


class Append(Protocol):
    """The one way to the end of a log: `replica.log_writer` implements it.

    NATS ingest and internal publishing call it; so will every other source of batches.
    """

    def __call__(
        self,
        replica: Replica,
        batches: Sequence[UnstampedBatch],
        on_done: Callable[[], None] | None = None,
    ) -> None:
        """Queue `batches` for the end of the replica's log, in order. Any thread may call it.

        Ownership: the memory of `batches` belongs to the log writer until `on_done` is called,
        once for the call, after the last of them is written or refused. The memory may be reused
        then. `on_done` runs on the log writer thread, must not block and must not raise.

        Back pressure: the call never waits and nothing is bounded here. The caller bounds the
        memory it hands over, and `on_done` tells it that this memory is free again.

        Result: acks and error acks leave by NATS for `ack_entries`; `on_committed` of each batch
        hears its base offset once it is committed, or why it never will be. A replica that has
        failed or is deleted refuses every batch in these ways. Nothing is raised.
        """
        ...
