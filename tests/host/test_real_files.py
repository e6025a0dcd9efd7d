"""The files of the operating system where their disk fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bascule.host.real import RealFiles


def test_a_disk_that_does_not_say_whether_a_file_is_there_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.path.exists` says that it is not."""
    files, path = RealFiles(), tmp_path / "a"
    assert not files.exists(str(path))
    path.touch()
    assert files.exists(str(path))
    assert not files.exists(str(path / "b")), "below a file"

    def fail(name: str) -> None:
        raise OSError(errno.EIO, "Input/output error", name)

    monkeypatch.setattr(os, "lstat", fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.exists(str(path))
