"""The records of payloads at the leader of a partition."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c

from bascule.controller.cluster.payloads.linking import LinkPayload, PayloadLinks
from bascule.datastream.ports import PayloadPlace
from bascule.errors import ConfigError
from bascule.host.real import RealRandom
from bascule.model import StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.payload_links import Payload, PayloadLink
from bascule.replica.internal_publisher import ClientMessage
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.retention import log_config
from support.replicas import lead_alone

DEFINITION = StreamDefinition("s", b"s" * 16, 0, StreamConfig(subject="s"))
ONE, OTHER = "1" * 32, "2" * 32
MESSAGE_ID = (("Nats-Msg-Id", b"x"),)


class Leader:
    """A partition with payloads, and a publisher that knows one message id."""

    def __init__(self) -> None:
        clock = SimClock(1_000)
        self.log = PayloadLog.open(
            SimFiles(RealRandom(1)), "/data/s/0", log_config(DEFINITION.config), clock
        )
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
            cast("Any", self), cast("Any", None), cast("Any", None),
        )  # fmt: skip

    async def publish_message(self, partition: Partition, message: ClientMessage) -> int:
        """As `InternalPublisher` does where a message with that id was stored before."""
        if self.offset_of_id is None:
            self.offset_of_id = 7
            assert message.payload is not None
            self.log.payloads.link([PayloadLink(7, message.payload)])
        return self.offset_of_id

    def link(
        self, id: str, content: bytes, headers: tuple[tuple[str, bytes], ...] = MESSAGE_ID
    ) -> dict[str, Any]:
        payloads = self.log.payloads
        file = payloads.create(id)
        file.write_at(0, content)
        payload = Payload(id, len(content), crc32c(content))
        payloads.finish(file, payload)
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
