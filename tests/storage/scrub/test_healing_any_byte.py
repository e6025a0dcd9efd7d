"""Damage any byte of one replica's log: it is opened up to its damage and copies the rest, and is
equal to the others, as the healer does it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from bascule.errors import BasculeError, CorruptData
from bascule.host.real import RealRandom
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.scrub import RangeDigests, compare
from bascule.storage.truncation.salvage import complete_changes, keep_part, readable_part
from fuzz.storage_targets import content_of, load
from support.stored_batches import DIRECTORY, append, open_log, read_batches

CONFIG = LogConfig(segment_bytes_max=400, index_interval_bytes=200)
SAMPLE_STEP = 3


def written(*, clean: bool) -> dict[str, bytes]:
    """Seven batches in some segments, with two leader epochs and a checkpoint in the middle."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    for n in range(7):
        append(log, 3, size=20, timestamp=n, leader_epoch=n // 3)
        log.sync()
        if n == 3:
            log.checkpoint(high_watermark=log.end.offset)
    if clean:
        log.close()
    return content_of(files)


def verified(files: SimFiles) -> PartitionLog:
    """Raises: CorruptData."""
    log = open_log(files, CONFIG)
    at = log.verify()
    while at is not None:
        at = log.verify(at)
    return log


def opened_up_to_damage(files: SimFiles) -> PartitionLog:
    """As the healer opens a log. Raises: CorruptData, OSError."""
    try:
        return verified(files)
    except CorruptData:
        part = None
        if complete_changes(files, DIRECTORY):
            part = readable_part(files, DIRECTORY, index_interval_bytes=200, gaps_allowed=False)
        if part is None:
            files.remove_tree(DIRECTORY)
        else:
            keep_part(files, DIRECTORY, part, SimClock(1_000))
        return verified(files)


def copy_rest(log: PartitionLog, healthy: list[bytes]) -> None:
    """Append what follows, as a follower."""
    for batch in healthy:
        if int.from_bytes(batch[:8], "big") >= log.end.offset:
            log.append_as_follower(batch)
    log.sync()


def damages(data: bytes, at: int) -> Iterator[bytes]:
    for flip in (0x01, 0x80, 0xFF):
        yield data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    yield data[:at]


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
def test_a_replica_that_is_damaged_anywhere_becomes_equal(
    clean: bool, request: pytest.FixtureRequest
) -> None:
    step = 1 if request.config.getoption("--torture") else SAMPLE_STEP
    content = written(clean=clean)
    healthy = read_batches(open_log(load(content), CONFIG))
    equal = refused = 0
    for row, name in enumerate(content):
        for at in range(row % step, len(content[name]), step):
            for data in damages(content[name], at):
                files = load({**content, name: data})
                try:
                    log = opened_up_to_damage(files)
                    copy_rest(log, healthy)
                    found = read_batches(verified(files))
                except (BasculeError, OSError) as error:
                    assert not name.endswith(".log"), f"{name} at {at}: {error}"
                    refused += 1
                else:
                    assert found == healthy, f"{name} damaged at byte {at}"
                    equal += 1
    assert equal > 20 * refused


def test_healing_can_be_broken_off_anywhere() -> None:
    """Each operation of the disk fails once: the next attempt heals."""
    content = written(clean=False)
    healthy = read_batches(open_log(load(content), CONFIG))
    name = min(each for each in content if each.endswith(".log"))
    damaged = bytearray(content[name])
    damaged[len(damaged) // 2] ^= 1
    for operation in range(1, 1_000):
        files = load({**content, name: bytes(damaged)})
        files.fail(operation, errno.EIO)
        try:
            copy_rest(opened_up_to_damage(files), healthy)
        except (OSError, BasculeError):
            files.forget_faults()
            files.crash()
            copy_rest(opened_up_to_damage(files), healthy)
        is_over = files.fault_pending()
        files.forget_faults()
        assert read_batches(verified(files)) == healthy, f"operation {operation}"
        if is_over:
            return
    raise AssertionError("healing never ends")


def test_healed_replicas_have_equal_digests() -> None:
    content = written(clean=True)
    name = max(each for each in content if each.endswith(".log"))
    data = bytearray(content[name])
    data[len(data) // 2] ^= 1
    files = load({**content, name: bytes(data)})
    log = opened_up_to_damage(files)
    healthy = open_log(load(content), CONFIG)
    copy_rest(log, read_batches(healthy))
    found = []
    for each in (log, healthy):
        digests = RangeDigests(0, healthy.end.offset)
        at = each.verify(None, digests.add)
        while at is not None:
            at = each.verify(at, digests.add)
        found.append(digests.ranges())
    compared = compare(*found)
    assert (compared.compared, compared.differing) == (healthy.end.offset, ())
