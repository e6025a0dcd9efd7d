"""Histories of reads and writes of a table are linearizable, whatever happens to its leader."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Iterator

import httpx

import bascule
from bascule.client.client import Client
from bascule.errors import BasculeError, WrongVersion
from bascule.sim.checkers.history import (
    ClientOperation,
    OperationKind,
    OperationResult,
    OperationStatus,
)
from bascule.sim.checkers.linearizability import Linearizability
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
