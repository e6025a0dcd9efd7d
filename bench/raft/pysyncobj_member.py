"""A member of a group of PySyncObj with its journal: NUMBER PORTS DIRECTORY, settings in JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated

from bench.raft.member import Load, obey


class Counter(SyncObj):  # type: ignore[misc]
    """Counts what is committed, and keeps nothing else."""

    def __init__(self, number: int, ports: list[str], directory: Path) -> None:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        own = addresses.pop(number)
        settings = json.loads(os.environ.get("PYSYNCOBJ_SETTINGS", "{}"))
        super().__init__(
            own, addresses, SyncObjConf(journalFile=str(directory / "journal"), **settings)
        )
        self._count = 0

    @replicated  # type: ignore[untyped-decorator]
    def add(self, payload: bytes) -> int:
        self._count += 1
        return self._count


def load(counter: Counter, in_flight: int, seconds: float, size: int) -> dict[str, float]:
    """Propose from the callbacks, which the thread of PySyncObj calls."""
    payload = b"x" * size
    measured = Load(seconds)
    ended = threading.Semaphore(0)
    failures: list[int] = []

    def propose() -> None:
        began = time.perf_counter()

        def answered(result: int | None, reason: int) -> None:
            if reason != FAIL_REASON.SUCCESS:
                failures.append(reason)
                ended.release()
            elif measured.answered(began):
                propose()
            else:
                ended.release()

        counter.add(payload, callback=answered)

    for _ in range(in_flight):
        propose()
    for _ in range(in_flight):
        ended.acquire()
    assert not failures, failures
    return measured.result()


def main() -> None:
    number, ports, directory = sys.argv[1:]
    counter = Counter(int(number), ports.split(","), Path(directory))
    obey(
        leader=lambda: counter.isReady() and counter._isLeader(),
        statistics=dict,
        load=lambda in_flight, seconds, size: load(counter, in_flight, seconds, size),
    )
    counter.destroy()


if __name__ == "__main__":
    main()
