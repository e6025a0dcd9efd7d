"""What a planted bug is, and how it is put into a production class and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, and what is owed to its being there."""

    name: str
    found_by: tuple[str, ...]
    """The invariants it may break, whichever a run comes to first."""
    first_seed: int = 0
    seeds: int = 400
    """The simulator finds it within so many seeds from the first on, whatever the dice: a change of
    the core or of the simulator makes every seed another history. Where `first_seed` is not 0 the
    bug needs a rare meeting of events, and the range begins shortly before one."""
    patch: Callable[[], AbstractContextManager[None]]
    """Plants it for as long as the context is open, in this process."""

    @property
    def range(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)


@contextmanager
def swapped(owner: type, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, `owner.name` is what `wrap` makes of it."""
    was = vars(owner)[name]
    setattr(owner, name, wrap(was))
    try:
        yield
    finally:
        setattr(owner, name, was)


def instead(
    owner: type, name: str, make: Callable[[Any], Any]
) -> Callable[[], AbstractContextManager[None]]:
    """The patch by which `owner.name` becomes what `make` makes of the original."""
    return lambda: swapped(owner, name, make)
