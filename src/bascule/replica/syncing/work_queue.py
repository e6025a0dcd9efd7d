"""A queue of work for several threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class WorkQueue(Generic[T]):
    """Items in order, each for one of the threads that wait.

    The thread that waited last gets the next item. `queue.SimpleQueue` wakes a second thread for
    each item, which finds nothing: with a thread switch and a turn of the interpreter lock for
    each, that is much where items come one at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._idle: list[_Place[T]] = []
        self._places = threading.local()

    def put(self, item: T) -> None:
        """Any thread may call it."""
        with self._lock:
            if not self._idle:
                self._items.append(item)
                return
            place = self._idle.pop()
        place.item = item
        place.wake.release()

    def get(self) -> T:
        """The next item; wait for it."""
        with self._lock:
            if self._items:
                return self._items.popleft()
            place: _Place[T] | None = getattr(self._places, "own", None)
            if place is None:
                place = self._places.own = _Place()
            self._idle.append(place)
        place.wake.acquire()
        return place.item

    def empty(self) -> bool:
        """Whether no item waits for a thread."""
        return not self._items

    def waiting(self) -> list[T]:
        """The items that wait for a thread, the next one first."""
        with self._lock:
            return list(self._items)


class _Place(Generic[T]):
    """Where one thread waits."""

    __slots__ = ("item", "wake")
    item: T

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
