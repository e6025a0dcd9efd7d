"""Seeded rounds: work, power loss at any operation, open; confirmed batches are unchanged.

`BASCULE_CRASH_ROUNDS=20000` runs more of them; `BASCULE_CRASH_SEED=n` starts at another seed.
"""

from __future__ import annotations

import os

import pytest

from bascule.host.real import RealRandom
from bascule.sim.disk import RandomChoices, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import Witness, append, make_batch, open_log, read_batches

ROUNDS = int(os.environ.get("BASCULE_CRASH_ROUNDS", "300"))
SEED = int(os.environ.get("BASCULE_CRASH_SEED", "0"))


class Round:
    """One log through several crashes."""

    def __init__(self, seed: int) -> None:
        self.dice = RandomChoices(RealRandom(seed))
        self.files = SimFiles(RealRandom(seed + 1_000_000))
        self.config = LogConfig(
            segment_bytes_max=1 << (10 + self.dice.below(5)),
            index_interval_bytes=1 << (7 + self.dice.below(5)),
        )
        self.witness = Witness(self.files, self.config)

    def run(self) -> None:
        for _ in range(4):
            log = open_log(self.files, self.config)
            self.witness.check(log)
            for _ in range(self.dice.below(40)):
                self.act(log)
            if self.dice.below(8) == 0:
                log.close()
                self.witness.confirmed = log.end.offset
            self.files.crash()
            open_log(self.files, self.config)
            # Once more, for a crash during the truncation of the tail.
            self.files.crash()

    def act(self, log: PartitionLog) -> None:
        kind = self.dice.below(12)
        if kind < 8:
            epoch = max(log.epochs.latest, 0) + (self.dice.below(10) == 0)
            batch = make_batch(
                log.end.offset,
                1 + self.dice.below(4),
                timestamp=1_000 + log.end.offset,
                size=self.dice.pick((10, 100, 1_000, 6_000)),
                leader_epoch=epoch,
            )
            self.witness.append(log, batch)
        elif kind < 11:
            self.witness.sync(log)
        else:
            log.checkpoint(high_watermark=self.witness.confirmed)


@pytest.mark.parametrize("part", range(10))
def test_what_was_confirmed_survives(part: int) -> None:
    for seed in range(SEED + part * ROUNDS // 10, SEED + (part + 1) * ROUNDS // 10):
        try:
            Round(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_roll_that_was_not_synced_before_a_kill_loses_nothing_confirmed() -> None:
    """The next process finds the empty segment in the cache, perhaps without its name on the
    disk."""
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = open_log(files)
        first = append(log)
        log.sync()
        log.roll()
        log = open_log(files)
        second = append(log)
        log.sync()
        files.crash()
        assert read_batches(open_log(files)) == [first, second]
