"""Simulated damage reaches every segment of a log, and any of its batches."""

from __future__ import annotations

import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.opened_again import _check_lookups
from bascule.sim.cluster.simulation import make_prng
from bascule.sim.cluster.world.damage import cut_end, flip_bit, flip_header, flip_small
from bascule.sim.cluster.world.disk import MachineFiles
from bascule.storage.partition_log import LogConfig
from support.stored_batches import DIRECTORY, append, open_log

CONFIG = LogConfig(segment_bytes_max=400, index_interval_bytes=200)


def written() -> MachineFiles:
    """Six batches in three segments, synced."""
    files = MachineFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    for n in range(6):
        append(log, 3, size=20, timestamp=n)
    log.close()
    return files


def segments(files: MachineFiles) -> dict[str, bytes]:
    names = [name for name in files.list_dir(DIRECTORY) if name.endswith(".log")]
    return {name: files.read_bytes(f"{DIRECTORY}/{name}") for name in names}


@pytest.mark.parametrize("damage", [flip_bit, flip_header, cut_end])
def test_each_segment_may_be_damaged(damage) -> None:  # type: ignore[no-untyped-def]
    found = set()
    for seed in range(40):
        files = written()
        before = segments(files)
        assert damage(files, DIRECTORY, make_prng(seed))
        after = segments(files)
        (changed,) = (name for name in before if after[name] != before[name])
        found.add(changed)
    assert found == before.keys()
    assert len(found) == 3


def test_a_flipped_bit_is_found_by_a_read_of_the_log() -> None:
    for seed in range(20):
        files = written()
        assert flip_bit(files, DIRECTORY, make_prng(seed))
        with pytest.raises(CorruptData):
            log = open_log(files, CONFIG)
            at = log.verify()
            while at is not None:
                at = log.verify(at)


def test_small_files_are_damaged_and_no_segment() -> None:
    found = set()
    for seed in range(40):
        files = written()
        before = segments(files)
        found.add(flip_small(files, DIRECTORY, make_prng(seed)).rpartition("/")[2])
        assert segments(files) == before
    assert {"checkpoint", "synced"} <= found
    assert any(name.endswith(".index") for name in found)


def test_what_is_not_found_by_offset_and_time_is_noticed() -> None:
    log = open_log(written(), CONFIG)
    stamps = [(3 * n, 3 * n + 3, n) for n in range(6)]
    _check_lookups("s 0", log, stamps)
    with pytest.raises(InvariantBroken, match="s 0: offset 1 at 0, expected 1"):
        _check_lookups("s 0", log, [(1, 4, 0)])
    with pytest.raises(InvariantBroken, match="s 0: time 1 is found at"):
        _check_lookups("s 0", log, [each for each in stamps if each[0] != 3])
