"""Memory of an idle node with a thousand streams, and of each further one."""

from __future__ import annotations

import time
from pathlib import Path

from bench.harness import Node, node, report, row, work_directory


def resident_mb(running: Node) -> float:
    """Resident memory of the node process, in MB (10^6)."""
    for line in Path(f"/proc/{running.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("no VmRSS")


def run(*, quick: bool = False) -> None:
    count = 200 if quick else 1_000
    with work_directory() as directory, node(directory) as running:
        empty = resident_mb(running)
        for number in range(count):
            running.create(f"stream-{number}", f"idle.{number}")
        time.sleep(2)
        first = resident_mb(running)
        for number in range(count, 2 * count):
            running.create(f"stream-{number}", f"idle.{number}")
        time.sleep(2)
        second = resident_mb(running)
    report(
        "idle",
        [
            row(f"idle node with {count} streams, MB", {"value": round(first, 1),
                "without_streams": round(empty, 1)}, at_most=300),
            row("each further stream, KB",
                {"value": round((second - first) * 1000 / count, 1)}, at_most=100),
        ],
    )  # fmt: skip
