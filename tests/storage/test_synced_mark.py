"""The files of synced marks: few stay open, whatever is written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from bascule.host.real import RealFiles
from bascule.storage import synced_mark
from bascule.storage.segment import LogPosition
from bascule.storage.synced_mark import FILE_NAME, SyncedMark, read_mark

OPEN_MAX = 3


def open_marks(place: Path) -> int:
    """Descriptors of this process for marks below a directory."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # other threads close theirs
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(name.startswith(str(place)) and name.endswith(FILE_NAME) for name in names)


def test_few_files_stay_open_and_each_mark_is_the_last_one_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ten thousand partitions the marks were as many descriptors as the logs."""
    monkeypatch.setattr(synced_mark, "OPEN_MAX", OPEN_MAX)
    files = RealFiles()
    marks = []
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        marks.append(SyncedMark(files, f"{tmp_path}/{number}"))
    for turn in range(1, 5):
        for number, mark in enumerate(marks):
            mark.write(LogPosition(100 * turn + number, 0, turn))
            assert open_marks(tmp_path) <= OPEN_MAX
    for number in range(10):
        latest, _ = read_mark((tmp_path / str(number) / FILE_NAME).read_bytes())
        assert latest == LogPosition(400 + number, 0, 4)


@pytest.mark.parametrize("checkpoints", [0, 5 * OPEN_MAX])
def test_a_mark_that_is_written_again_and_again_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: int
) -> None:
    """Also after it was released and opened more often than files may be open."""
    monkeypatch.setattr(synced_mark, "OPEN_MAX", OPEN_MAX)
    opened = 0

    class Counting(RealFiles):
        def open(self, path: str, **options: bool) -> object:  # type: ignore[override]
            nonlocal opened
            opened += 1
            return super().open(path, **options)

    files = Counting()
    marks = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        marks.append(SyncedMark(files, f"{tmp_path}/{number}"))  # type: ignore[arg-type]
    for _ in range(checkpoints):
        for mark in marks:
            mark.write(LogPosition(0, 0, 0))
            mark.release()
    opened = 0
    for offset in range(100):
        for mark in marks:
            mark.write(LogPosition(offset, 0, 0))
    assert opened == 2


def test_marks_and_their_files_are_forgotten_with_their_logs(tmp_path: Path) -> None:
    files = RealFiles()
    mark = SyncedMark(files, str(tmp_path))
    mark.write(LogPosition(1, 0, 1))
    assert open_marks(tmp_path) == 1
    del mark
    assert open_marks(tmp_path) == 0
    before = len(synced_mark._opened)
    del files
    assert len(synced_mark._opened) == before - 1
