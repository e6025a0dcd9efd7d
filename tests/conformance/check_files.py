"""What every file system handed to Bascule keeps to: run on the real one and on the simulated one.

Each check takes a file system and an empty directory of it.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable
from typing import Final

import pytest

from bascule.host.api import Files

Check = Callable[[Files, str], None]


def check_append_reads_back(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.append(b"one")
    file.append(b"two", bytearray(b"three"), memoryview(b"four"))
    assert file.size() == files.size(f"{root}/a") == 15
    assert file.read_at(0, 15) == files.read_bytes(f"{root}/a") == b"onetwothreefour"
    assert file.read_at(3, 3) == b"two"
    assert file.path == f"{root}/a"


def check_append_takes_many_buffers(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    parts = [bytes([n % 256]) * (n % 7) for n in range(3_000)]
    file.append(*parts)
    assert files.read_bytes(f"{root}/a") == b"".join(parts)


def check_append_of_nothing(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.append()
    file.append(b"")
    assert file.size() == 0


def check_reads_stop_at_the_end(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.append(b"0123456789")
    assert file.read_at(8, 100) == b"89"
    assert file.read_at(10, 1) == b""
    assert file.read_at(1_000, 1) == b""
    assert file.read_at(0, 0) == b""
    assert file.read_at_nowait(8, 100) in (b"89", None)
    assert file.read_at_nowait(1_000, 1) in (b"", None)
    with pytest.raises(OSError):
        file.read_at(-1, 1)


def check_truncate_moves_the_end(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.append(b"0123456789")
    file.truncate(4)
    assert file.size() == 4
    file.append(b"xy")
    assert file.read_at(0, 100) == b"0123xy"
    file.truncate(8)
    assert file.read_at(0, 100) == b"0123xy\0\0"


def check_two_openings_see_one_file(files: Files, root: str) -> None:
    writer = files.open(f"{root}/a", create=True)
    reader = files.open(f"{root}/a", write=False)
    writer.append(b"seen")
    assert reader.read_at(0, 10) == b"seen"
    with pytest.raises(OSError) as caught:
        reader.append(b"no")
    assert caught.value.errno == errno.EBADF
    again = files.open(f"{root}/a", create=True)
    again.append(b" twice")
    assert files.read_bytes(f"{root}/a") == b"seen twice"


def check_write_at_goes_where_it_is_told(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.write_at(0, b"first")
    file.write_at(5, b"second")
    file.write_at(3, memoryview(b"STse"))
    assert files.read_bytes(f"{root}/a") == b"firSTsecond"
    file.write_at(14, bytearray(b"far"))
    assert files.read_bytes(f"{root}/a") == b"firSTsecond" + bytes(3) + b"far"
    file.write_at(2, b"")
    assert file.size() == 17
    with pytest.raises(OSError) as caught:
        files.open(f"{root}/a", write=False).write_at(0, b"x")
    assert caught.value.errno == errno.EBADF


def check_write_again_changes_nothing(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.append(b"0123456789" * 300_000)
    file.write_again(5, 2_999_000)
    file.write_again(2_999_999, 100)
    file.sync()
    assert files.read_bytes(f"{root}/a") == b"0123456789" * 300_000


def check_write_back_changes_nothing(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.append(b"0123456789" * 300_000)
    file.write_back(0, 1 << 20)
    file.write_back(1 << 20, 10 << 20)  # beyond its end
    file.write_back(5, 5)
    file.sync()
    assert files.read_bytes(f"{root}/a") == b"0123456789" * 300_000


def check_a_sync_beside_appends(files: Files, root: str) -> None:
    """One thread appends while another syncs."""
    file = files.open(f"{root}/a", create=True)
    failures: list[BaseException] = []
    done = threading.Event()

    def sync_on() -> None:
        try:
            while not done.is_set():
                file.sync()
        except BaseException as error:
            failures.append(error)

    syncing = threading.Thread(target=sync_on)
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        syncing.start()
        for _ in range(300):
            file.append(b"x" * 50_000)
    finally:
        done.set()
        syncing.join()
        sys.setswitchinterval(switch_interval)
    assert not failures
    assert file.size() == 15_000_000


def check_removed_file_stays_readable(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.append(b"still here")
    files.remove(f"{root}/a")
    assert not files.exists(f"{root}/a")
    assert file.read_at(0, 100) == b"still here"


def check_rename_replaces(files: Files, root: str) -> None:
    old = files.open(f"{root}/a", create=True)
    old.append(b"old")
    new = files.open(f"{root}/b", create=True)
    new.append(b"new")
    new.sync()
    files.rename(f"{root}/b", f"{root}/a")
    files.sync_dir(root)
    assert files.list_dir(root) == ["a"]
    assert files.read_bytes(f"{root}/a") == b"new"
    assert old.read_at(0, 3) == b"old"


def check_rename_moves_between_directories(files: Files, root: str) -> None:
    files.make_dirs(f"{root}/from/inner")
    files.make_dirs(f"{root}/to")
    files.open(f"{root}/from/inner/f", create=True).append(b"kept")
    files.rename(f"{root}/from/inner", f"{root}/to/moved")
    assert files.list_dir(f"{root}/from") == []
    assert files.read_bytes(f"{root}/to/moved/f") == b"kept"


def check_directories(files: Files, root: str) -> None:
    files.make_dirs(f"{root}/x/y/z")
    files.make_dirs(f"{root}/x/y/z")
    files.open(f"{root}/x/y/f", create=True)
    assert files.list_dir(f"{root}/x/y") == ["f", "z"]
    assert files.exists(f"{root}/x/y")
    files.remove_tree(f"{root}/x")
    assert not files.exists(f"{root}/x")
    assert files.list_dir(root) == []


def check_missing_things(files: Files, root: str) -> None:
    for ask in (
        lambda: files.open(f"{root}/no"),
        lambda: files.open(f"{root}/no/no", create=True),
        lambda: files.read_bytes(f"{root}/no"),
        lambda: files.size(f"{root}/no"),
        lambda: files.list_dir(f"{root}/no"),
        lambda: files.remove(f"{root}/no"),
        lambda: files.rename(f"{root}/no", f"{root}/other"),
        lambda: files.sync_dir(f"{root}/no"),
    ):
        with pytest.raises(FileNotFoundError):
            ask()
    assert not files.exists(f"{root}/no")
    assert not files.exists(f"{root}/no/no")


def check_a_directory_is_no_file(files: Files, root: str) -> None:
    files.make_dirs(f"{root}/d")
    files.open(f"{root}/f", create=True)
    with pytest.raises(OSError):
        files.open(f"{root}/d")
    with pytest.raises(OSError):
        files.remove(f"{root}/d")
    with pytest.raises(NotADirectoryError):
        files.list_dir(f"{root}/f")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        files.make_dirs(f"{root}/f")


def check_closed_file_refuses(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.close()
    file.close()
    with pytest.raises(OSError) as caught:
        file.append(b"late")
    assert caught.value.errno == errno.EBADF


CHECKS: Final[tuple[Check, ...]] = tuple(
    check for name, check in sorted(globals().items()) if name.startswith("check_")
)
