"""Every target: its seeds, its corpus of old findings, and some hostile variants of both."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.mutation import STEPS, mutate
from fuzz.target import CORPUS, Target, cached_seeds
from fuzz.targets import TARGETS

EXAMPLES = 60
"""In the usual run. `make fuzz` makes thousands, and runs `python -m fuzz` for long."""


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_what_is_valid_breaks_nothing(target: Target) -> None:
    for seed in cached_seeds(target):
        target.run(seed)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_old_findings_break_nothing(target: Target) -> None:
    for path in sorted(target.corpus.glob("*")):
        try:
            target.run(path.read_bytes())
        except Exception as error:
            error.add_note(f"input: {path}")
            raise


def test_every_corpus_has_its_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_hostile_variants_break_nothing(target: Target) -> None:
    seeds = cached_seeds(target)
    usual = settings.get_profile("usual").max_examples == settings().max_examples

    @settings(max_examples=EXAMPLES if usual else settings().max_examples)
    @given(st.sampled_from(range(len(seeds))), st.randoms(use_true_random=False))
    def check(number: int, random: Random) -> None:
        target.run(mutate(seeds[number], random, seeds))

    check()


def test_mutation_reaches_every_step() -> None:
    """The same dice give the same variant, and enough of them change a seed in every way."""
    seed, others = b"MSG a 1 5\r\nhello\r\n", [b"other", b"seeds"]
    variants = {mutate(seed, Random(n), others) for n in range(500)}
    assert len(variants) > 400
    assert mutate(seed, Random(3), others) == mutate(seed, Random(3), others)
    for step in STEPS:
        data = bytearray(seed)
        dice = Random(5)
        for _ in range(20):
            step(data, dice, others)
        assert bytes(data) != seed, step.__name__
