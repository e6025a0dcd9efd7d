"""The names of directories that are to last are synced, whoever made them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bascule.host.real import RealFiles, make_lasting_dirs


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that are synced; they are."""
    found: list[str] = []
    sync_dir = RealFiles.sync_dir

    def noted(self: RealFiles, path: str) -> None:
        sync_dir(self, path)
        found.append(path)

    monkeypatch.setattr(RealFiles, "sync_dir", noted)
    return found


def test_all_new_names_are_synced(tmp_path: Path, synced: list[str]) -> None:
    path = tmp_path / "a" / "b" / "c"
    make_lasting_dirs(str(path))
    assert path.is_dir()
    assert sorted(synced) == [str(each) for each in (tmp_path, path.parents[1], path.parent)]


def test_a_name_that_is_there_is_synced(tmp_path: Path, synced: list[str]) -> None:
    """The process that made it may have been killed before it had synced it."""
    (tmp_path / "a").mkdir()
    make_lasting_dirs(str(tmp_path / "a"))
    assert synced == [str(tmp_path)]


def test_a_relative_path_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_lasting_dirs("a")
    assert (tmp_path / "a").is_dir()
    assert synced == ["."]


def test_a_file_is_refused(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FileExistsError):
        make_lasting_dirs(str(tmp_path / "a"))
    with pytest.raises(NotADirectoryError):
        make_lasting_dirs(str(tmp_path / "a" / "b"))
    assert synced == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_parent_that_may_not_be_read_is_no_error(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a").mkdir()
    tmp_path.chmod(0o300)
    try:
        make_lasting_dirs(str(tmp_path / "a"))
    finally:
        tmp_path.chmod(0o700)
    assert synced == []
