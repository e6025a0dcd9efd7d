"""The output directory: one demo uses it at a time, and only a demo's directory is emptied."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bascule.errors import ConfigError

MARK: Final = ".bascule-demo"
"""A file of this name marks a demo's directory. It is locked while a demo runs."""


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """Create or empty the directory at `path` and lock it.

    Raises: ConfigError if it holds files that no demo wrote, or if another demo is running.
    """
    mark = path / MARK
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--output {path} is not a directory")
    if path.is_dir() and any(path.iterdir()) and not mark.is_file():
        raise ConfigError(
            f"--output {path} is not empty and was not made by a demo: give an empty or new one"
        )
    path.mkdir(parents=True, exist_ok=True)
    with mark.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another demo is running in {path}: use another --output") from None
        for entry in path.iterdir():
            if entry.name == MARK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        yield path.resolve()
