"""Messages that clients send over another protocol than NATS: admitted alike, told in values."""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Callable, Coroutine, Sequence

import pytest

from bascule.errors import Indeterminate, NotLeader, PublishRejected
from bascule.host.real import RealRandom
from bascule.model import (
    Cleanup,
    KeyFrom,
    PartitionState,
    StreamConfig,
    StreamDefinition,
)
from bascule.publish.headers import HashKey
from bascule.publish.unstamped_batch import Replica, UnstampedBatch
from bascule.record.batch import scan_batches
from bascule.record.payload_links import Payload
from bascule.replica.internal_publisher import ClientMessage, InternalPublisher
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.wire import ack_codes
from bascule.wire.ack_codes import last_sequence
from support.replicas import lead_alone
from support.stored_batches import DIRECTORY

SEQUENCE = "Nats-Expected-Last-Subject-Sequence"


def on_a_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def turn() -> None:
    """Let the loop do what waits now."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(done.set_result, None)
    await done


class Versions:
    """The versions that a table would know."""

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[int, bool]] = {}

    def find(self, keys: list[bytes], end_offset: int) -> array[int]:
        found = [self.last.get(key, (-1, False)) for key in keys]
        return array("q", [int(number) for pair in found for number in pair])


class Publishing:
    """A partition of a table, and a publisher whose appends are done at once."""

    def __init__(self, *, replicas: int = 1, **config: object) -> None:
        made = StreamConfig(
            "$KV.t.>", cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT, table=True, **config
        )  # type: ignore[arg-type]
        clock = SimClock(1_000)
        self.partition = Partition(
            StreamDefinition("t", b"i" * 16, 0, made),
            0,
            log=PartitionLog.open(SimFiles(RealRandom(1)), DIRECTORY, LogConfig(), clock),
            failure=None,
            clock=clock,
            on_changed=lambda _: None,
            hash_key=HashKey(bytes(16)),
        )
        if replicas == 1:
            lead_alone(self.partition)
        else:
            nodes = tuple(range(1, replicas + 1))
            state = PartitionState(nodes, nodes, 1, self.partition.leader_epoch, 0)
            self.partition.set_role(state, 1, lag_ns_max=1 << 60)
        self.versions = Versions()
        self.partition.preconditions.key_versions = self.versions
        self.written: list[Callable[[], None]] = []
        """Says of appends with payloads that the log writer has ended them."""
        self.publisher = InternalPublisher(Partitions(), self._append)

    def _append(
        self,
        replica: Replica,
        batches: Sequence[UnstampedBatch],
        on_done: Callable[[], None] | None = None,
    ) -> None:
        for batch in batches:
            assert self.partition.append(batch) == b""
        if on_done is not None:
            self.written.append(on_done)

    async def start(self, value: bytes | None = b"v", **headers: str) -> asyncio.Task[int]:
        """Publish; the message is appended, and not committed."""
        named = {"sequence": SEQUENCE, "id": "Nats-Msg-Id", "other": "Nats-Incr", "ttl": "Nats-TTL"}
        pairs = tuple((named[name], text.encode()) for name, text in headers.items())
        message = ClientMessage("$KV.t.a", None, value, pairs)
        task = asyncio.create_task(self.publisher.publish_message(self.partition, message))
        await turn()
        return task

    async def publish(self, value: bytes | None = b"v", **headers: str) -> int:
        task = await self.start(value, **headers)
        self.partition.sync()
        return await task


async def refusal(publishing: Publishing, value: bytes = b"v", **headers: str) -> PublishRejected:
    with pytest.raises(PublishRejected) as raised:
        await publishing.publish(value, **headers)
    return raised.value


@on_a_loop
async def test_a_message_is_stored_as_that_of_a_nats_client() -> None:
    made = Publishing()
    assert await made.publish(b"one", id="x") == 0
    assert await made.publish(None) == 1
    log = made.partition.log
    assert log is not None
    piece = log.plan_read(0, bytes_max=1 << 20, end=log.end)
    assert piece is not None
    data = memoryview(piece.file.read_at(piece.position, piece.length))
    assert [header.record_count for header, *_ in scan_batches(data, origin="log")] == [1, 1]
    assert bytes(data).count(b"$KV.t.a") == 4  # the key and the header of each
    assert b"Nats-Msg-Id" in bytes(data)


@on_a_loop
async def test_an_expected_sequence_is_compared_and_the_refusal_names_the_one_found() -> None:
    made = Publishing()
    made.versions.last[b"$KV.t.a"] = (6, True)
    error = await refusal(made, sequence="3")
    assert (last_sequence(error), error.stream) == (7, "t")
    assert await made.publish(sequence="7") == 0


@on_a_loop
async def test_a_repeated_id_gets_the_offset_of_the_first() -> None:
    made = Publishing()
    assert await made.publish(id="one", sequence="0") == 0
    made.versions.last[b"$KV.t.a"] = (0, True)
    assert await made.publish(id="one", sequence="0") == 0
    assert await made.publish(id="two", sequence="1") == 1


@on_a_loop
async def test_limits_and_the_state_of_the_stream_refuse_it() -> None:
    error = await refusal(Publishing(message_bytes_max=100), bytes(101))
    assert error.err_code == ack_codes.TOO_LARGE
    assert await Publishing(message_bytes_max=100).publish(bytes(100)) == 0
    assert (await refusal(Publishing(read_only=True))).err_code == ack_codes.READ_ONLY
    limited = Publishing(rate_messages_max=1)
    await limited.publish()
    assert (await refusal(limited)).err_code == ack_codes.RATE_EXCEEDED
    unsupported = await refusal(Publishing(), other="5s")
    assert "Nats-Incr" in unsupported.description
    assert (await refusal(Publishing(), ttl="1d")).err_code == ack_codes.MALFORMED_TTL
    assert await Publishing().publish(ttl="1h") == 0


LINK = Payload("7" * 32, 1, 2)


@on_a_loop
async def test_only_the_node_itself_links_a_payload() -> None:
    made = Publishing()
    forged = ClientMessage("$KV.t.a", None, b"", LINK.headers())
    other = ClientMessage("$KV.t.a", None, b"", (("BASCULE-PAYLOAD-X", b"1"),), LINK)
    for message, name in ((forged, "Bascule-Payload-Id"), (other, "BASCULE-PAYLOAD-X")):
        with pytest.raises(PublishRejected, match=name) as raised:
            await made.publisher.publish_message(made.partition, message)
        assert raised.value.err_code == ack_codes.UNSUPPORTED_HEADER
    linked = ClientMessage("$KV.t.a", None, b"", (), LINK)
    with pytest.raises(ValueError, match="alone"):
        await made.publisher.publish_messages(made.partition, [linked, forged])


@on_a_loop
async def test_a_record_is_stored_once_its_payload_is_linked() -> None:
    """Others may sync and copy it while the log writer still links the payload."""
    made = Publishing()
    message = ClientMessage("$KV.t.a", None, b"", (), LINK)
    task = asyncio.create_task(made.publisher.publish_message(made.partition, message))
    await turn()
    made.partition.sync()
    for _ in range(5):
        await turn()
    assert made.partition.committed_offset == 1
    assert not task.done()
    (on_done,) = made.written
    on_done()
    assert await task == 0


def expecting(key: str, sequence: int) -> ClientMessage:
    return ClientMessage(f"$KV.t.{key}", None, None, ((SEQUENCE, b"%d" % sequence),))


@on_a_loop
async def test_of_several_messages_those_are_stored_that_are_admitted() -> None:
    made = Publishing()
    made.versions.last = {b"$KV.t.a": (6, True), b"$KV.t.b": (7, True), b"$KV.t.c": (8, True)}
    messages = [expecting("a", 7), expecting("b", 3), expecting("c", 9)]
    task = asyncio.create_task(made.publisher.publish_messages(made.partition, messages))
    await turn()
    assert not task.done()
    made.partition.sync()
    assert await task == (0, 2)
    log = made.partition.log
    assert log is not None
    assert log.end.offset == 2
    messages = [expecting("a", 1), expecting("b", 3)]
    task = asyncio.create_task(made.publisher.publish_messages(made.partition, messages))
    await turn()
    made.partition.sync()
    with pytest.raises(PublishRejected) as refused:
        await task
    assert last_sequence(refused.value) == 8
    assert log.end.offset == 2


@on_a_loop
async def test_a_refusal_waits_for_what_it_rests_on() -> None:
    """The version found may be that of a record which no successor has."""
    made = Publishing(replicas=2)
    first = await made.start()
    made.versions.last[b"$KV.t.a"] = (0, True)
    refused = await made.start(sequence="0")
    repeated = await made.start(id="x")
    again = await made.start(id="x")
    made.partition.sync()
    await turn()
    assert not any(task.done() for task in (first, refused, repeated, again))
    made.partition.on_fetch(
        2, 0, leader_epoch=made.partition.leader_epoch, log_start=0, log_end=1, synced_end=1
    )
    assert await first == 0
    with pytest.raises(PublishRejected):
        await refused
    await turn()
    assert not repeated.done()
    assert not again.done()
    made.partition.on_fetch(
        2, 0, leader_epoch=made.partition.leader_epoch, log_start=0, log_end=2, synced_end=2
    )
    assert await repeated == await again == 1


@on_a_loop
async def test_another_leader_is_named_and_what_was_appended_is_uncertain() -> None:
    made = Publishing(replicas=2)
    task = await made.start()
    again = await made.start(sequence="0")
    made.partition.set_role(
        PartitionState((1, 2), (2,), 2, made.partition.leader_epoch + 1, 1), 1, lag_ns_max=1 << 60
    )
    for each in (task, again):
        with pytest.raises(Indeterminate):
            await each
    with pytest.raises(NotLeader) as raised:
        await made.publish()
    assert raised.value.leader == 2
