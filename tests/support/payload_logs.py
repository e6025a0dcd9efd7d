"""Logs with payloads on a simulated disk, and what should be in them."""

from __future__ import annotations

import threading

from crc32c import crc32c

from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, PAYLOAD_LINKS, seal
from bascule.record.payload_links import Payload, links_of
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import LogConfig
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.storage.payloads.payload_log import PayloadLog

DIRECTORY = "/data/streams/models/0"
CONFIG = LogConfig(segment_bytes_max=2_000, index_interval_bytes=200)


class Clock:
    """Each look is a second later."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ms(self) -> int:
        return self.monotonic_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        self.ns += 1_000_000_000
        return self.ns


def opened(files: SimFiles, config: LogConfig = CONFIG) -> PayloadLog:
    files.make_dirs(DIRECTORY)
    return PayloadLog.open(files, DIRECTORY, config, Clock(), make_lock=threading.Lock)


def id_of(number: int) -> str:
    return f"{number:032x}"


def content_of(number: int) -> bytes:
    return b"%d," % number * (number % 700)


def payload(number: int) -> Payload:
    data = content_of(number)
    return Payload(id_of(number), len(data), crc32c(data))


def have_whole(payloads: PayloadFiles, payload: Payload, content: bytes) -> None:
    """Have a payload whole and synced, of which nothing has come before. Raises: OSError."""
    file = payloads.create(payload.id)
    file.write_at(0, content)
    payloads.finish(file, payload)


def receive(log: PayloadLog, number: int) -> None:
    """Have a payload whole and synced. Raises: OSError."""
    have_whole(log.payloads, payload(number), content_of(number))


def link_batch(offset: int, number: int, *, epoch: int = 0) -> bytearray:
    headers = tuple(payload(number).headers())
    batch = build_batch([Record(offset, 0, b"key", b"", headers)], base_offset=offset)
    seal(
        batch, record_count=1, base_timestamp=1_000 + offset, max_timestamp=1_000 + offset,
        attributes=LOG_APPEND_TIME | PAYLOAD_LINKS, base_offset=offset, leader_epoch=epoch,
    )  # fmt: skip
    return batch


def links(log: PayloadLog) -> dict[int, str]:
    """Offset -> payload id of all records from the log start on."""
    found: dict[int, str] = {}
    offset = log.start_offset
    while offset < log.end.offset:
        part = log.plan_read(offset, bytes_max=1 << 20, end=log.end)
        assert part is not None
        data = memoryview(part.file.read_at(part.position, part.length))
        for link in links_of(data):
            if link.offset >= log.start_offset:
                found[link.offset] = link.payload.id
        offset = max(
            offset + 1,
            int.from_bytes(data[:8], "big") + int.from_bytes(data[23:27], "big") + 1,
        )
    return found


def check(log: PayloadLog) -> None:
    """Each link has its payload, and no file claims another record."""
    expected = links(log)
    for offset, id in expected.items():
        found = log.payloads.find_at(offset)
        assert found is not None, f"no payload at {offset}"
        assert found.payload.id == id
        assert found.payload == payload(int(id, 16))
        _, file = log.payloads.open_whole(id)
        assert file.read_at(0, found.payload.size + 1) == content_of(int(id, 16))
    claimed = [each for each in log.payloads.linked_offsets() if each >= log.start_offset]
    assert claimed == sorted(expected)
