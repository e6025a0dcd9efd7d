"""What the members written in Python share: the lines they obey, and the load they make."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable


class Load:
    """Counts what is answered, and says whether another proposal is to follow."""

    def __init__(self, seconds: float) -> None:
        self._began = self._last = time.perf_counter()
        self._deadline = self._began + seconds
        self._latencies: list[float] = []

    def answered(self, began: float) -> bool:
        """One that was proposed at `began` is committed and applied; True: propose another."""
        now = self._last = time.perf_counter()
        self._latencies.append(now - began)
        return now < self._deadline

    def result(self) -> dict[str, float]:
        found = sorted(self._latencies)
        return {
            "committed": len(found),
            "seconds": round(self._last - self._began, 6),
            "p50_ms": round(found[len(found) // 2] * 1e3, 3),
            "p99_ms": round(found[len(found) * 99 // 100] * 1e3, 3),
        }


def obey(
    *,
    leader: Callable[[], bool],
    statistics: Callable[[], dict[str, int]],
    load: Callable[[int, float, int], dict[str, float]],
) -> None:
    """Answer the lines of standard input until `exit` or its end."""
    for line in sys.stdin:
        match line.split():
            case ["leader"]:
                answer: dict[str, object] = {"leader": leader()}
            case ["statistics"]:
                answer = {**statistics()}
            case ["load", in_flight, seconds, size]:
                answer = {**load(int(in_flight), float(seconds), int(size))}
            case ["exit"]:
                return
            case _:
                raise ValueError(line)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
