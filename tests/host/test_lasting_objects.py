"""What stays in memory is left out of collections, and young objects are collected less often."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bascule.host.lasting_objects import GROWTH, YOUNG_OBJECTS, LastingObjects


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_there_stays() -> None:
    gc.unfreeze()
    later = gc.get_threshold()[1:]
    LastingObjects().settle()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == (YOUNG_OBJECTS, *later)


def test_many_partitions_that_are_added_stay_too() -> None:
    gc.unfreeze()
    lasting = LastingObjects()
    lasting.on_added(GROWTH - 1)
    assert gc.get_freeze_count() == 0
    lasting.on_added(1)
    assert gc.get_freeze_count() > 0
