"""Appends that fail on a full disk: what publishers are told, and what the log says of a run."""

from __future__ import annotations

import errno
import logging

import pytest

from bascule.host.real import RealRandom
from bascule.sim.disk import SimFiles
from support.replicas import awaited_batch, decode_acks, open_partition


def fail_append(files: SimFiles, error: int) -> None:
    """Let the next write fail; what it wrote is taken back after it."""
    files.fail(1, error)


def test_a_run_of_failures_is_logged_once_and_its_end_with_the_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = SimFiles(RealRandom(1))
    partition = open_partition(files)
    caplog.set_level(logging.INFO, "bascule.replica")
    for number in range(50):
        fail_append(files, errno.ENOSPC)
        acks = decode_acks(partition.append(awaited_batch(b"in.%d" % number)))
        error = acks[f"in.{number}"]["error"]
        assert isinstance(error, dict)
        assert (error["code"], error["err_code"]) == (503, 10077)
        assert error["description"] == "message was not stored: ENOSPC"
    fail_append(files, errno.EIO)
    partition.append(awaited_batch(b"in.50"))
    partition.append(awaited_batch(b"in.51"))
    partition.append(awaited_batch(b"in.52"))
    messages = [record.message for record in caplog.records]
    assert messages == ["append failed", "append failed", "append works again"]
    end = caplog.records[-1].__dict__
    assert (end["failures"], end["records_not_stored"], end["reason"]) == (51, 51, "EIO")
    assert partition.counts.records_not_stored == 51
    assert partition.counts.records == 2


def test_what_could_not_be_taken_back_may_be_stored() -> None:
    files = SimFiles(RealRandom(1))
    partition = open_partition(files)
    partition.append(awaited_batch(b"in.first"))
    files.fail(1, errno.EIO)
    files.fail(2, errno.EIO)
    error = decode_acks(partition.append(awaited_batch(b"in.0")))["in.0"]["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["err_code"]) == (503, 20007)
    assert partition.failure is not None
    late = decode_acks(partition.append(awaited_batch(b"in.1")))["in.1"]["error"]
    assert isinstance(late, dict)
    assert (late["code"], late["err_code"]) == (503, 10077), "nothing was written for this one"
    assert "/" not in late["description"]
