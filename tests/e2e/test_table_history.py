"""Histories of a table keep what their consistency promises, whatever happens to its leader."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
from collections.abc import Iterator

import httpx
import pytest

import bascule
from bascule.client.client import Client
from bascule.client.tables.table import TableClient
from bascule.errors import BasculeError, WrongVersion
from bascule.sim.checkers.histories.linearizability import Linearizability
from bascule.sim.checkers.histories.sessions import SessionChecker, Written
from bascule.sim.checkers.history import (
    ClientOperation,
    OperationKind,
    OperationResult,
    OperationStatus,
)
from support.clusters import RunningCluster

KEYS = ("a", "b", "c")
PACE_SECONDS = 0.03
ANSWER_SECONDS_MAX = 25.0
"""Longer than a pause: a node that goes on answers what it got before."""
UNKNOWN = OperationResult(OperationStatus.UNKNOWN)
FAILED = OperationResult(OperationStatus.FAILED)
WRITTEN = OperationResult(OperationStatus.OK)


class History:
    """Clients that read and write, and what they saw."""

    def __init__(self, consistency: str) -> None:
        self.checker = Linearizability()
        self.consistency = consistency
        self.reads = self.writes = self.swaps = self.refused = self.unknown = 0
        self.ends = asyncio.Event()
        self._numbers = itertools.count()
        self._random = random.Random(1)

    def steps(self) -> Iterator[tuple[int, str]]:
        """A number and a key for each operation, until the end."""
        while not self.ends.is_set():
            yield next(self._numbers), self._random.choice(KEYS)

    async def _pause(self) -> None:
        await asyncio.sleep(PACE_SECONDS * self._random.uniform(0.5, 1.5))

    def _end(self, operation: ClientOperation, result: OperationResult) -> None:
        self.unknown += result.status is OperationStatus.UNKNOWN
        self.checker.on_return(operation, result)

    async def _read(
        self, number: int, client: int, key: str, url: str, http: httpx.AsyncClient
    ) -> tuple[bytes, int] | None:
        operation = ClientOperation(number, client, key, OperationKind.GET)
        self.checker.on_invoke(operation)
        try:
            answer = await http.get(f"{url}/{key}", params={"consistency": self.consistency})
        except httpx.HTTPError:
            self._end(operation, FAILED)
            return None
        if answer.status_code not in (200, 404):
            assert answer.status_code == 503, answer.text
            self._end(operation, FAILED)
            return None
        self.reads += 1
        value = answer.content if answer.status_code == 200 else None
        self._end(operation, OperationResult(OperationStatus.OK, value=value))
        return None if value is None else (value, int(answer.headers["etag"].strip('"')))

    async def run_reader(self, client: int, url: str, http: httpx.AsyncClient) -> None:
        for number, key in self.steps():
            await self._read(number, client, key, url, http)
            await self._pause()

    async def run_http(self, client: int, url: str, http: httpx.AsyncClient) -> None:
        """Set values, or swap those that were read."""
        for number, key in self.steps():
            headers, expected = {}, None
            action = OperationKind.PUT
            if self._random.random() < 0.7:
                found = await self._read(number, client, key, url, http)
                number = next(self._numbers)
                action = OperationKind.CAS
                if found is None:
                    headers = {"if-none-match": "*"}
                else:
                    expected, headers = found[0], {"if-match": f'"{found[1]}"'}
            value = b"%d" % number
            operation = ClientOperation(number, client, key, action, value, expected)
            self.checker.on_invoke(operation)
            try:
                answer = await http.put(f"{url}/{key}", content=value, headers=headers)
            except httpx.HTTPError:
                self._end(operation, UNKNOWN)
            else:
                self._end(operation, self._outcome(answer, action))
            await self._pause()

    def _outcome(self, answer: httpx.Response, action: OperationKind) -> OperationResult:
        swaps = action is OperationKind.CAS
        if answer.status_code in (200, 201):
            self.writes += not swaps
            self.swaps += swaps
            return OperationResult(OperationStatus.OK, swapped=swaps)
        if answer.status_code == 412:
            assert swaps
            self.refused += 1
            return OperationResult(OperationStatus.OK)
        assert answer.status_code == 503, answer.text
        return UNKNOWN

    async def run_nats(self, client: int, url: str, http: httpx.AsyncClient, node: Client) -> None:
        """Swap values over NATS."""
        table = node.table("t", consistency="eventual")
        for number, key in self.steps():
            found = await self._read(number, client, key, url, http)
            own = next(self._numbers)
            value = b"%d" % own
            expected = None if found is None else found[0]
            operation = ClientOperation(own, client, key, OperationKind.CAS, value, expected)
            self.checker.on_invoke(operation)
            try:
                if found is None:
                    await table.set(key, value, if_absent=True)
                else:
                    await table.set(key, value, if_version=found[1])
            except WrongVersion:
                self.refused += 1
                self._end(operation, OperationResult(OperationStatus.OK))
            except BasculeError:
                self._end(operation, UNKNOWN)
            else:
                self.swaps += 1
                self._end(operation, OperationResult(OperationStatus.OK, swapped=True))
            await self._pause()


async def disturb(cluster: RunningCluster) -> None:
    """Pause the leader, until others have gone on without it; then kill the present one."""
    paused = cluster.leader("t")
    epoch = cluster.partition("t")["leader_epoch"]
    process = cluster.nodes[paused].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(6)
    finally:
        process.send_signal(signal.SIGCONT)
    await asyncio.sleep(2)
    second = await asyncio.to_thread(cluster.leader, "t")
    assert (await asyncio.to_thread(cluster.partition, "t"))["leader_epoch"] > epoch
    cluster.nodes[second].stop(signal.SIGKILL)
    await asyncio.sleep(4)
    await asyncio.to_thread(cluster.start, second)
    await asyncio.sleep(2)


async def run_history(cluster: RunningCluster, consistency: str) -> History:
    history = History(consistency)
    urls = [f"{node.addresses['http']}/v1/tables/t/keys" for node in cluster.nodes.values()]
    servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())
    async with (
        httpx.AsyncClient(timeout=ANSWER_SECONDS_MAX) as http,
        bascule.connect(servers) as node,
    ):
        runs = [history.run_reader(n, url, http) for n, url in enumerate(urls)]
        runs += [history.run_http(10 + n, url, http) for n, url in enumerate(urls)]
        runs += [history.run_nats(20 + n, url, http, node) for n, url in enumerate(urls)]
        tasks = [asyncio.create_task(run) for run in runs]
        await asyncio.sleep(2)
        await disturb(cluster)
        history.ends.set()
        await asyncio.gather(*tasks)
    return history


def test_reads_and_swaps_are_linearizable_while_leaders_are_paused_and_killed(
    cluster: RunningCluster,
) -> None:
    with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
        client.create_table("t", replicas=3, min_isr=2)
    cluster.wait_in_sync("t")
    history = asyncio.run(run_history(cluster, "linearizable"))
    history.checker.at_end(None)
    assert history.checker.undecided == []
    assert min(history.reads, history.swaps, history.writes, history.refused) > 20, vars(history)


class Session:
    """A client of the default consistency: its table object is a session, which moves to another
    node when its own is gone."""

    def __init__(self, number: int, table: TableClient, checker: SessionChecker) -> None:
        self.reads = self.writes = self.removals = 0
        self._number = number
        self._table = table
        self._checker = checker
        self._random = random.Random(number)

    async def run(self, ends: asyncio.Event) -> None:
        for step in itertools.count():
            if ends.is_set():
                return
            key, draw = self._random.choice(KEYS), self._random.random()
            # What ended with an error may have been done or not, and is in no order.
            with contextlib.suppress(BasculeError):
                if draw < 0.2:
                    await self._set(key, b"%d of %d" % (step, self._number))
                elif draw < 0.25:
                    await self._remove(key)
                await self._read(key)
            await asyncio.sleep(PACE_SECONDS * self._random.uniform(0.2, 1.2))

    async def _set(self, key: str, value: bytes) -> None:
        version = await self._table.set(key, value)
        self._checker.on_written(self._number, key, version, value)
        self.writes += 1

    async def _remove(self, key: str) -> None:
        self._checker.on_removal_begun(key)
        version = await self._table.remove(key)
        self._checker.on_written(self._number, key, version, None)
        self.removals += 1

    async def _read(self, key: str) -> None:
        found = await self._table.get(key)
        version, value = (None, None) if found is None else (found.version, found.value)
        self._checker.on_read(self._number, key, version, value)
        self.reads += 1


async def run_sessions(cluster: RunningCluster, checker: SessionChecker) -> list[Session]:
    """Two sessions that begin at each node, while leaders are paused and killed."""
    addresses = [node.addresses["http"] for node in cluster.nodes.values()]
    ends, sessions = asyncio.Event(), []
    async with contextlib.AsyncExitStack() as clients:
        for number in range(2 * len(addresses)):
            at = number % len(addresses)
            servers = ",".join([*addresses[at:], *addresses[:at]])
            client = await clients.enter_async_context(bascule.connect(servers))
            sessions.append(Session(number, client.table("t"), checker))
        tasks = [asyncio.create_task(session.run(ends)) for session in sessions]
        await asyncio.sleep(2)
        await disturb(cluster)
        ends.set()
        await asyncio.gather(*tasks)
    return sessions


@pytest.mark.long
def test_sessions_see_their_writes_and_nothing_older_while_leaders_are_paused_and_killed(
    cluster: RunningCluster,
) -> None:
    with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
        client.create_table("t", replicas=3, min_isr=2)
    cluster.wait_in_sync("t")
    checker = SessionChecker()
    sessions = asyncio.run(run_sessions(cluster, checker))
    with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
        records = {
            message.offset: Written(message.key.decode().removeprefix("$KV.t."), message.value)
            for message in client.read("t")
            if message.key is not None
        }
    checker.check_log(records)
    assert min(session.reads for session in sessions) > 100, [vars(each) for each in sessions]
    assert min(session.writes for session in sessions) > 10
    assert sum(session.removals for session in sessions) > 5
