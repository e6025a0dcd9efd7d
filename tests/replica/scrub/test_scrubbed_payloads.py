"""Which payloads the scrubber takes for damaged: only those whose files are."""

from __future__ import annotations

import errno
import random
import threading
from itertools import count

import pytest
from crc32c import crc32c

from bascule.host.real import RealRandom
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import PAYLOAD_LINKS, seal
from bascule.record.payload_links import Payload, PayloadLink
from bascule.replica.scrub.payloads import DamagedPayload, ScrubbedPayloads
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig
from bascule.storage.payloads.block_sums import BLOCK_BYTES
from bascule.storage.payloads.payload_log import PayloadLog
from support.payload_logs import have_whole

DIRECTORY = "/data/streams/models/0"
ID = "0123456789abcdef" * 2
DATA = random.Random(7).randbytes(BLOCK_BYTES + 999)
PAYLOAD = Payload(ID, len(DATA), crc32c(DATA))


class ScrubbedLogUnderTest:
    """A log whose records have payloads of two blocks, without the checksums of these."""

    def __init__(self, *ids: str) -> None:
        self.files = SimFiles(RealRandom(1))
        self.files.make_dirs(DIRECTORY)
        self.log = PayloadLog.open(
            self.files, DIRECTORY, LogConfig(), SimClock(1_000), make_lock=threading.Lock
        )
        for id in ids or (ID,):
            self.add(PAYLOAD._replace(id=id))
        self.log.sync()

    def add(self, payload: Payload, data: bytes = DATA) -> None:
        have_whole(self.log.payloads, payload, data)
        offset = self.log.end.offset
        record = Record(offset, 0, b"key", b"", tuple(payload.headers()))
        batch = build_batch([record], base_offset=offset)
        seal(
            batch, record_count=1, base_timestamp=1, max_timestamp=1, attributes=PAYLOAD_LINKS,
            base_offset=offset, leader_epoch=0,
        )  # fmt: skip
        self.log.append(batch)

    @property
    def path(self) -> str:
        """Of the first payload."""
        found = self.log.payloads.find_at(0)
        assert found is not None
        return found.path

    def scrub(self, *, fails_at: int = 0, error: int = 0) -> list[DamagedPayload]:
        """Raises: OSError."""
        payloads = ScrubbedPayloads(self.log)
        assert self.log.verify(None, payloads.observe) is None
        if fails_at:
            self.files.fail(fails_at, error)
        return list(payloads.verify(lambda _: None))


def test_a_full_disk_is_no_damage() -> None:
    """The checksums of its blocks cannot be written; the payload is as it was sent."""
    for operation in count(1):
        scrubbed = ScrubbedLogUnderTest()
        try:
            assert scrubbed.scrub(fails_at=operation, error=errno.ENOSPC) == []
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert ".sums" not in scrubbed.files.operations[-1], "the file itself was not read"
        if scrubbed.files.fault_pending():
            break
        assert scrubbed.scrub() == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_the_node_lacks_ends_the_pass(number: int) -> None:
    """A payload that was not read is neither right nor damaged."""
    scrubbed = ScrubbedLogUnderTest()
    with pytest.raises(OSError) as caught:
        scrubbed.scrub(fails_at=1, error=number)
    assert caught.value.errno == number
    assert scrubbed.scrub() == []


def test_what_cannot_be_read_is_damaged() -> None:
    for operation in count(1):
        scrubbed = ScrubbedLogUnderTest()
        found = scrubbed.scrub(fails_at=operation, error=errno.EIO)
        if scrubbed.files.fault_pending():
            break
        failed = next(each for each in scrubbed.files.operations if each.endswith("EIO"))
        assert [each.link.payload for each in found] == ([] if ".sums" in failed else [PAYLOAD])


def test_a_file_that_is_gone_or_changed_is_damaged() -> None:
    scrubbed = ScrubbedLogUnderTest()
    scrubbed.files.open(scrubbed.path).write_at(5, bytes([DATA[5] ^ 1]))
    assert [each.link.payload for each in scrubbed.scrub()] == [PAYLOAD]
    scrubbed.files.remove(scrubbed.path)
    assert [each.link.payload for each in scrubbed.scrub()] == [PAYLOAD]
    scrubbed.log.payloads.remove_linked([0])
    assert [each.link.payload for each in scrubbed.scrub()] == [PAYLOAD]


def test_damage_is_told_before_the_pass_ends_early() -> None:
    other = "f" * 32
    scrubbed = ScrubbedLogUnderTest(ID, other)
    scrubbed.files.open(scrubbed.path).write_at(5, bytes([DATA[5] ^ 1]))
    payloads = ScrubbedPayloads(scrubbed.log)
    assert scrubbed.log.verify(None, payloads.observe) is None
    found = payloads.verify(lambda _: None)
    assert next(found).link.payload == PAYLOAD
    scrubbed.files.fail(1, errno.EMFILE)
    with pytest.raises(OSError, match="EMFILE"):
        next(found)
    assert other in scrubbed.files.operations[-1]


def test_a_further_record_of_a_payload_is_noted() -> None:
    """Releases before this one noted only the first one: its file went with that."""
    scrubbed = ScrubbedLogUnderTest(ID, ID)
    payloads = scrubbed.log.payloads
    payloads.unlink(PayloadLink(1, PAYLOAD))
    payloads.discard_whole(ID)
    assert payloads.linked_offsets() == [0]
    assert scrubbed.scrub() == []
    assert payloads.linked_offsets() == [0, 1]


def test_of_two_payloads_with_one_id_the_damaged_one_is_told() -> None:
    scrubbed = ScrubbedLogUnderTest()
    other = Payload(ID, BLOCK_BYTES, crc32c(DATA[:BLOCK_BYTES]))
    scrubbed.add(other, DATA[:BLOCK_BYTES])
    assert scrubbed.scrub() == []
    scrubbed.files.open(scrubbed.path).write_at(5, bytes([DATA[5] ^ 1]))
    assert [each.link for each in scrubbed.scrub()] == [PayloadLink(0, PAYLOAD)]
