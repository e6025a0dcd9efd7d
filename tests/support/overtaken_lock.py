"""A lock for which somebody waits while something else happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class OvertakenLock:
    """The first one who takes it has waited for `meanwhile`, which may take it, too."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._meanwhile: Callable[[], object] | None = meanwhile

    def __enter__(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def overtaken_lock(meanwhile: Callable[[], object]) -> Any:
    """To be put in the place of a `threading.Lock`."""
    return OvertakenLock(meanwhile)
