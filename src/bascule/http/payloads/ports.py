"""What the handlers of payloads need of the node."""

from __future__ import annotations

from typing import Protocol

from bascule.datastream.ports import FoundFile


class PayloadsAdmin(Protocol):
    """Implemented by `controller`."""

    async def find_file(self, stream: str, partition: int, offset: int) -> FoundFile:
        """Raises: UnknownStream, UnknownPartition, UnknownPayload, PartitionFailed, PayloadMissing,
        CorruptData, OSError."""
        ...

    def bootstrap(self) -> str:
        """The client listeners of the nodes, this one first, as clients name them."""
        ...
