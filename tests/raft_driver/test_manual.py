"""The programs in docs/raft.md run as they stand there, and its arithmetic is the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bascule.raft.config import RaftConfig

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "raft.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_manual_runs(number: int) -> None:
    exec(compile(PROGRAMS[number], f"docs/raft.md[{number}]", "exec"), {"__name__": "manual"})


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 2


@pytest.mark.parametrize(("ratio", "first_kept"), [(0.1, 4_900), (0.5, 4_500)])
def test_the_article_s_example_by_rule_and_by_number(ratio: float, first_kept: int) -> None:
    config = RaftConfig(commit_count_to_take_snapshot=1_000, snapshot_keep_ratio=ratio)
    assert 5_000 - config.kept_entries == first_kept
