"""Memory of an idle node with a thousand streams, and of each further one."""

from __future__ import annotations

import time

from bench.harness import node, report, row, work_directory


def run(*, quick: bool = False) -> None:
    count = 200 if quick else 1_000
    with work_directory() as directory, node(directory) as running:
        empty = running.resident_mb()
        for number in range(count):
            running.create(f"stream-{number}", f"idle.{number}")
        time.sleep(2)
        first = running.resident_mb()
        for number in range(count, 2 * count):
            running.create(f"stream-{number}", f"idle.{number}")
        time.sleep(2)
        second = running.resident_mb()
    report(
        "idle",
        [
            row(f"idle node with {count} streams, MB", {"value": round(first, 1),
                "without_streams": round(empty, 1)}, at_most=300),
            row("each further stream, KB",
                {"value": round((second - first) * 1000 / count, 1)}, at_most=100),
        ],
    )  # fmt: skip
