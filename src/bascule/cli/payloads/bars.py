"""The progress bar of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bascule.cli.output import err

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def byte_bar(what: str, *, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    """A bar on standard error while a payload is on its way; none where that is no terminal."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield bar, bar.add_task(what, total=total)
