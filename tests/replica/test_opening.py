"""Opening a partition: its identity, its dedupe window, and failures."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from bascule.controller.directories import StreamDirectories
from bascule.errors import Closed
from bascule.host.real import RealRandom
from bascule.metadata.apply import apply
from bascule.metadata.commands import CreateStream
from bascule.metadata.image import Image
from bascule.model import PartitionState, StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey, read_publish_headers
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.opening import PartitionOpener, close_partition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.sim.disk import SimClock, SimFiles
from support.killed_files import FilesOfKilled, Killed

DIRECTORY = "/data/streams/s/0"
HASH_KEY = HashKey(bytes(16))
DEFINITION = StreamDefinition("s", b"i" * 16, 0, StreamConfig(subject="s"))
WINDOW_MS = DEFINITION.config.dedupe_window_ms
IMAGE = apply(Image(), CreateStream(DEFINITION, (PartitionState((1,), (1,), 1, 0, 0),)), index=1)
OTHER = StreamDefinition("s", b"j" * 16, 0, StreamConfig(subject="s"))


class Disk:
    """A disk, and the partition opened on it."""

    def __init__(self) -> None:
        self.files = SimFiles(RealRandom(1))
        self.clock = SimClock(1_000_000)

    def open(
        self, definition: StreamDefinition = DEFINITION, *, adopt: bool = False
    ) -> tuple[Partition, bool]:
        opener = PartitionOpener(self.files, self.clock, HASH_KEY, Partitions())
        found, retry = opener.open(definition, 0, DIRECTORY, adopt=adopt, held=False)
        if found.log is not None:
            epoch = found.log.epochs.latest + 1
            found.set_role(PartitionState((1,), (1,), 1, epoch, epoch), 1, lag_ns_max=1)
        return found, retry


@pytest.fixture
def disk() -> Disk:
    return Disk()


def publish(partition: Partition, message_id: str) -> None:
    headers = (("Nats-Msg-Id", message_id.encode()),)
    data = build_batch([Record(0, 0, None, b"v", headers)], base_offset=0, log_append_time=True)
    batch = UnstampedBatch(data=memoryview(data), record_count=1)
    batch.headers = read_publish_headers(batch.data, 1, HASH_KEY)
    partition.append(batch)
    partition.sync()


def test_message_ids_within_the_window_are_known_after_a_restart(disk: Disk) -> None:
    first, _ = disk.open()
    for message_id in ("too old", "a", "b"):
        publish(first, message_id)
        if message_id == "too old":
            disk.clock.ms += 2 * DEFINITION.config.dedupe_window_ms
    close_partition(first)
    again, _ = disk.open()
    for message_id in ("a", "b"):
        publish(again, message_id)
    assert again.preconditions.counts.duplicates == 2
    publish(again, "too old")
    assert again.high_watermark.offset == 4


def test_the_log_of_a_deleted_partition_is_closed_without_the_disk(disk: Disk) -> None:
    """A segment for nearly each message, and its indexes, had a node wait for minutes."""
    partition, _ = disk.open()
    publish(partition, "a")
    before = len(disk.files.operations)
    partition.deleted = True
    assert close_partition(partition)
    assert close_partition(partition)
    assert disk.files.operations[before:] == []
    assert partition.log is not None
    with pytest.raises(Closed):
        partition.log.sync()
    again, _ = disk.open()
    assert again.log is not None
    assert again.log.end.offset == 1, "its removal may fail"


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("opened_ms", [-4 * WINDOW_MS, 0, WINDOW_MS])
def test_an_id_counts_from_its_last_record_where_the_log_has_more_than_the_window(
    disk: Disk, opened_ms: int, is_killed: bool
) -> None:
    """Also if the clock was set back before the restart."""
    first, _ = disk.open()
    for message_id in ("old", "a"):
        publish(first, message_id)
    write_checkpoint(first)
    disk.clock.ms += WINDOW_MS + 1
    for message_id in ("a", "b"):
        publish(first, message_id)
    stored_ms = disk.clock.ms
    assert first.high_watermark.offset == 4
    if not is_killed:
        close_partition(first)
    disk.clock.ms = stored_ms + opened_ms
    again, _ = disk.open()
    for later_ms, end in ((WINDOW_MS, 4), (WINDOW_MS + 1, 6)):
        disk.clock.ms = stored_ms + later_ms
        for message_id in ("b", "a"):
            publish(again, message_id)
        assert again.preconditions.counts.duplicates == 2
        assert again.high_watermark.offset == end
    publish(again, "old")
    assert again.high_watermark.offset == 7


def test_an_id_counts_from_its_last_record_where_it_was_forgotten_early(disk: Disk) -> None:
    """The log has it twice within the window, which has room for more after the restart."""
    config = replace(DEFINITION.config, dedupe_messages_max=2)
    first, _ = disk.open(replace(DEFINITION, config=config))
    for message_id in ("a", "b", "c"):
        publish(first, message_id)
    disk.clock.ms += WINDOW_MS - 1
    for message_id in ("d", "a"):
        publish(first, message_id)
    assert first.high_watermark.offset == 5
    close_partition(first)
    again, _ = disk.open()
    disk.clock.ms += WINDOW_MS
    publish(again, "a")
    assert again.high_watermark.offset == 5
    publish(again, "b")
    assert again.high_watermark.offset == 6


def test_the_log_of_another_stream_fails(disk: Disk) -> None:
    first, _ = disk.open()
    close_partition(first)
    found, retry = disk.open(OTHER)
    assert "directories were exchanged" in str(found.failure)
    assert found.log is None
    assert not retry


def test_a_log_without_an_identity_is_only_adopted_on_request(disk: Disk) -> None:
    first, _ = disk.open()
    publish(first, "a")
    close_partition(first)
    disk.files.remove(f"{DIRECTORY}/identity")
    refused, retry = disk.open()
    assert "the identity" in str(refused.failure)
    assert not retry
    adopted, _ = disk.open(adopt=True)
    assert adopted.failure is None
    assert adopted.high_watermark.offset == 1


def test_a_failed_disk_is_worth_a_retry(disk: Disk) -> None:
    disk.files.fail(1, errno.EIO)
    failed, retry = disk.open()
    assert failed.failure is not None
    assert retry
    found, retry = disk.open()
    assert found.failure is None
    assert not retry


@pytest.mark.parametrize("index", [0, 1])
def test_the_directory_of_a_log_that_a_killed_process_made_is_on_the_disk(index: int) -> None:
    """Before anything in it is confirmed. The next process finds it in the page cache."""
    for number in count(1):
        for seed in range(4):
            files = FilesOfKilled(RealRandom(seed))
            files.make_dirs("/data")
            files.left = number
            is_done = False
            with suppress(Killed):
                Process(files).create(index)
                is_done = True
            files.left = -1
            publish(Process(files).create(index), "a")
            files.crash()
            found, _ = Process(files).open(index, held=True)
            assert found.failure is None, (number, seed)
            assert found.log is not None
            assert found.log.end.offset == 1
        if is_done:
            return


@pytest.mark.parametrize("index", [0, 1])
def test_the_directory_of_a_log_that_an_attempt_made_is_on_the_disk(index: int) -> None:
    """The disk failed to sync its name."""
    for number in count(1):
        for seed in range(4):
            files = SimFiles(RealRandom(seed))
            files.make_dirs("/data")
            process = Process(files)
            files.fail(number, errno.EIO)
            process.open(index, held=False)
            is_done = files.fault_pending()
            files.forget_faults()
            publish(process.create(index), "a")
            files.crash()
            found, _ = Process(files).open(index, held=True)
            assert found.failure is None, (number, seed)
            assert found.log is not None
            assert found.log.end.offset == 1
        if is_done:
            return


class Process:
    """What a process does with its stream directories."""

    def __init__(self, files: SimFiles) -> None:
        self.directories = StreamDirectories(files, "/data")
        self.directories.prepare(IMAGE)
        self.opener = PartitionOpener(files, SimClock(1_000_000), HASH_KEY, Partitions())

    def create(self, index: int) -> Partition:
        """Open the log of this partition; all before it are created as well."""
        for number in range(index + 1):
            found, _ = self.open(number, held=False)
            assert found.failure is None
            assert found.log is not None
            epoch = found.log.epochs.latest + 1
            found.set_role(PartitionState((1,), (1,), 1, epoch, epoch), 1, lag_ns_max=1)
        return found

    def open(self, index: int, *, held: bool) -> tuple[Partition, bool]:
        directory = self.directories.partition("s", index)
        return self.opener.open(DEFINITION, index, directory, adopt=False, held=held)
