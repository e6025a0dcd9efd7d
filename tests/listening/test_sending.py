"""How the pieces of a response go out: small slices of files in one call, others by sendfile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bascule.errors import Broken
from bascule.host.real import RealFile
from bascule.listening.sending import SMALL_BYTES
from bascule.storage.partition_log import FileSlice
from bascule.storage.segment import FileSlices
from support.sent_pieces import sent

CONTENT = bytes(range(256)) * 128


class AwayFile(RealFile):
    """A file of which a read that must not wait finds nothing."""

    __slots__ = ()

    def read_at_nowait(self, position: int, length: int) -> bytes | None:
        return None


def slice_of(path: Path, position: int, length: int, kind: type[RealFile] = RealFile) -> FileSlice:
    path.write_bytes(CONTENT)
    return FileSlice(kind(os.open(path, os.O_RDWR), str(path)), position, length)


def test_small_slices_go_out_with_the_bytes_around_them(tmp_path: Path) -> None:
    first = slice_of(tmp_path / "a", 10, 100)
    second = slice_of(tmp_path / "b", 0, SMALL_BYTES - 100)
    received, counts = sent([b"head", first, b"between", second, b"tail"])
    assert received == (
        b"head" + CONTENT[10:110] + b"between" + CONTENT[: SMALL_BYTES - 100] + b"tail"
    )
    assert (counts.bytes_out, counts.bytes_sendfile) == (len(received), 0)


def test_slices_that_are_larger_together_go_out_by_sendfile(tmp_path: Path) -> None:
    first = slice_of(tmp_path / "a", 10, 101)
    second = slice_of(tmp_path / "b", 0, SMALL_BYTES - 100)
    received, counts = sent([b"head", first, second])
    assert received == b"head" + CONTENT[10:111] + CONTENT[: SMALL_BYTES - 100]
    assert (counts.bytes_out, counts.bytes_sendfile) == (len(received), SMALL_BYTES + 1)


@pytest.mark.parametrize("count", [20, 20_000])
def test_slices_of_several_segments_go_out_in_their_order(tmp_path: Path, count: int) -> None:
    first, second = slice_of(tmp_path / "a", 10, count), slice_of(tmp_path / "b", 5, count)
    received, _ = sent([b"head", FileSlices((first, second)), b"between", second])
    assert received == (
        b"head" + CONTENT[10 : 10 + count] + CONTENT[5 : 5 + count] + b"between"
        + CONTENT[5 : 5 + count]
    )  # fmt: skip


def test_a_small_slice_that_is_not_in_the_page_cache_goes_out_by_sendfile(tmp_path: Path) -> None:
    piece = slice_of(tmp_path / "a", 10, 100, AwayFile)
    received, counts = sent([b"head", piece])
    assert received == b"head" + CONTENT[10:110]
    assert counts.bytes_sendfile == 100


def test_a_small_slice_behind_the_end_of_its_file_is_an_error(tmp_path: Path) -> None:
    piece = slice_of(tmp_path / "a", len(CONTENT) - 50, 100)
    with pytest.raises(Broken, match=f"ends at byte {len(CONTENT)}, expected at least"):
        sent([b"head", piece])


class SmallCacheFile(RealFile):
    """A file of which the page cache keeps nothing."""

    __slots__ = ("bytes_loaded",)

    def __init__(self, fd: int, path: str) -> None:
        super().__init__(fd, path)
        self.bytes_loaded = 0

    def is_cached(self, start: int, end: int) -> bool:
        return False

    def load(self, start: int, end: int) -> None:
        self.bytes_loaded += end - start


def test_a_page_cache_that_keeps_nothing_does_not_make_each_chunk_read_all(tmp_path: Path) -> None:
    size, checked = 24 << 20, []
    path = tmp_path / "a"
    with path.open("wb") as created:
        created.truncate(size)
    file = SmallCacheFile(os.open(path, os.O_RDWR), str(path))

    def check(*, start: int, end: int) -> None:
        checked.append(end - start)

    received, counts = sent([FileSlice(file, 0, size, check=check)])
    assert len(received) == counts.bytes_sendfile == size
    assert file.bytes_loaded == sum(checked) <= 4 * size
