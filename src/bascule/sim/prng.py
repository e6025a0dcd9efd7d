"""Dice of a simulation: one stream of 32-bit words from the seed, drawn cheaply and in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from bascule.host.api import Random

T = TypeVar("T")

WORDS: Final = 1 << 32
"""Words are below this; a probability is held as the number of words that mean yes."""
BLOCK_BYTES: Final = 1 << 12


def threshold(probability: float) -> int:
    """A probability as `prng.word() < threshold` takes it."""
    return min(int(probability * WORDS), WORDS)


def _words(dice: Random) -> Iterator[int]:
    # A block at a time: drawing a word is then a step of a generator, not a call through layers.
    # Two thirds of the time of a simulation would be dice otherwise.
    while True:
        yield from memoryview(dice.bytes(BLOCK_BYTES)).cast("I")


class Prng:
    """Choices out of a `Random`; itself a `Random` for the production code that wants one."""

    __slots__ = ("word",)

    word: Callable[[], int]
    """The next word, evenly spread over [0, 2^32)."""

    def __init__(self, dice: Random) -> None:
        self.word = _words(dice).__next__

    def below(self, limit: int) -> int:
        """An integer in [0, limit); the unevenness of the remainder does not matter here."""
        return self.word() % limit

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + self.word() % (high - low + 1)

    def happens(self, probability: float) -> bool:
        return self.word() < probability * WORDS

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.word() % len(choices)]

    def spread(self, low: float, high: float) -> float:
        """A number in [low, high), evenly spread over the orders of magnitude."""
        return low * math.exp(math.log(high / low) * (self.word() / WORDS))

    def wait(self, mean: int) -> int:
        """Until the next of events that come independently, on average every `mean`; at least 1."""
        return 1 + int(-math.log((self.word() + 1) / WORDS) * mean)

    def bytes(self, count: int) -> bytes:
        return bytes(self.word() & 255 for _ in range(count))

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * (self.word() / WORDS)
