"""`Mutant`: a bug, and the patch that puts it into a production class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, and how the simulator finds it."""

    name: str
    found_by: tuple[str, ...]
    """The invariants that it may break. A run reports the first one."""
    first_seed: int = 0
    seeds: int = 400
    """The simulator finds it within this many seeds from `first_seed` on. The number is generous,
    since a change of the core or the simulator changes what happens in every seed. Where
    `first_seed` is not 0, the bug shows only in a rare sequence of events, and the range begins
    shortly before a seed with one."""
    patch: Callable[[], AbstractContextManager[None]]
    """Puts it into this process while the context is open."""

    @property
    def range(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)


@contextmanager
def patched(owner: type, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace `owner.name` by `wrap` of it while the context is open."""
    was = vars(owner)[name]
    setattr(owner, name, wrap(was))
    try:
        yield
    finally:
        setattr(owner, name, was)


def replacing(
    owner: type, name: str, make: Callable[[Any], Any]
) -> Callable[[], AbstractContextManager[None]]:
    """The patch that replaces `owner.name` by `make` of the original."""
    return lambda: patched(owner, name, make)
