"""Which truncation of a log readers have met, and how they wait for its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

MakeLock = Callable[[], AbstractContextManager[object]]
"""Makes a lock; `contextlib.nullcontext` where one thread does everything."""


class RunningTruncation:
    """Counts the truncations and resets of one log. One thread truncates, others read."""

    __slots__ = ("_lock", "version")

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """`lock` is held during each of them."""
        self.version = 0
        """Increases at the start and at the end of each truncation or reset: odd during one, and
        after one that failed."""
        self._lock = lock

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Within, a truncation is under way. An error within leaves `version` odd."""
        with self._lock:
            self.version += 1
            yield
            self.version += 1

    def has_changed_since(self, version: int) -> bool:
        """Whether a file may have been truncated since `self.version` was `version`."""
        return version % 2 == 1 or self.version != version

    def wait(self) -> None:
        """Return once no truncation is under way. Waits for the disk."""
        with self._lock:
            pass
