"""What the nodes log, and the memory and descriptors that they use."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torture.machines import Machines

ERROR_LINE: Final = re.compile(r"^\S+ error +(\S+) (.*)$")
TRACEBACK: Final = "Traceback (most recent call last)"
EXPECTED: Final = {
    "append failed": {"disk"},
    "compaction failed": {"disk"},
    "closing a log failed": {"disk"},
    "no room": {"disk"},
    "raft store failed": {"disk"},
    "table does not follow": {"disk"},
    "oplog of a table cannot be written": {"disk"},
    "partition stopped": {"flip", "truncate", "disk"},
    "partition cannot be opened": {"flip", "truncate"},
    "replica not healed": {"flip", "truncate"},
    "damaged log": {"flip", "truncate"},
    "the disk hangs": {"pause", "pause-two"},
    "nats connection ended while this node was behind": {
        "nats-pause",
        "pause",
        "pause-two",
        "disk",
    },
    "nats server cannot be used": {"nats", "nats-pause"},
    "this node is refused by its cluster": {"join-remove", "replace"},
}
"""The beginnings of events of level `error` -> kinds of faults that cause them."""
RSS_BYTES_MAX: Final = 700 << 20
"""Of a process of a run of half an hour: ids of messages are most of it."""
DESCRIPTORS_MAX: Final = 600
"""At the end, when only the logs, the peers and NATS are open."""


@dataclass
class Usage:
    """Of one life of a process."""

    node: int
    pid: int
    rss_bytes_first: int
    rss_bytes_last: int = 0
    rss_bytes_max: int = 0
    descriptors: int = 0
    since: float = field(default_factory=time.monotonic)
    until: float = 0.0


class Watch:
    """Looks at the processes of the nodes now and then."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._lives: dict[int, Usage] = {}

    def look(self) -> None:
        for number, node in list(self._machines.nodes.items()):
            if node.process is None or not node.is_up:
                continue
            pid = node.process.pid
            with contextlib.suppress(OSError, IndexError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                rss = pages * os.sysconf("SC_PAGE_SIZE")
                usage = self._lives.setdefault(pid, Usage(number, pid, rss))
                usage.rss_bytes_last = rss
                usage.rss_bytes_max = max(usage.rss_bytes_max, rss)
                usage.descriptors = len(os.listdir(f"/proc/{pid}/fd"))
                usage.until = time.monotonic()

    def rows(self) -> list[dict[str, Any]]:
        """The longest life of each node, and its use of memory and descriptors."""
        longest: dict[int, Usage] = {}
        for usage in self._lives.values():
            before = longest.get(usage.node)
            if before is None or usage.until - usage.since > before.until - before.since:
                longest[usage.node] = usage
        return [
            {
                "node": usage.node,
                "seconds": round(usage.until - usage.since),
                "rss_mb_first": usage.rss_bytes_first >> 20,
                "rss_mb_last": usage.rss_bytes_last >> 20,
                "rss_mb_max": usage.rss_bytes_max >> 20,
                "descriptors": usage.descriptors,
            }
            for _, usage in sorted(longest.items())
        ]

    def findings(self) -> Iterable[str]:
        for usage in self._lives.values():
            if usage.rss_bytes_max > RSS_BYTES_MAX:
                yield f"node {usage.node} used {usage.rss_bytes_max >> 20} MiB of memory"
            if usage.descriptors > DESCRIPTORS_MAX:
                yield f"node {usage.node} had {usage.descriptors} descriptors open"


def unexpected_lines(logs: Iterable[Path], kinds: Collection[str]) -> list[str]:
    """Errors in the logs of nodes that no fault of these kinds explains, each once, with counts."""
    found: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for path in logs:
        with path.open(errors="replace") as file:
            for line in file:
                matched = ERROR_LINE.match(line)
                if TRACEBACK in line:
                    what = "a traceback"
                elif matched and not _is_expected(matched[2], kinds):
                    what = matched[2].split("=")[0].rsplit(" ", 1)[0]
                else:
                    continue
                found[what] += 1
                examples.setdefault(what, f"{path.parent.name}: {line.strip()[:300]}")
    return [f"{count} times in a log: {examples[what]}" for what, count in found.items()]


def _is_expected(event: str, kinds: Collection[str]) -> bool:
    return any(
        event.startswith(beginning) and not causes.isdisjoint(kinds)
        for beginning, causes in EXPECTED.items()
    )
