"""Links: the leader of a partition appends the record of a payload, once.

The record has a message id, that of the payload unless its client gives one. Where an answer is
lost the request is repeated, to whoever leads then, and the first record is the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.controller.cluster.views import ClusterViews
from bascule.datastream.ports import OnFetched, PayloadPlace
from bascule.errors import (
    BasculeError,
    Broken,
    ConfigError,
    DiskFull,
    Indeterminate,
    NotLeader,
    PartitionFailed,
    PayloadDamaged,
    PayloadMissing,
    UnknownStream,
)
from bascule.model import NO_LEADER, SyncPolicy
from bascule.record.payload_links import Payload, PayloadLink
from bascule.replica.internal_publisher import ClientMessage, InternalPublisher
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.payloads.payload_files import FoundPayload
from bascule.storage.payloads.payload_log import PayloadLog

LINK: Final = "payload-link"
"""The kind of control request for the record of a payload, to the leader of the partition."""
LINK_SECONDS_MAX: Final = 60.0
ATTEMPT_SECONDS_MAX: Final = 30.0
"""For one leader, which may have to fetch the payload first."""
RETRY_SECONDS: Final = 0.1
ID_HEADER: Final = "Nats-Msg-Id"


class LinkPayload(msgspec.Struct, array_like=True):
    """Append the record of a payload; the answer is its ack."""

    stream_id: bytes
    partition: int
    id: str
    size: int
    crc: int
    subject: str
    key: bytes | None
    headers: list[tuple[str, bytes]]
    nodes: list[int]
    """Those that have it."""

    @property
    def payload(self) -> Payload:
        return Payload(self.id, self.size, self.crc)


class PayloadLinks:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        views: ClusterViews,
        peers: Peers,
        publisher: InternalPublisher,
        fetch: Callable[[Partition, PayloadLink, OnFetched], None],
        give_way: Callable[[Partition, list[int]], Awaitable[bool]],
    ) -> None:
        """`give_way` has another node lead a partition, if one of those given is in sync, and says
        whether it does."""
        self._node_id = node_id
        self._partitions = partitions
        self._views = views
        self._peers = peers
        self._publisher = publisher
        self._fetch = fetch
        self._give_way = give_way
        self._locks: WeakValueDictionary[tuple[bytes, int, str], asyncio.Lock] = (
            WeakValueDictionary()
        )
        """Held while the record of a payload is appended: stream, partition and id."""

    async def link(self, place: PayloadPlace, link: LinkPayload) -> dict[str, Any]:
        """The ack of the record. Raises: PublishRejected; Indeterminate if it may be stored."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LINK_SECONDS_MAX
        body = msgspec.msgpack.encode(link)
        while True:
            try:
                states = self._views.states(link.stream_id)
                leader = states[link.partition].leader if states else NO_LEADER
                if leader == self._node_id:
                    return await self._do(link)
                if leader == NO_LEADER:
                    raise NotLeader(None, 0)
                answer = await self._peers.control(
                    leader, LINK, body, timeout_s=ATTEMPT_SECONDS_MAX
                )
                return dict(msgspec.msgpack.decode(answer))
            except (Broken, Indeterminate, NotLeader, PartitionFailed, PayloadMissing) as error:
                if loop.time() > deadline:
                    raise Indeterminate(
                        f"the record of payload {link.id} may or may not be stored ({error}): "
                        f"close the payload again with its id, in stream {place.stream!r}"
                    ) from error
            await asyncio.sleep(RETRY_SECONDS)

    async def answer(self, body: bytes) -> bytes:
        """Answer another node. Raises: as `_do`."""
        link = msgspec.msgpack.decode(body, type=LinkPayload)
        return msgspec.msgpack.encode(await self._do(link))

    async def _do(self, link: LinkPayload) -> dict[str, Any]:
        """Have this node append it. Raises: NotLeader, PayloadMissing, as `publish_message`."""
        found = self._partitions.stream_by_id(link.stream_id)
        if not found or not isinstance(found[link.partition].log, PayloadLog):
            raise NotLeader(None, 0)
        partition = found[link.partition]
        store = partition.log
        assert isinstance(store, PayloadLog)
        key = link.stream_id, link.partition, link.id
        # A request whose answer was lost is repeated while the first one is still carried out.
        async with self._locks.setdefault(key, asyncio.Lock()):
            return await self._append(partition, store, link)

    async def _append(
        self, partition: Partition, store: PayloadLog, link: LinkPayload
    ) -> dict[str, Any]:
        """Append the record, unless there is one.

        Raises: PayloadDamaged where the one that is there has other content under this id;
        ConfigError for a message id in use; DiskFull where the disk of this node has no room for
        the payload, and nobody else leads.
        """
        while (here := store.payloads.find(link.id)) is not None and here.offset >= 0:
            if here.payload != link.payload:
                here = await asyncio.to_thread(_as_recorded, store, here, link.payload)
            if here.offset < partition.committed_offset:
                return _duplicate(partition, here.offset, here.payload, link)
            if not partition.is_leader:
                raise NotLeader.of_partition(partition.state, partition.leader_epoch)
            await asyncio.sleep(RETRY_SECONDS)  # it may be committed, or removed again
        # What is here under this id may be other content that no record names.
        if here is None or here.payload != link.payload:
            try:
                await self._get(partition, link)
            except DiskFull:
                # Of a partition whose leader has no room no payload could be acknowledged.
                if not await self._give_way(partition, link.nodes):
                    raise
                raise NotLeader.of_partition(partition.state, partition.leader_epoch) from None
        names = {name.lower() for name, _ in link.headers}
        headers = [*link.headers]
        if ID_HEADER.lower() not in names:
            headers.append((ID_HEADER, link.id.encode()))
        offset = await self._publisher.publish_message(
            partition,
            ClientMessage(link.subject, link.key, b"", tuple(headers), payload=link.payload),
        )
        here = store.payloads.find(link.id)
        if here is None or here.offset >= 0:
            return _ack(partition, offset, link.payload)
        # The record there is another one, with the message id that the client gives.
        stored = store.payloads.find_at(offset)
        earlier = None if stored is None else stored.payload
        if earlier is None:
            named = await asyncio.to_thread(store.link_at, offset)
            if named is not None:  # no replica has its file
                earlier = named.payload
            elif not await asyncio.to_thread(store.holds, offset):
                # The record was removed since. If it was that of this payload, its ack was lost.
                earlier = link.payload
        if earlier is None:
            raise ConfigError(
                f"the message id of payload {link.id} is that of the message without payload at "
                f"offset {offset}"
            )
        return _duplicate(partition, offset, earlier, link)

    async def _get(self, partition: Partition, link: LinkPayload) -> None:
        """FetchPayload the payload from a node that has it. Raises: PayloadMissing."""
        loop = asyncio.get_running_loop()
        fetched: asyncio.Future[None] = loop.create_future()

        def end(error: Exception | None) -> None:
            if fetched.done():
                return
            if error is None:
                fetched.set_result(None)
            # An earlier release says that it knows no such stream where it is behind.
            elif isinstance(error, BasculeError) and not isinstance(error, UnknownStream):
                fetched.set_exception(error)
            else:
                fetched.set_exception(PayloadMissing(link.id, f"this node ({error})"))

        self._fetch(
            partition,
            PayloadLink(-1, link.payload),
            lambda error: loop.call_soon_threadsafe(end, error),  # type: ignore[arg-type]
        )
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS_MAX):
                await fetched
        except TimeoutError:
            # It goes on being fetched; the request is repeated.
            raise PayloadMissing(link.id, "this node yet: it is being fetched") from None


def _as_recorded(store: PayloadLog, here: FoundPayload, payload: Payload) -> FoundPayload:
    """The record of `payload` if there is one, else that of `here`, a payload with the same id; and
    the payload as the record says it is. A file may have been cut, or have grown, and records of
    other content may have the id. Reads the disk. Raises: as `PayloadLog.link_at`."""
    for each in store.payloads.linked_as(payload.id):
        is_same = each.payload.crc == payload.crc
        if is_same and store.link_at(each.offset) == PayloadLink(each.offset, payload):
            return each._replace(payload=payload)
    named = store.link_at(here.offset)
    return here if named is None else here._replace(payload=named.payload)


def _duplicate(
    partition: Partition, offset: int, stored: Payload, link: LinkPayload
) -> dict[str, Any]:
    """The ack of a record that is there already. Raises: PayloadDamaged where its payload has the
    same id and other content: the node that asks did not have the stored one to compare with."""
    if stored.id == link.id and stored != link.payload:
        found, expected = (f"{each.size} bytes {each.crc:08x}" for each in (stored, link.payload))
        what = f"content at offset {offset}, size and checksum"
        raise PayloadDamaged(link.id, what, found, expected)
    return _ack(partition, offset, stored) | {"duplicate": True}


def _ack(partition: Partition, offset: int, payload: Payload) -> dict[str, Any]:
    """As that of a published message, with the payload."""
    state = partition.state
    definition = partition.definition
    return {
        "stream": definition.name,
        "seq": offset + 1,
        "partition": partition.index,
        "offset": offset,
        "replicas": 1 if state is None else len(state.isr),
        "synced": definition.config.sync is SyncPolicy.ALWAYS,
        "payload": {"id": payload.id, "bytes": payload.size, "crc32c": f"{payload.crc:08x}"},
    }
