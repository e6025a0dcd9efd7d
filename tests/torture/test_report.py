"""The figures of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from torture.report import Acked, draw, gaps_over, happened, print_report, rows_of

EVENTS = [
    {"event": "begin", "fault": 0, "round": 0, "kind": "kill", "at_s": 10.0},
    {"event": "end", "fault": 0, "kind": "kill", "at_s": 11.0, "what": "node 1"},
    {"event": "in sync", "at_s": 15.0, "seconds": 1.0},
    {"event": "begin", "fault": 1, "round": 1, "kind": "kill", "at_s": 20.0},
    {"event": "begin", "fault": 2, "round": 1, "kind": "disk", "at_s": 20.5},
    {"event": "end", "fault": 2, "kind": "disk", "at_s": 21.0, "what": "skipped: no disk"},
    {"event": "end", "fault": 1, "kind": "kill", "at_s": 21.0, "what": "node 2"},
]


def acked() -> Acked:
    """Partition 1 is acked every 0.1 s but from 10.5 to 14.5, partition 2 without end."""
    first = np.arange(0.0, 30.0, 0.1)
    first = first[(first <= 10.5) | (first >= 14.5)]
    second = np.arange(0.05, 30.0, 0.1)
    times = np.concatenate([first, second])
    order = np.argsort(times)
    partitions = np.array([1] * len(first) + [2] * len(second))
    return Acked(times[order], np.full(len(times), 0.02), partitions[order])


def test_the_costs_of_a_kind_are_those_of_the_partition_that_waits_longest() -> None:
    disk, kill = rows_of(happened(EVENTS), acked())
    assert (kill["kind"], kill["count"], kill["alone"], kill["seconds"]) == ("kill", 2, 1, 2.0)
    assert kill["alone_partition_s_max"] == pytest.approx(4.0, abs=0.11)
    assert kill["partition_s_max"] == kill["alone_partition_s_max"]
    assert kill["all_s_max"] == pytest.approx(0.1, abs=0.02)
    assert kill["wait_s_max"] == pytest.approx(0.02)
    assert (disk["skipped"], disk["alone"], disk["alone_partition_s_max"]) == (1, 0, None)


def test_a_gap_is_drawn_where_it_begins() -> None:
    gaps = gaps_over(acked().by_partition()[0], 60)
    assert gaps[21] == pytest.approx(4.0, abs=0.11)
    assert max(gaps[22:]) < 0.2


def test_a_report_is_printed_and_drawn(tmp_path: Path) -> None:
    faults = happened(EVENTS)
    result = {
        "seed": 1,
        "seconds": 30.0,
        "acked": 560,
        "read": 1_000,
        "consumers_stuck": 0,
        "rounds": 2,
        "flips": 0,
        "healed": 0,
        "healed_by_scrub": 0,
        "cuts": 0,
        "repaired": 0,
        "faults": rows_of(faults, acked()),
        "processes": [],
        "table": {"session_reads": 1_234},
        "findings": ["orders 1: [something] is lost"],
    }
    draw(tmp_path / "torture.png", result, faults, acked())
    assert (tmp_path / "torture.png").read_bytes().startswith(b"\x89PNG")
    console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
    print_report(console, result)
    text = console.export_text()
    assert "finding: orders 1: [something] is lost" in text
    assert "1 (1 skipped)" in text
    assert "table: 1,234 session reads" in text
    console.file.close()
