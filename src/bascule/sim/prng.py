"""`Prng`: the random choices of a simulation, from one stream of 32-bit words of the seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from bascule.host.api import Random

T = TypeVar("T")

WORDS: Final = 1 << 32
"""Words are below this. A probability is stored as a threshold: words below it mean yes."""
BLOCK_BYTES: Final = 1 << 12


def threshold(probability: float) -> int:
    """The threshold of a probability, for the comparison `prng.word() < threshold`."""
    return min(int(probability * WORDS), WORDS)


def _words(source: Random) -> Iterator[int]:
    # Blocks make drawing a word a step of a generator instead of several calls. Otherwise random
    # numbers would take two thirds of the time of a simulation.
    while True:
        yield from memoryview(source.bytes(BLOCK_BYTES)).cast("I")


class Prng:
    """Random choices; it also is a `Random` for the production code."""

    __slots__ = ("word",)

    word: Callable[[], int]
    """Draws the next word, uniform in [0, 2^32)."""

    def __init__(self, source: Random) -> None:
        self.word = _words(source).__next__

    def below(self, limit: int) -> int:
        """An integer in [0, limit). The bias of the remainder does not matter here."""
        return self.word() % limit

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + self.word() % (high - low + 1)

    def happens(self, probability: float) -> bool:
        return self.word() < probability * WORDS

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.word() % len(choices)]

    def log_uniform(self, low: float, high: float) -> float:
        """A number in [low, high), uniform on a logarithmic scale."""
        return low * math.exp(math.log(high / low) * (self.word() / WORDS))

    def wait(self, mean: int) -> int:
        """An exponentially distributed time with this mean; at least 1."""
        return 1 + int(-math.log((self.word() + 1) / WORDS) * mean)

    def bytes(self, count: int) -> bytes:
        return bytes(self.word() & 255 for _ in range(count))

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * (self.word() / WORDS)
