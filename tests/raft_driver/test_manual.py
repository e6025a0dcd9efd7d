"""The arithmetic of docs/raft.md agrees with the code. Its programs run with all pages."""

from __future__ import annotations

import pytest

from bascule.raft.config import RaftConfig


@pytest.mark.parametrize(("ratio", "first_kept"), [(0.1, 4_900), (0.5, 4_500)])
def test_the_capacity_in_the_manual_is_that_of_the_code(ratio: float, first_kept: int) -> None:
    config = RaftConfig(commit_count_to_take_snapshot=1_000, snapshot_keep_ratio=ratio)
    assert 5_000 - config.kept_entries == first_kept
