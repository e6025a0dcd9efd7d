"""A record batch without offset, time and CRC, and the port that appends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bascule.model import StreamDefinition
from bascule.publish.acks import ALL, OnCommitted
from bascule.publish.headers import PublishHeaders


@dataclass(slots=True)
class UnstampedBatch:
    """One v2 batch without base offset, timestamps, leader epoch and CRC.

    Admission may remove records from it before it is stamped.
    """

    data: memoryview
    """The batch; its header, the first 61 bytes, is not written yet."""
    record_count: int
    ack_entries: bytes = b""
    """Ack entries (see `wire._hot`) of the records whose publishers wait for an ack."""
    refused_entries: bytes = b""
    """Ack entries of messages larger than the stream's limit; they have no record."""
    refused_count: int = 0
    headers: PublishHeaders | None = None
    """The publish headers; None where no record has any."""
    on_committed: OnCommitted | None = None
    """For a caller within this process. Of several records with publish headers those that are
    accepted are stored, and `record_count` says then how many; where none is, the caller is told
    why the last one was refused."""
    ack_policies: int = ALL
    """The policies among `ack_entries`: a sum of `acks.ALL`, `LEADER` and `NONE`."""
    attributes: int = 0
    """Of the batch, beside codec and kind of timestamps; see `record.header`."""

    @property
    def is_internal(self) -> bool:
        """Whether these are records of the node itself, which no limit of the stream concerns.

        Those with publish headers are a client's, which this node asked for it.
        """
        return self.on_committed is not None and self.headers is None


class Replica(Protocol):
    """The replica of a partition on this node, as far as callers of `Append` need it."""

    @property
    def definition(self) -> StreamDefinition: ...
    @property
    def index(self) -> int: ...


class Append(Protocol):
    """The only way to append to a log. `replica.log_writer` implements it.

    NATS ingest and internal publishing call it; every other source of batches will, too.
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

        Back pressure: the call never waits, and its queue has no limit. The caller limits the
        memory that it hands over; `on_done` says that this memory is free again.

        Result: acks and error acks for `ack_entries` are sent by NATS. `on_committed` of each batch
        is called with its base offset once it is committed, or with the error. A replica that
        has failed or is deleted refuses every batch in these ways. Nothing is raised.
        """
        ...
