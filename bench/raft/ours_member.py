"""A member of a group of `bascule.raft_driver` with its SQLite store: NUMBER PORTS DIRECTORY."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from bascule.errors import BasculeError, CannotReplicate
from bascule.raft.membership import Members
from bascule.raft.messages import Entry, RaftSnapshot
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.raft_driver.group import RaftGroup
from bench.raft.member import Load, obey

GROUP = 1
RETRY_SECONDS = 0.001
"""After a refusal, which is back pressure; its latency runs on."""


class Counter:
    """Counts what is committed, and keeps nothing else."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, entries: Sequence[Entry]) -> Sequence[int]:
        before = self.count
        self.count += len(entries)
        return range(before + 1, self.count + 1)

    def take_snapshot(self) -> tuple[bytes, ...]:
        return (self.count.to_bytes(8, "big"),)

    def restore(self, snapshot: RaftSnapshot) -> None:
        self.count = int.from_bytes(snapshot.chunks[0], "big")


async def load(group: RaftGroup, in_flight: int, seconds: float, size: int) -> dict[str, float]:
    """Propose from the callbacks of the futures, on the driver's loop."""
    payload = b"x" * size
    measured = Load(seconds)
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    going = in_flight
    refused = 0

    def propose(began: float) -> None:
        nonlocal refused

        def answered(future: asyncio.Future[Any]) -> None:
            nonlocal going
            try:
                future.result()
                if measured.answered(began):
                    propose(time.perf_counter())
                    return
            except BasculeError as error:
                if not done.done():
                    done.set_exception(error)
            going -= 1
            if not going and not done.done():
                done.set_result(None)

        try:
            group.propose_nowait(payload).add_done_callback(answered)
        except CannotReplicate:
            refused += 1
            loop.call_later(RETRY_SECONDS, propose, began)

    for _ in range(in_flight):
        propose(time.perf_counter())
    await done
    return {**measured.result(), "refused": refused}


def syncs_of(driver: RaftDriver) -> int:
    database = driver.statistics().database
    assert database is not None
    return database.syncs


Started = tuple[asyncio.AbstractEventLoop, asyncio.Event, RaftDriver, RaftGroup]


async def serve(number: int, ports: list[int], directory: str, started: Future[Started]) -> None:
    """Run the driver, as it comes, until the event is set."""
    end = asyncio.Event()
    driver = RaftDriver(number + 1, DriverSettings(cluster="bench"))
    addresses = {at + 1: ("127.0.0.1", port) for at, port in enumerate(ports)}
    own = addresses.pop(number + 1)
    await driver.start(directory=directory, listen=own, peers=addresses)
    group = await driver.open_group(
        GROUP, Counter(), initial_members=Members.of(*range(1, len(ports) + 1))
    )
    started.set_result((asyncio.get_running_loop(), end, driver, group))
    await end.wait()
    await driver.stop()


def main() -> None:
    number, ports, directory = sys.argv[1:]
    started: Future[Started] = Future()

    def run() -> None:
        asyncio.run(
            serve(int(number), [int(port) for port in ports.split(",")], directory, started)
        )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    loop, end, driver, group = started.result(30)
    obey(
        leader=lambda: group.is_leader,
        statistics=lambda: {"syncs": syncs_of(driver)},
        load=lambda in_flight, seconds, size: asyncio.run_coroutine_threadsafe(
            load(group, in_flight, seconds, size), loop
        ).result(),
    )
    loop.call_soon_threadsafe(end.set)
    thread.join(30)


if __name__ == "__main__":
    main()
