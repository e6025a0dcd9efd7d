"""Whether a node has lost what was not synced, over starts, kills and power losses."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bascule.errors import CorruptData
from bascule.node.last_run import BOOT_ID_PATH, FILE_NAME, KeptLastRun, LastRun, next_run
from bascule.sim.disk import SimFiles

DATA = "/data"


def boot(files: SimFiles, boot_id: str) -> None:
    """The kernel draws a boot id; empty: there is none."""
    if files.exists(BOOT_ID_PATH):
        files.remove(BOOT_ID_PATH)
    if boot_id:
        files.make_dirs(BOOT_ID_PATH.rpartition("/")[0])
        files.open(BOOT_ID_PATH, create=True).append(boot_id.encode() + b"\n")


@pytest.fixture
def files() -> SimFiles:
    made = SimFiles(Random(3))
    made.make_dirs(DATA)
    boot(made, "first")
    return made


def run(files: SimFiles, *, registers: bool = True, stops: bool = True) -> bool:
    """A run of a node that is killed, or stops; whether it has lost writes when it starts."""

    async def scene() -> bool:
        kept = KeptLastRun(files, DATA)
        assert not kept.has_lost_writes
        await kept.begin()
        found = kept.has_lost_writes
        if registers:
            await kept.on_registered()
            assert not kept.has_lost_writes
        if stops:
            await kept.end()
        return found

    return asyncio.run(scene())


def test_the_page_cache_survives_a_kill(files: SimFiles) -> None:
    assert not run(files, stops=False), "a new directory"
    assert not run(files, stops=False)
    boot(files, "second")
    assert run(files, stops=False)
    assert not run(files, stops=False), "the controller knows"


def test_a_clean_stop_loses_nothing(files: SimFiles) -> None:
    assert not run(files)
    boot(files, "second")
    assert not run(files)


def test_without_a_boot_id_only_a_clean_stop_counts(files: SimFiles) -> None:
    boot(files, "")
    assert not run(files)
    assert not run(files, stops=False)
    assert run(files)
    assert not run(files)


@pytest.mark.parametrize("stops", [True, False])
def test_the_controller_is_told_after_starts_that_failed(files: SimFiles, stops: bool) -> None:
    run(files, stops=False)
    boot(files, "second")
    assert run(files, registers=False, stops=stops)
    assert run(files, registers=False, stops=stops)
    assert run(files)
    assert not run(files)


def test_a_start_that_failed_is_no_clean_stop(files: SimFiles) -> None:
    """It has opened no log: what the killed run before had written is still in the page cache."""
    run(files, stops=False)
    assert not run(files, registers=False)
    assert not run(files, registers=False)
    boot(files, "second")
    assert run(files, registers=False), "the machine has lost its power"
    assert run(files)
    assert not run(files, registers=False)
    boot(files, "third")
    assert not run(files), "a start that failed after a clean stop has written nothing"


def test_a_power_loss_at_any_operation_is_noticed(files: SimFiles) -> None:
    """Each file operation of a start and of a registration may be the last one."""
    for number in range(1, 40):
        run(files, stops=False)
        boot(files, f"boot {number}")
        files.fail(number, 5)
        try:
            assert run(files, stops=False)
        except OSError:
            files.forget_faults()
            files.crash()
            boot(files, f"boot {number} again")
            assert run(files), f"operation {number}"
        if files.fault_pending():
            files.forget_faults()
            return
    pytest.fail("the operations have no end")


def test_a_start_that_ended_before_the_file_was_written_changes_nothing() -> None:
    assert next_run(None, "a") == LastRun("a", is_clean=False, has_lost_writes=False)
    before = LastRun("a", is_clean=False, has_lost_writes=True)
    assert next_run(before, "a") == before


def test_another_file_is_refused(files: SimFiles) -> None:
    files.open(f"{DATA}/{FILE_NAME}", create=True).append(b"[]")
    with pytest.raises(CorruptData, match=r"last-run.json is corrupt at byte 0"):
        run(files)
