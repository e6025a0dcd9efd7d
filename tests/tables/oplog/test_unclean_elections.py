"""Copies and watchers end as the table, whatever unclean elections have lost meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bascule.tables.oplog import changes
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import watcher, watches
from support.unclean_elections import UncleanRun

FAILED_CALM = (20_010, 30_316)
FAILED_WITH_RACES = (10_964, 11_581)
"""Seeds with which copies and watchers have ended with something else once."""
MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few records need several pages, and a few changes are too many for a queue."""
    monkeypatch.setattr(watches, "PAGE_ROWS", 2)
    monkeypatch.setattr(watcher, "CHANGES_MAX", 3)
    monkeypatch.setattr(changes, "PLAN_KEYS_MAX", 3)
    monkeypatch.setattr(TableReplica.wait_position, "__defaults__", (0.02,))


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where that is possible: each run syncs some 70 files."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.parametrize("seed", [*range(40), *FAILED_CALM])
def test_copies_and_watchers_miss_nothing(directory: Path, seed: int) -> None:
    asyncio.run(UncleanRun(directory, seed, has_races=False).run())


@pytest.mark.parametrize("seed", [*range(40), *FAILED_WITH_RACES])
def test_they_miss_nothing_where_two_nodes_lead_in_their_opinion(
    directory: Path, seed: int
) -> None:
    asyncio.run(UncleanRun(directory, seed, has_races=True).run())


@pytest.mark.parametrize("seed", range(15))
def test_they_miss_nothing_of_a_compacted_log(directory: Path, seed: int) -> None:
    asyncio.run(UncleanRun(directory, seed, has_races=True, compacts=True).run())
