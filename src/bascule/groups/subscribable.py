"""The streams of this node, as groups see them."""

from __future__ import annotations

from bascule.model import is_internal_stream
from bascule.replica.partitions import Partitions


class SubscribableStreams:
    """Implements `groups.consumer.Topics`. Used on the event loop."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    @property
    def version(self) -> int:
        return self._partitions.changes

    def find(self, name: str) -> tuple[bytes, int] | None:
        """The id of a stream and how many partitions it has."""
        stream = self._partitions.stream(name)
        return (stream[0].definition.id, len(stream)) if stream else None

    def names(self) -> list[str]:
        """All streams but those of the node itself."""
        return [name for name in self._partitions.streams() if not is_internal_stream(name)]

    def name_of(self, topic_id: bytes) -> str | None:
        stream = self._partitions.stream_by_id(topic_id)
        return stream[0].definition.name if stream else None
