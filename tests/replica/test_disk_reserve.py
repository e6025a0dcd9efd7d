"""The reserve of a full disk: given back once, and appends get none of it."""

from __future__ import annotations

import errno

import pytest

from bascule.errors import DiskFull
from bascule.host.real import RealFiles, RealRandom
from bascule.replica.disk_reserve import MARGIN_BYTES, START_BYTES, DiskReserve, give_back_at_start
from bascule.replica.log_writer import LogWriter
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.sim.disk import SimClock, SimFiles
from support.replicas import awaited_batch, decode_acks, open_partition

SIZE = 3_000_000


class FullDisk:
    """Something that needs room and gets it at the `needed`-th call."""

    def __init__(self, files: SimFiles, needed: int, error: int = errno.ENOSPC) -> None:
        self.files = files
        self.left = needed
        self.error = error
        self.sizes: list[int] = []

    def change(self) -> str:
        self.sizes.append(self.files.size("/reserve"))
        self.left -= 1
        if self.left:
            raise OSError(self.error, "no space", "/f")
        return "changed"


def held(files: SimFiles) -> DiskReserve:
    reserve = DiskReserve(files, "/", RealRandom(1), size_bytes=SIZE)
    reserve._path = "/reserve"
    assert reserve.hold()
    assert files.size("/reserve") == SIZE
    return reserve


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_the_reserve_is_given_back_once_and_held_again(error: int) -> None:
    files = SimFiles(RealRandom(1))
    reserve = held(files)
    disk = FullDisk(files, 2, error)
    assert reserve.run(disk.change) == "changed"
    assert disk.sizes == [SIZE, 0]
    assert reserve.is_released
    with pytest.raises(DiskFull, match="bytes are free; purge or delete"):
        reserve.run(FullDisk(files, 3, error).change)
    files.fail(3, errno.ENOSPC)
    assert not reserve.hold()
    assert (reserve.is_released, files.size("/reserve")) == (True, 0)
    assert reserve.hold()
    assert (reserve.is_released, files.size("/reserve")) == (False, SIZE)


@pytest.mark.parametrize("operation", [2, 3])
def test_a_reserve_that_cannot_be_given_back_is_held(operation: int) -> None:
    files = SimFiles(RealRandom(1))
    reserve = held(files)
    files.fail(operation, errno.EIO)
    with pytest.raises(DiskFull):
        reserve.run(FullDisk(files, 2, errno.ENOSPC).change)
    assert (reserve.is_released, files.size("/reserve")) == (False, SIZE)
    assert reserve.hold()
    assert reserve.run(FullDisk(files, 2, errno.ENOSPC).change) == "changed"


def test_what_makes_no_room_gets_no_room() -> None:
    files = SimFiles(RealRandom(1))
    reserve = held(files)
    with pytest.raises(DiskFull):
        reserve.check(FullDisk(files, 2).change)
    assert not reserve.is_released
    with pytest.raises(OSError, match="no space"):
        reserve.run(FullDisk(files, 2, errno.EIO).change)
    assert not reserve.is_released


def test_a_reserve_that_never_fitted_refuses_no_append() -> None:
    files = SimFiles(RealRandom(1))
    reserve = DiskReserve(files, "/d", RealRandom(1), size_bytes=SIZE)
    assert not reserve.hold(), "there is no such directory"
    with pytest.raises(DiskFull):
        reserve.run(FullDisk(files, 2).change if files.exists("/reserve") else _full)
    assert not reserve.is_released


def _full() -> None:
    raise OSError(errno.ENOSPC, "no space", "/f")


def test_appends_are_refused_while_the_reserve_is_given_back() -> None:
    files = SimFiles(RealRandom(1))
    reserve = held(files)
    partition = open_partition(files)
    sent: list[bytes] = []
    syncer = LogSyncer(clock=SimClock(1_000))
    writer = LogWriter(syncer, reserve)
    syncer.start(sent.append)
    writer.start(sent.append)
    reserve.run(FullDisk(files, 2).change)
    writer.append(partition, [awaited_batch(b"in.0")])
    writer.wait_written()
    error = decode_acks(sent.pop())["in.0"]["error"]
    assert error == {
        "code": 503, "err_code": 10077, "description": "message was not stored: the disk is full"
    }  # fmt: skip
    assert partition.counts.records_not_stored == 1
    assert reserve.hold()
    writer.append(partition, [awaited_batch(b"in.1")])
    writer.stop()
    syncer.stop()
    assert decode_acks(b"".join(sent))["in.1"]["offset"] == 0


def test_an_attempt_to_hold_it_takes_no_room_from_others() -> None:
    """It is repeated every few seconds: others would find the disk full each time."""

    class SmallDisk(SimFiles):
        free_bytes = SIZE - 1

        def room(self, path: str) -> tuple[int, int]:
            return self.free_bytes, 1 << 40

    files = SmallDisk(RealRandom(1))
    reserve = DiskReserve(files, "", RealRandom(1), size_bytes=SIZE)
    assert not reserve.hold()
    assert not files.exists("/reserve")
    files.free_bytes = SIZE
    assert reserve.hold()
    files.free_bytes = 0
    again = DiskReserve(files, "", RealRandom(1), size_bytes=SIZE)
    assert again.hold(), "the process before has left it"


class CountedDisk(SimFiles):
    """So many bytes are free besides the files that are there now."""

    free_bytes = 0

    def room(self, path: str) -> tuple[int, int]:
        held = self.size("/reserve") if self.exists("/reserve") else 0
        return self.free_bytes + SIZE - held, 1 << 40


@pytest.mark.parametrize("free_bytes", [0, START_BYTES - 1, START_BYTES])
def test_a_node_that_starts_on_a_full_disk_gives_back_what_is_left_of_its_reserve(
    free_bytes: int,
) -> None:
    files = CountedDisk(RealRandom(1))
    files.free_bytes = 1 << 30
    held(files)
    files.free_bytes = free_bytes
    gives_back = free_bytes < START_BYTES
    for _ in range(2):  # and once more, if the node is restarted meanwhile
        give_back_at_start(files, "")
        assert files.size("/reserve") == (0 if gives_back else SIZE)
        again = DiskReserve(files, "", RealRandom(1), size_bytes=SIZE)
        assert again.hold() is not gives_back
        assert again.is_released is gives_back, "appends would use it up"
    files.free_bytes = MARGIN_BYTES
    assert again.hold()
    assert not again.is_released


def test_a_disk_without_room_for_a_reserve_is_no_full_one() -> None:
    """An attempt that fails leaves no file: an empty one would say that it was given back."""
    files = SimFiles(RealRandom(1))
    files.fail(3, errno.ENOSPC)
    assert not DiskReserve(files, "", RealRandom(1), size_bytes=SIZE).hold()
    assert not files.exists("/reserve")
    again = DiskReserve(files, "", RealRandom(1), size_bytes=SIZE)
    give_back_at_start(files, "")
    assert again.hold()


def test_the_room_of_a_real_disk() -> None:
    free_bytes, all_bytes = RealFiles().room("/")
    assert 0 <= free_bytes <= all_bytes
