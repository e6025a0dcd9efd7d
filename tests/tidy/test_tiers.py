"""Every test belongs to a command: no folder of tier 3 is left out of the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"\bmark\.tier3\b")
ELSEWHERE = {"spark", "foreign"}
"""What `make test-spark` and `make test-clients` run."""


def test_make_runs_every_folder_with_tests_of_tier_3() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.search(r"^TIER3 := (.*)$", makefile, re.MULTILINE)
    assert named is not None
    conftest = (ROOT / "tests/conftest.py").read_text()
    folders = set(re.findall(r'"(\w+)": "tier3"', conftest))
    assert {"e2e", "interop"} <= folders
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__) and MARK.search(path.read_text()):
            folders.add(path.relative_to(ROOT / "tests").parts[0])
    assert {f"tests/{folder}" for folder in folders - ELSEWHERE} == set(named[1].split())
