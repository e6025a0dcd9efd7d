"""Load the dedupe window of a partition from its log when it is opened."""

from __future__ import annotations

from typing import Final

from bascule.publish.headers import read_publish_headers
from bascule.publish.preconditions import Preconditions
from bascule.record.batch import scan_batches
from bascule.record.compression import decompress_batch
from bascule.storage.partition_log import PartitionLog

READ_BYTES: Final = 4 << 20


def load_dedupe_window(preconditions: Preconditions, log: PartitionLog, *, since_ms: int) -> int:
    """Read the records since `since_ms` (Unix milliseconds), and at least the last one.

    Returns the bytes read. Raises: CorruptData, LogFailed, Closed, OSError.
    """
    end = log.end
    if end.offset == log.start_offset:
        return 0
    offset = end.offset - 1
    if log.timestamp_max >= since_ms:
        found = log.find_timestamp(since_ms, end=end)
        offset = offset if found is None else found[0]
    read = 0
    while offset < end.offset:
        part = log.plan_read(offset, bytes_max=READ_BYTES, end=end)
        assert part is not None, "reads from the disk are allowed here"
        if part.length == 0:
            break
        data = memoryview(part.file.read_at(part.position, part.length))
        for header, start, stop in scan_batches(
            data, origin=part.file.path, origin_position=part.position
        ):
            offset = header.end_offset
            batch = data[start:stop]
            if header.is_control:
                continue
            if header.codec:
                batch = memoryview(decompress_batch(batch, origin=part.file.path))
            preconditions.load_batch(
                read_publish_headers(batch, header.record_count, preconditions.hash_key),
                base_offset=header.base_offset,
                end_offset=header.end_offset,
                timestamp=header.max_timestamp,
            )
        read += part.length
    return read
