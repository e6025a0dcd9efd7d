"""A failed fdatasync: waiting publishers get error acks, and the sync is not repeated."""

from __future__ import annotations

import errno

from bascule.host.real import RealRandom
from bascule.sim.disk import SimFiles
from support.replicas import awaited_batch, decode_acks, open_partition
from support.stored_batches import read_records


def test_eio_on_sync_is_final() -> None:
    files = SimFiles(RealRandom(1))
    partition = open_partition(files)
    assert partition.append(awaited_batch(b"in.0")) == b""
    assert decode_acks(partition.sync())["in.0"]["offset"] == 0
    for inbox in (b"in.1", b"in.2"):
        assert partition.append(awaited_batch(inbox)) == b"", "acks wait for the disk"
    files.fail(1, errno.EIO)
    acks = decode_acks(partition.sync())
    assert acks.keys() == {"in.1", "in.2"}
    for ack in acks.values():
        error = ack["error"]
        assert isinstance(error, dict)
        assert (error["code"], error["err_code"]) == (503, 20007)
        assert error["description"] == (
            "message may or may not be stored: partition 0 has stopped: EIO"
        )
    assert partition.counts.records_indeterminate == 2
    assert partition.failure is not None
    assert partition.high_watermark.offset == 1, "what was not confirmed is not served"
    operations = len(files.operations)
    assert partition.sync() == b""
    late = decode_acks(partition.append(awaited_batch(b"in.3")))
    assert "has stopped" in str(late["in.3"]["error"])
    assert len(files.operations) == operations, "the disk is not asked again"
    # Opened again, it has what was confirmed, and maybe what was not; all of it synced anew.
    files.crash()
    again = open_partition(files)
    assert again.log is not None
    assert [r.offset for r in read_records(again.log)][:1] == [0]
    assert again.append(awaited_batch(b"in.4")) == b""
    offset = decode_acks(again.sync())["in.4"]["offset"]
    assert offset == len(read_records(again.log)) - 1
