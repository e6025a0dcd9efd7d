"""Operators read what each cluster version brings, all of it."""

from __future__ import annotations

import re
from pathlib import Path

from bascule import cluster_version
from bascule.cluster_version import HISTORY, OLDEST

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
NAMES = [
    (name, value)
    for name, value in vars(cluster_version).items()
    if isinstance(value, int) and name not in ("OLDEST", "NEWEST")
]


def test_the_page_has_each_version_and_all_that_it_brings() -> None:
    section = PAGE.partition("### Releases and cluster versions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)
    assert [(int(number), LINK.sub(r"\1", text)) for number, text in rows] == [
        (each.number, "; ".join(each.brings)) for each in HISTORY
    ]


def test_what_is_asked_for_is_in_the_history() -> None:
    for each in HISTORY:
        names = [name for name, number in NAMES if number == each.number]
        assert each.number == OLDEST or len(names) == len(each.brings), names
