"""The output directory: taken by one demo at a time, emptied only if it is a demo's."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bascule.errors import ConfigError

MARK: Final = ".bascule-demo"
"""A file of this name makes a directory recognisable; it is locked while a demo runs."""


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """An empty directory at `path`, held against a second demo.

    Raises: ConfigError where it holds anything that no demo left, or another demo is running.
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
            raise ConfigError(
                f"another demo is running in {path}: give this one --output"
            ) from None
        for entry in path.iterdir():
            if entry.name == MARK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        yield path.resolve()
