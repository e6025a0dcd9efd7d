"""A fuzz target: a function for input from outside, valid inputs, and the properties that hold for
any input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from support.twins import load_twin

CORPUS = Path(__file__).resolve().parent.parent / "corpus"


@dataclass(frozen=True)
class Target:
    """A target: `run` takes any bytes and raises if the program violates a property."""

    name: str
    seeds: Callable[[], list[bytes]]
    """Valid inputs, from which hostile ones are made."""
    run: Callable[[bytes], None]

    @property
    def corpus(self) -> Path:
        """The folder of inputs that once found a bug."""
        return CORPUS / self.name


def twins(package: str) -> tuple[ModuleType, ModuleType]:
    """Both twins of a package's hot module; the first is the one that serves."""
    return load_twin(package, "compiled"), load_twin(package, "interpreted")


def agree(name: str, results: list[Any]) -> None:
    """Check that all twins gave the same result."""
    for other in results[1:]:
        if other != results[0]:
            pairs = zip(other, results[0], strict=True) if isinstance(other, tuple) else ()
            parts = [f"{theirs!r} / {ours!r}" for theirs, ours in pairs if theirs != ours]
            raise AssertionError(f"twins differ in {name}: {' and '.join(parts)}")


def chunks(data: bytes, seed: int) -> Iterator[bytes]:
    """`data` in pieces of sizes that follow from `seed`; 0 gives it whole."""
    if seed == 0:
        yield data
        return
    state, at = seed, 0
    while at < len(data):
        state = (state * 75 + 74) % 65_537
        size = 1 + state % (3 if seed % 3 == 0 else 40)
        yield data[at : at + size]
        at += size


@cache
def cached_seeds(target: Target) -> tuple[bytes, ...]:
    return tuple(target.seeds())
