"""Reusable memory for responses with records."""

from __future__ import annotations

import threading
from typing import Final

GROWTH_BYTES: Final = 1 << 20
"""Memory grows by multiples of this, so that it seldom does."""
BUFFERS: Final = 3
"""Responses of one leader that are received and not yet appended, at most."""


class ReceiveBuffer:
    """One response in memory. Its last user gives it back."""

    def __init__(self, owner: ReceiveBuffers) -> None:
        self._owner = owner
        self._memory = bytearray()
        self._users = 0
        self._lock = threading.Lock()

    def view(self, size: int) -> memoryview:
        """`size` bytes to receive into."""
        if size > len(self._memory):
            self._memory = bytearray(-(-size // GROWTH_BYTES) * GROWTH_BYTES)
        return memoryview(self._memory)[:size]

    def retain(self) -> None:
        """One more user."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """One user less. Any thread may call it."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._owner.put_back(self)


class ReceiveBuffers:
    """The buffers of one fetcher. Taking one waits until one is free."""

    def __init__(self, count: int = BUFFERS) -> None:
        self._free = [ReceiveBuffer(self) for _ in range(count)]
        self._changed = threading.Condition()

    def take(self, timeout: float) -> ReceiveBuffer | None:
        """A buffer with one user; None if none is free for `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, timeout):
                return None
            found = self._free.pop()
        found.retain()
        return found

    def put_back(self, buffer: ReceiveBuffer) -> None:
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()
