"""What a backup is read from; `cluster_source` and `disk_source` have it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from bascule.model import StreamDefinition
from bascule.record.payload_links import PayloadLink


class OtherHistory(Exception):
    """The log has other records now at offsets that were read: an unclean election came between."""

    def __init__(self, *, had: tuple[int, int], has: tuple[int, int]) -> None:
        """(leader epoch, its end offset) of what was read, and of the log."""
        super().__init__(
            f"the log has another history now: it had epoch {had[0]} up to offset {had[1]}, and "
            f"has epoch {has[0]} up to {has[1]}"
        )


class PartitionRead(Protocol):
    """One partition, open for reading."""

    @property
    def start_offset(self) -> int:
        """The log start."""

    @property
    def end_offset(self) -> int:
        """End of what is read."""

    @property
    def latest_epoch(self) -> int:
        """The latest leader epoch of the log, -1 if it is not known."""

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest leader epoch up to `epoch`, its end offset), (-1, -1) if there is none."""

    def read(self, offset: int, *, epoch: int = -1) -> Iterator[memoryview]:
        """Blocks of whole batches from the one that has `offset` on, with good CRCs, up to
        `end_offset` at least. A block is valid until the next one. `epoch` is the leader epoch of
        the batch before `offset` that was read earlier, -1 without one. All blocks are of its
        history. Raises: OtherHistory, with the extent of the log as it is now; OffsetOutOfRange
        where the log starts behind `offset` now."""

    def behind_damage(self, offset: int) -> int | None:
        """Where reading can go on after damage at `offset`, above it; None: nowhere."""

    def read_payload(self, link: PayloadLink) -> Generator[bytes, None, None]:
        """The content of a record's payload, not compared. Raises: UnknownPayload where there is no
        such record any more, or its payload was given up; PayloadDamaged. After both the next call
        reads another copy, if there is one. Broken, PayloadMissing: there is none for now."""

    @property
    def copies(self) -> int:
        """How many copies of a payload there may be."""


class Source(Protocol):
    """Streams to back up. Several threads may open partitions. Every method raises BasculeError
    or OSError."""

    @property
    def address(self) -> str:
        """Where the streams are, for readers of the manifest."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def failure(self) -> str:
        """Why streams may be missing; empty: all are known."""

    def streams(self) -> list[StreamDefinition]: ...

    @property
    def names_all_streams(self) -> bool:
        """Whether a stream that `streams` did not name when it was called last was deleted."""

    def partitions(self, definition: StreamDefinition) -> list[int]:
        """The partitions of a stream that this source has."""

    def open(
        self, definition: StreamDefinition, partition: int
    ) -> AbstractContextManager[PartitionRead]: ...


class ReadExtent(NamedTuple):
    """Offsets that a partition has, the end exclusive."""

    start: int
    end: int
