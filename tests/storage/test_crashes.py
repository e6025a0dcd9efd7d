"""Seeded rounds: work, power loss at any operation, open; confirmed batches are unchanged.

`BASCULE_CRASH_ROUNDS=20000` runs more of them; `BASCULE_CRASH_SEED=n` starts at another seed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count, product

import pytest

from bascule.errors import LogFailed
from bascule.host.real import RealRandom
from bascule.sim.disk import RandomChoices, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.keyed_logs import Model, append_keyed, close_segment, compact, held_batches
from support.killed_files import FilesOfKilled, Killed
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


def test_what_a_killed_process_left_in_the_cache_is_on_the_disk_before_anything_is_confirmed() -> (
    None
):
    """A new segment, a new leader epoch or the file `gaps` may have its name in the cache alone.
    The next process finds it there, and does not make it anew."""
    gap = make_batch(5, leader_epoch=1)
    acts: tuple[Callable[[PartitionLog], object], ...] = (
        lambda log: log.roll(),
        lambda log: log.append_as_follower(make_batch(1, leader_epoch=1)),
        lambda log: log.append_as_follower(gap),
    )
    for act in acts:
        for number, seed in product(range(1, 10), range(4)):
            files = SimFiles(RealRandom(seed))
            log = open_log(files)
            first = append(log)
            log.sync()
            files.fail(number, errno.EIO)
            with suppress(OSError, LogFailed):
                act(log)
            files.forget_faults()
            log = open_log(files)
            before = read_batches(log) if not log.gaps_allowed else held_batches(log)
            offset = log.end.offset if act is not acts[2] else 9
            epoch = max(log.epochs.latest, 0)
            second = make_batch(offset, leader_epoch=epoch)
            log.append_as_follower(second)
            log.sync()
            files.crash()
            assert held_batches(open_log(files)) == [*before, second], (number, seed)
            assert before[0] == first


@pytest.mark.parametrize(
    "act",
    [
        lambda files, log: log.advance_start(4, high_watermark=9),
        lambda files, log: log.start_at(20, 7),
        lambda files, log: log.truncate_to(3, 7, high_watermark=0),
        lambda files, log: compact(files, log, now_ms=9_000),
    ],
    ids=["advance", "reset", "truncate", "compact"],
)
def test_a_kill_and_a_power_loss_after_the_next_start(
    act: Callable[[SimFiles, PartitionLog], object],
) -> None:
    """What the next process completes may rest on a name that is in the page cache alone."""
    config = LogConfig(segment_bytes_max=300, index_interval_bytes=200)
    for number in count(1):
        for opened in (-1, 4, 6, 8, 10, 14):
            files = FilesOfKilled(RealRandom(number + opened))
            log, model = open_log(files, config), Model()
            for _ in range(6):
                append_keyed(log, model, [(b"k", b"a" * 100)])
            close_segment(log)
            files.left, is_done = number, False
            with suppress(Killed):
                act(files, log)
                is_done = True
            files.left = opened
            with suppress(Killed):
                open_log(files, config)
            files.left = -1
            files.crash()
            log = open_log(files, config)
            found = log.start_offset, log.end.offset
            assert found in ((0, 6), (4, 6), (20, 20), (0, 3), (0, 4), (0, 5))
            if found[1] == 6:
                assert held_batches(log)[-1] == model.batches[5].encode()
        if is_done:
            return
