"""The clients of a table of a run, a process of their own: `python -m torture.tables SETTINGS`.

Some read and write linearizably, and their history is checked for each key. Others are sessions,
which see their own writes and nothing older than before. What either of them has seen has to be in
the log at the end. They begin at different nodes, and go on at others. Each 0.5 s a line of JSON on
standard output says how far they are. A line on standard input ends them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import bascule
from bascule.client.tables.table import TableClient
from bascule.errors import (
    BasculeError,
    Broken,
    Indeterminate,
    NotEnoughNodes,
    RequestFailed,
    WrongVersion,
)
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.checkers.histories.linearizability import Linearizability
from bascule.sim.checkers.histories.sessions import SessionChecker, Written
from bascule.sim.checkers.history import (
    ClientOperation,
    OperationKind,
    OperationResult,
    OperationStatus,
)

TABLE: Final = "register"
PREFIX: Final = f"$KV.{TABLE}."
KEYS: Final = 3
KEY_SECONDS: Final = 20.0
"""After that other keys are used: histories stay short enough to be decided."""
PACE_SECONDS: Final = 0.05
REPORT_SECONDS: Final = 0.5
OPERATION_SECONDS: Final = 10.0
LAST_SECONDS_MAX: Final = 120.0
CREATE_SECONDS_MAX: Final = 60.0
CATCH_UP_SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.5
UNKNOWN: Final = OperationResult(OperationStatus.UNKNOWN)
FAILED: Final = OperationResult(OperationStatus.FAILED)
SWAPPED: Final = OperationResult(OperationStatus.OK, swapped=True)
NOT_SWAPPED: Final = OperationResult(OperationStatus.OK)


class Observed:
    """What the clients did and saw."""

    def __init__(self) -> None:
        self.history = Linearizability()
        self.sessions = SessionChecker()
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.ends = asyncio.Event()
        self._begin = time.monotonic()
        self._numbers = itertools.count()

    def steps(self, dice: random.Random) -> Iterator[tuple[int, str]]:
        """A number and a key for each operation, until the end."""
        while not self.ends.is_set():
            period = int((time.monotonic() - self._begin) / KEY_SECONDS)
            yield next(self._numbers), f"{period}.{dice.randrange(KEYS)}"

    def number(self) -> int:
        return next(self._numbers)

    def find(self, text: str) -> None:
        self.findings.append(f"{time.strftime('%H:%M:%S')} {text}")

    def report(self) -> None:
        state: dict[str, Any] = {**self.counts, "findings": self.findings[:20]}
        print(json.dumps(state), flush=True)


class LinearizableClient:
    """Reads, and swaps or sets what was read."""

    def __init__(self, number: int, seed: int, table: TableClient, observed: Observed) -> None:
        self._number = number
        self._table = table
        self._observed = observed
        self._dice = random.Random(f"{seed} {number}")

    async def run(self) -> None:
        for number, key in self._observed.steps(self._dice):
            found = await self._read(number, key)
            draw = self._dice.random()
            if found is not None and draw < 0.5:
                await self._write(key, *found, swaps=draw < 0.4)
            await asyncio.sleep(PACE_SECONDS * self._dice.uniform(0.5, 1.5))

    async def _read(self, number: int, key: str) -> tuple[bytes | None, int | None] | None:
        """The value and its version; None where there is no answer."""
        operation = ClientOperation(number, self._number, key, OperationKind.GET)
        self._observed.history.on_invoke(operation)
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                entry = await self._table.get(key)
        except (BasculeError, TimeoutError):
            self._observed.history.on_return(operation, FAILED)
            return None
        value, version = (None, None) if entry is None else (entry.value, entry.version)
        self._observed.history.on_return(
            operation, OperationResult(OperationStatus.OK, value=value)
        )
        self._observed.counts["linearizable_reads"] += 1
        return value, version

    async def _write(
        self, key: str, expected: bytes | None, version: int | None, *, swaps: bool
    ) -> None:
        number = self._observed.number()
        value, kind = b"%d" % number, OperationKind.CAS if swaps else OperationKind.PUT
        operation = ClientOperation(
            number, self._number, key, kind, value, expected if swaps else None
        )
        self._observed.history.on_invoke(operation)
        result = UNKNOWN
        try:
            if not swaps:
                await self._table.set(key, value, timeout=OPERATION_SECONDS)
            elif version is None:
                await self._table.set(key, value, if_absent=True, timeout=OPERATION_SECONDS)
            else:
                await self._table.set(key, value, if_version=version, timeout=OPERATION_SECONDS)
            result = SWAPPED if swaps else NOT_SWAPPED
        except WrongVersion:
            result = NOT_SWAPPED
            self._observed.counts["refused_swaps"] += 1
        except BasculeError:
            self._observed.counts["unknown_writes"] += 1
        else:
            self._observed.counts["linearizable_writes"] += 1
        self._observed.history.on_return(operation, result)


class SessionClient:
    """Sets, removes and reads keys of its own periods' names, as a session."""

    def __init__(self, number: int, seed: int, table: TableClient, observed: Observed) -> None:
        self._number = number
        self._table = table
        self._observed = observed
        self._dice = random.Random(f"{seed} {number}")

    async def run(self) -> None:
        checker = self._observed.sessions
        for number, base in self._observed.steps(self._dice):
            key, draw = f"s.{base}", self._dice.random()
            try:
                if draw < 0.2:
                    value = b"%d" % number
                    version = await self._table.set(key, value, timeout=OPERATION_SECONDS)
                    checker.on_written(self._number, key, version, value)
                    self._observed.counts["session_writes"] += 1
                elif draw < 0.25:
                    checker.on_removal_begun(key)
                    version = await self._table.remove(key, timeout=OPERATION_SECONDS)
                    checker.on_written(self._number, key, version, None)
                async with asyncio.timeout(OPERATION_SECONDS):
                    entry = await self._table.get(key)
                seen = (None, None) if entry is None else (entry.version, entry.value)
                checker.on_read(self._number, key, *seen)
                self._observed.counts["session_reads"] += 1
            except InvariantBroken as broken:
                self._observed.find(str(broken))
            except (BasculeError, TimeoutError):
                self._observed.counts["session_errors"] += 1
            await asyncio.sleep(PACE_SECONDS * self._dice.uniform(0.5, 1.5))


def check_all(observed: Observed, records: dict[int, Written]) -> Iterable[str]:
    """What is wrong about the whole of it."""
    for check in (
        lambda: observed.history.at_end(None),
        lambda: observed.sessions.check_log(records),
    ):
        try:
            check()
        except InvariantBroken as broken:
            yield str(broken)
    if observed.history.undecided:
        yield f"histories that are too long to be decided: {observed.history.undecided[:5]}"


async def create(servers: list[str]) -> None:
    """Faults may have begun already: nodes are away for a time."""
    deadline = time.monotonic() + CREATE_SECONDS_MAX
    async with bascule.connect(",".join(servers)) as client:
        while True:
            try:
                await client.create_table(TABLE, replicas=3, min_isr=2)
                return
            except (Broken, Indeterminate, NotEnoughNodes, RequestFailed):
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(PACE_SECONDS)


async def read_log(servers: list[str]) -> dict[int, Written]:
    async with bascule.connect(",".join(servers)) as client:
        return {
            message.offset: Written(message.key.decode().removeprefix(PREFIX), message.value)
            async for message in client.read(TABLE)
            if message.key is not None
        }


async def differences(servers: list[str], records: dict[int, Written]) -> list[str]:
    """The nodes whose table is not what the log says, after some time to catch up."""
    latest: dict[str, int] = {}
    for offset, record in sorted(records.items()):
        latest[record.key] = offset
    wanted = {k: offset for k, offset in latest.items() if records[offset].value is not None}
    found = []
    for server in servers:
        async with bascule.connect(server) as client:
            table = client.table(TABLE, consistency="eventual")
            deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
            while True:
                every = table.keys()
                held = {key.decode(): version async for key, version in every}
                if held == wanted:
                    break
                if time.monotonic() > deadline:
                    wrong = {k for k in {*held, *wanted} if held.get(k) != wanted.get(k)}
                    found.append(f"the table at {server} differs in {sorted(wrong)[:5]}")
                    break
                await asyncio.sleep(LOOK_SECONDS)
    return found


async def run(settings: dict[str, Any]) -> None:
    servers, seed = settings["servers"], settings["seed"]
    observed = Observed()
    await create(servers)
    clients, tasks = [], []
    for number in range(2 * len(servers)):
        at = number % len(servers)
        client = bascule.connect(",".join([*servers[at:], *servers[:at]]))
        clients.append(await client.__aenter__())
        linearizable = number < len(servers)
        table = client.table(TABLE, consistency="linearizable" if linearizable else "session")
        kind = LinearizableClient if linearizable else SessionClient
        tasks.append(asyncio.create_task(kind(number, seed, table, observed).run()))
    asked = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    while not asked.done():
        observed.report()
        await asyncio.wait([asked, *tasks], timeout=REPORT_SECONDS)
        for task in tasks:
            if task.done():
                task.result()
    observed.ends.set()
    await asyncio.wait_for(asyncio.gather(*tasks), LAST_SECONDS_MAX)
    for client in clients:
        await client.close()
    records = await read_log(servers)
    for text in (*check_all(observed, records), *await differences(servers, records)):
        observed.find(text)
    observed.report()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
