"""Writes of tables at any node: messages for the leader of the partition, as those from NATS.

Each write has the id of a message. Where an answer is lost it is sent again with that id, to
whoever leads then: the partition stores it once, and answers the repetition with the version of the
first. So a write has one answer, and its condition is compared once.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.controller.cluster.tables.operations import TABLE_WRITES, WriteKey
from bascule.controller.cluster.tables.reads import RETRY_SECONDS, TableReads
from bascule.controller.cluster.views import ClusterViews
from bascule.errors import (
    BasculeError,
    Broken,
    Indeterminate,
    NotATable,
    NotLeader,
    PartitionFailed,
    PublishRejected,
    UnknownKey,
    WrongVersion,
)
from bascule.host.api import Random
from bascule.model import NO_LEADER
from bascule.replica.internal_publisher import ClientMessage, InternalPublisher
from bascule.replica.partitions import Partitions
from bascule.wire.ack_codes import is_not_caught_up
from bascule.wire.tables.conditions import (
    VERSION_MAX,
    check_content_type,
    expected_sequence,
    message_headers,
    refusal_of,
    ttl_text,
)
from bascule.wire.tables.counters import incremented
from bascule.wire.tables.keys import TableKeys, check_key

WRITE_SECONDS_MAX: Final = 10.0
ATTEMPT_SECONDS_MAX: Final = 3.0
"""For one leader to answer: that one may be paused, and another be elected."""
MESSAGE_ID_BYTES: Final = 12


class TableWrites:
    """Belongs to the event loop.

    Every write may raise UnknownStream, NotATable, InvalidKey, ConfigError, PublishRejected,
    NotLeader, Broken and PartitionFailed, and has no effect then; Indeterminate if it may have one.
    """

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        views: ClusterViews,
        peers: Peers,
        publisher: InternalPublisher,
        reads: TableReads,
        random: Random,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._views = views
        self._peers = peers
        self._publisher = publisher
        self._reads = reads
        self._random = random

    def message_bytes_max(self, table: str) -> int:
        """Of the messages of a table. Raises: UnknownStream, NotATable."""
        return self._reads.definition(table).config.message_bytes_max

    async def set(
        self,
        table: str,
        key: bytes,
        value: bytes | None,
        *,
        if_version: int | None = None,
        if_absent: bool = False,
        content_type: str | None = None,
        ttl: float | None = None,
        message_id: str | None = None,
    ) -> int:
        """Set the value of a key, or remove it; return the version. `ttl`: see `WriteKey`.

        Raises: WrongVersion.
        """
        check_key(key)
        sequence = expected_sequence(if_version, if_absent)
        if content_type is not None:
            check_content_type(content_type)
        if ttl is not None:
            ttl_text(ttl)
        id = message_id or self._random.bytes(MESSAGE_ID_BYTES).hex()
        return await self._write(WriteKey(table, key, value, id, sequence, content_type, ttl))

    async def increment(
        self, table: str, key: bytes, by: int, *, message_id: str | None = None
    ) -> tuple[int, int | None]:
        """Add to the number in a value; return the version and the number. A repetition with the
        message id of one that is stored gets its version, and its number while the key has that
        version, else None.

        Raises: NotANumber; WrongVersion if others have changed the key each time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WRITE_SECONDS_MAX
        at_least = 0
        if message_id is not None:
            try:  # the condition holds of nothing, and a repetition is not compared
                stored = await self.set(
                    table, key, b"0", if_version=VERSION_MAX, message_id=message_id
                )
                return stored, await self._number(table, key, stored)
            except WrongVersion as error:
                at_least = 0 if error.found is None else error.found + 1
        while True:
            version, value, content_type = None, None, None
            try:
                position, found = await self._reads.get(table, key, at_least=at_least)
                version, value, content_type = found.version, found.value, found.content_type
            except UnknownKey as error:
                position = error.position
            number = incremented(table, key, value, by)
            try:
                written = await self.set(
                    table,
                    key,
                    b"%d" % number,
                    if_version=version,
                    if_absent=version is None,
                    content_type=content_type,
                    message_id=message_id,
                )
            except WrongVersion as error:
                if loop.time() > deadline:
                    raise
                at_least = max(at_least, (error.found or 0) + 1)
            else:
                if written < position:  # by another attempt, which came before the read
                    return written, await self._number(table, key, written)
                return written, number

    async def _number(self, table: str, key: bytes, version: int) -> int | None:
        """The number that a version of a key is; None: the key has another version.

        Raises: as a read.
        """
        try:
            _, found = await self._reads.get(table, key, at_least=version + 1)
        except UnknownKey:
            return None
        return incremented(table, key, found.value, 0) if found.version == version else None

    async def answer(self, body: bytes) -> bytes:
        """Answer another node. Raises: as a write, for this node alone."""
        return msgspec.msgpack.encode(await self._do(msgspec.msgpack.decode(body, type=WriteKey)))

    async def _write(self, write: WriteKey) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WRITE_SECONDS_MAX
        body = msgspec.msgpack.encode(write)
        may_be_stored: BasculeError | None = None
        while True:
            definition = self._reads.definition(write.table)
            remembers_ids = definition.config.dedupe_window_ms > 2_000 * WRITE_SECONDS_MAX
            leader = self._views.states(definition.id)[0].leader
            try:
                if leader == self._node_id:
                    return await self._do(write)
                if leader == NO_LEADER:
                    raise NotLeader(None, 0)
                answer = await self._peers.control(
                    leader, TABLE_WRITES, body, timeout_s=ATTEMPT_SECONDS_MAX
                )
                return int(msgspec.msgpack.decode(answer))
            except (Broken, Indeterminate) as error:
                may_be_stored = error
                if not remembers_ids or loop.time() > deadline:
                    raise Indeterminate(_uncertain(write, error)) from error
            except (NotLeader, PartitionFailed, PublishRejected) as error:
                if isinstance(error, PublishRejected) and not is_not_caught_up(error):
                    raise refusal_of(error, write.table, write.key, write.sequence) from None
                if loop.time() > deadline:
                    if may_be_stored is not None:
                        raise Indeterminate(_uncertain(write, may_be_stored)) from error
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _do(self, write: WriteKey) -> int:
        """Have this node append it. Raises: as a write, and PublishRejected for a wrong version."""
        found = self._partitions.stream(write.table)
        if not found:
            raise NotLeader(None, 0)
        config = found[0].definition.config
        keys = TableKeys(config)
        if keys.prefix is None and config.literal_subject is None:
            raise NotATable(
                write.table,
                f"keys come from headers, and no message can be sent to {config.subject}: publish "
                "with the header Bascule-Key",
            )
        headers = message_headers(
            sequence=write.sequence,
            message_id=write.message_id,
            content_type=write.content_type,
            ttl=write.ttl,
            removes=write.value is None,
        )
        message = ClientMessage(
            keys.subject(write.key),
            None if keys.prefix is not None else write.key,
            write.value,
            tuple((name, text.encode()) for name, text in headers),
        )
        return await self._publisher.publish_message(found[0], message)


def _uncertain(write: WriteKey, error: BasculeError) -> str:
    return (
        f"the write may or may not be stored ({error}): read the key, or repeat the write with the "
        f"message id {write.message_id}"
    )
