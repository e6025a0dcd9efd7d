"""The records of payloads at the leader of a partition."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c

from bascule.controller.cluster.payloads.linking import LinkPayload, PayloadLinks
from bascule.datastream.ports import OnFetched, PayloadPlace
from bascule.errors import ConfigError, PayloadDamaged
from bascule.host.real import RealRandom
from bascule.model import StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, PAYLOAD_LINKS, seal
from bascule.record.payload_links import Payload, PayloadLink
from bascule.replica.internal_publisher import ClientMessage
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.retention import log_config
from support.payload_logs import have_whole
from support.replicas import lead_alone

DEFINITION = StreamDefinition("s", b"s" * 16, 0, StreamConfig(subject="s"))
ONE, OTHER = "1" * 32, "2" * 32
MESSAGE_ID = (("Nats-Msg-Id", b"x"),)


def payload_of(id: str, content: bytes) -> Payload:
    return Payload(id, len(content), crc32c(content))


def linked_record(offset: int, payload: Payload) -> memoryview:
    """A batch with the record of a payload."""
    record = Record(offset, 0, None, b"", payload.headers())
    batch = build_batch([record], base_offset=offset)
    seal(
        batch, record_count=1, base_timestamp=0, max_timestamp=0,
        attributes=LOG_APPEND_TIME | PAYLOAD_LINKS, base_offset=offset, leader_epoch=0,
    )  # fmt: skip
    return memoryview(batch)


class Leader:
    """A partition with payloads, and a publisher that knows one message id."""

    def __init__(self, *, committed: int = 0, files: SimFiles | None = None) -> None:
        """`committed`: records without payload that are committed."""
        clock = SimClock(1_000)
        self.files = files or SimFiles(RealRandom(1))
        self.log = PayloadLog.open(self.files, "/data/s/0", log_config(DEFINITION.config), clock)
        if committed:
            plain = [Record(offset, 0, None, b"plain") for offset in range(committed)]
            self.log.append_as_follower(memoryview(build_batch(plain, base_offset=0)))
            self.log.sync()
        partition = Partition(
            DEFINITION,
            0,
            log=self.log,
            failure=None,
            clock=clock,
            on_changed=lambda _: None,
            hash_key=HashKey(bytes(16)),
        )
        partitions = Partitions()
        partitions.add((lead_alone(partition),))
        states = [SimpleNamespace(leader=1)]
        self.offset_of_id: int | None = None
        self._links = PayloadLinks(
            1, partitions, cast("Any", SimpleNamespace(states=lambda _: states)), cast("Any", None),
            cast("Any", self), self._fetch, cast("Any", None),
        )  # fmt: skip
        self.elsewhere: dict[Payload, bytes] = {}
        """What other nodes have."""

    async def publish_message(self, partition: Partition, message: ClientMessage) -> int:
        """As `InternalPublisher` does where a message with that id was stored before."""
        if self.offset_of_id is None:
            self.offset_of_id = 7
            assert message.payload is not None
            assert self.log.payloads.missing([PayloadLink(7, message.payload)]) == []
            self.log.payloads.link([PayloadLink(7, message.payload)])
        return self.offset_of_id

    def link(
        self, id: str, content: bytes, headers: tuple[tuple[str, bytes], ...] = MESSAGE_ID
    ) -> dict[str, Any]:
        payload = self.store(id, content)
        return self.ask(payload, headers)

    def _fetch(self, partition: Partition, link: PayloadLink, on_fetched: OnFetched) -> None:
        self.store(link.payload.id, self.elsewhere[link.payload])
        on_fetched(None)

    def store(self, id: str, content: bytes) -> Payload:
        """Have a whole payload here."""
        payloads = self.log.payloads
        payload = payload_of(id, content)
        have_whole(payloads, payload, content)
        return payload

    def append(self, id: str, content: bytes) -> Payload:
        """A record with a payload."""
        payload = self.store(id, content)
        self.log.append_as_follower(linked_record(self.log.end.offset, payload))
        self.log.sync()
        return payload

    def restarted(self) -> Leader:
        """All its records are committed."""
        self.log.close(high_watermark=self.log.end.offset)
        return Leader(files=self.files)

    def ask(
        self, payload: Payload, headers: tuple[tuple[str, bytes], ...] = MESSAGE_ID
    ) -> dict[str, Any]:
        """Another node asks for the record of a payload that it has."""
        id = payload.id
        link = LinkPayload(
            b"s" * 16, 0, id, payload.size, payload.crc, "s", None, list(headers), [1]
        )
        place = PayloadPlace("s", b"s" * 16, 0, 1, (), 1, self.log, (1,), 0)
        return asyncio.run(self._links.link(place, link))


def test_the_ack_names_the_payload_that_is_stored() -> None:
    """One with the message id of an earlier record is not, and is removed later."""
    leader = Leader()
    first = leader.link(ONE, b"first")
    assert (first["offset"], first["payload"]["id"], first.get("duplicate")) == (7, ONE, None)
    second = leader.link(OTHER, b"the second")
    assert second == first | {"duplicate": True}


def test_a_message_without_payload_is_not_taken_for_one() -> None:
    leader = Leader()
    leader.offset_of_id = 3
    plain = [Record(offset, 0, None, b"plain") for offset in range(4)]
    leader.log.append_as_follower(memoryview(build_batch(plain, base_offset=0)))
    with pytest.raises(ConfigError, match="offset 3"):
        leader.link(ONE, b"first")


@pytest.mark.parametrize("holds", [False, True])
def test_a_payload_whose_record_was_removed_since_is_a_duplicate(holds: bool) -> None:
    """Its ack was lost, the stream was purged, and it is sent again. Where the record is there, it
    is that of a message without payload which has this id."""
    leader = Leader()
    leader.offset_of_id = 0
    if holds:
        batch = build_batch([Record(0, 0, None, b"plain")], base_offset=0)
        leader.log.append_as_follower(memoryview(batch))
        with pytest.raises(ConfigError, match="offset 0"):
            leader.link(ONE, b"first", ())
    else:
        ack = leader.link(ONE, b"first", ())
        assert (ack["offset"], ack["duplicate"]) == (0, True)
        assert ack["payload"]["id"] == ONE


@pytest.mark.parametrize("other", [b"fIrst", b"first, and more"])
def test_other_content_under_a_stored_id_is_refused(other: bytes) -> None:
    """The node that asks did not have what is stored."""
    leader = Leader(committed=8)
    first = leader.link(ONE, b"first", ())
    assert leader.ask(payload_of(ONE, b"first")) == first | {"duplicate": True}
    with pytest.raises(PayloadDamaged, match="content at offset 7") as refused:
        leader.ask(payload_of(ONE, other))
    for payload in (payload_of(ONE, b"first"), payload_of(ONE, other)):
        assert f"{payload.size} bytes {payload.crc:08x}" in str(refused.value)


def test_other_content_under_an_id_whose_file_is_gone_is_refused() -> None:
    """The record is there, and says what was stored."""
    leader = Leader()
    first = payload_of(ONE, b"first")
    leader.log.payloads.give_up(PayloadLink(0, first))
    leader.log.append_as_follower(linked_record(0, first))
    leader.offset_of_id = 0
    with pytest.raises(PayloadDamaged, match="content at offset 0"):
        leader.link(ONE, b"other", ())


@pytest.mark.parametrize("found", [b"fir", b"first, and more"])
def test_a_payload_whose_file_was_cut_or_has_grown_is_a_duplicate(found: bytes) -> None:
    """Its record says what was stored."""
    leader = Leader()
    first = leader.append(ONE, b"first")
    stored = leader.log.payloads.find_at(0)
    assert stored is not None
    file = leader.files.open(stored.path, create=True)
    file.truncate(0)
    file.write_at(0, found)
    leader = leader.restarted()
    assert leader.log.payloads.find_at(0) != stored
    ack = leader.ask(first, ())
    assert (ack["offset"], ack["duplicate"], ack["payload"]["bytes"]) == (0, True, first.size)
    with pytest.raises(PayloadDamaged, match=f"{first.size} bytes {first.crc:08x}"):
        leader.ask(payload_of(ONE, b"other"), ())


def test_each_of_several_contents_of_an_id_is_a_duplicate() -> None:
    """As where a replica leads that still has the record which the earlier leader has removed."""
    leader = Leader()
    payloads = [leader.append(ONE, content) for content in (b"first", b"the second")]
    leader = leader.restarted()
    for offset, payload in enumerate(payloads):
        ack = leader.ask(payload, ())
        assert (ack["offset"], ack["duplicate"]) == (offset, True)
        assert ack["payload"]["crc32c"] == f"{payload.crc:08x}"
    with pytest.raises(PayloadDamaged, match="content at offset 1"):
        leader.ask(payload_of(ONE, b"other"), ())


def test_other_content_that_no_record_names_is_replaced_before_the_record_is_appended() -> None:
    leader = Leader()
    leader.store(ONE, b"never closed")
    payload = payload_of(ONE, b"first")
    leader.elsewhere[payload] = b"first"
    assert leader.ask(payload, ())["offset"] == 7
    assert leader.log.payloads.open_whole(ONE)[1].read_at(0, 100) == b"first"
