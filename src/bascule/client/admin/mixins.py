"""The methods of administration, as the two clients offer them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Literal, TypeVar, Unpack

from bascule.client.admin.api import Admin, PurgedPartition
from bascule.client.admin.settings import AlterableSettings, StreamSettings
from bascule.model import CommittedOffset, NodeInfo, StreamInfo

T = TypeVar("T")


class AdminMixin:
    """Streams and the node, as the asynchronous client offers them."""

    def _opened(self) -> Admin:
        raise NotImplementedError

    async def node(self) -> NodeInfo:
        """The node: its doors, version, state."""
        return await self._opened().node()

    async def metrics(self) -> str:
        """The node's numbers in Prometheus text form."""
        return await self._opened().metrics()

    async def streams(self) -> list[StreamInfo]:
        """All streams, by name; a leading underscore marks the node's own."""
        return await self._opened().streams()

    async def stream(self, name: str) -> StreamInfo:
        """One stream and its partitions now. Raises: UnknownStream."""
        return await self._opened().stream(name)

    async def create_stream(
        self, name: str, subject: str, **settings: Unpack[StreamSettings]
    ) -> tuple[StreamInfo, bool]:
        """Make a subject durable; what is left out is the node's default. Idempotent.

        Returns the stream and whether this call created it. Raises: StreamConflict where the name
        is taken by another configuration, InvalidName, ConfigError.
        """
        return await self._opened().create_stream(name, subject, **settings)

    async def alter_stream(self, name: str, **settings: Unpack[AlterableSettings]) -> StreamInfo:
        """Change settings of a stream; what is left out stays. Partitions can only be added.

        Raises: UnknownStream, CannotAlter, ConfigError, InternalStream.
        """
        return await self._opened().alter_stream(name, **settings)

    async def pause_stream(self, name: str) -> StreamInfo:
        """Have a stream refuse messages until it is resumed; reading goes on. Idempotent.

        Raises: UnknownStream, InternalStream.
        """
        return await self._opened().pause_stream(name)

    async def resume_stream(self, name: str) -> StreamInfo:
        """Have a stream take messages again. Idempotent. Raises: UnknownStream, InternalStream."""
        return await self._opened().resume_stream(name)

    async def purge_stream(
        self,
        name: str,
        *,
        to_offset: int | None = None,
        before_ms: int | None = None,
        partition: int | None = None,
    ) -> list[PurgedPartition]:
        """Remove a stream's oldest records for good: those before an offset, those older than a
        Unix time in milliseconds, or, with neither, all that are committed.

        `partition` None is every partition; an offset needs one where there are several. Returns
        what each partition starts with now, which readers see at once.

        Raises: UnknownStream, InternalStream, RequestFailed for an offset that is not held.
        """
        return await self._opened().purge_stream(
            name, to_offset=to_offset, before_ms=before_ms, partition=partition
        )

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and everything in it. Raises: UnknownStream, InternalStream."""
        await self._opened().delete_stream(name)

    async def offsets(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """How far consumers have come: every commit, or those of a consumer or for a stream."""
        return await self._opened().offsets(consumer=consumer, stream=stream)

    async def reset_offsets(
        self,
        consumer: str,
        stream: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> list[CommittedOffset]:
        """Have a consumer go on from an end, an offset or a Unix time; give exactly one of them.

        `partition` None is every partition. A consumer that runs meanwhile commits over it: stop
        it first. Raises: UnknownStream, InvalidName, OffsetOutOfRange.
        """
        return await self._opened().reset_offsets(
            consumer,
            stream,
            to=to,
            offset=offset,
            timestamp_ms=timestamp_ms,
            partition=partition,
        )

    async def remove_offsets(
        self, consumer: str, *, stream: str | None = None, partition: int | None = None
    ) -> int:
        """Forget a consumer's commits, of all streams where none is named; how many there were."""
        return await self._opened().remove_offsets(consumer, stream=stream, partition=partition)


class SyncAdminMixin:
    """The same for the blocking client."""

    _async_admin: AdminMixin

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def node(self) -> NodeInfo:
        """See `AdminMixin.node`."""
        return self._run(self._async_admin.node())

    def metrics(self) -> str:
        """See `AdminMixin.metrics`."""
        return self._run(self._async_admin.metrics())

    def streams(self) -> list[StreamInfo]:
        """See `AdminMixin.streams`."""
        return self._run(self._async_admin.streams())

    def stream(self, name: str) -> StreamInfo:
        """See `AdminMixin.stream`."""
        return self._run(self._async_admin.stream(name))

    def create_stream(
        self, name: str, subject: str, **settings: Unpack[StreamSettings]
    ) -> tuple[StreamInfo, bool]:
        """See `AdminMixin.create_stream`."""
        return self._run(self._async_admin.create_stream(name, subject, **settings))

    def alter_stream(self, name: str, **settings: Unpack[AlterableSettings]) -> StreamInfo:
        """See `AdminMixin.alter_stream`."""
        return self._run(self._async_admin.alter_stream(name, **settings))

    def pause_stream(self, name: str) -> StreamInfo:
        """See `AdminMixin.pause_stream`."""
        return self._run(self._async_admin.pause_stream(name))

    def resume_stream(self, name: str) -> StreamInfo:
        """See `AdminMixin.resume_stream`."""
        return self._run(self._async_admin.resume_stream(name))

    def purge_stream(
        self,
        name: str,
        *,
        to_offset: int | None = None,
        before_ms: int | None = None,
        partition: int | None = None,
    ) -> list[PurgedPartition]:
        """See `AdminMixin.purge_stream`."""
        return self._run(
            self._async_admin.purge_stream(
                name, to_offset=to_offset, before_ms=before_ms, partition=partition
            )
        )

    def delete_stream(self, name: str) -> None:
        """See `AdminMixin.delete_stream`."""
        self._run(self._async_admin.delete_stream(name))

    def offsets(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """See `AdminMixin.offsets`."""
        return self._run(self._async_admin.offsets(consumer=consumer, stream=stream))

    def reset_offsets(
        self,
        consumer: str,
        stream: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> list[CommittedOffset]:
        """See `AdminMixin.reset_offsets`."""
        return self._run(
            self._async_admin.reset_offsets(
                consumer,
                stream,
                to=to,
                offset=offset,
                timestamp_ms=timestamp_ms,
                partition=partition,
            )
        )

    def remove_offsets(
        self, consumer: str, *, stream: str | None = None, partition: int | None = None
    ) -> int:
        """See `AdminMixin.remove_offsets`."""
        return self._run(
            self._async_admin.remove_offsets(consumer, stream=stream, partition=partition)
        )
