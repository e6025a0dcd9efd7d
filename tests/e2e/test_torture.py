"""kill -9 at any moment, again and again: nothing acked is lost, nothing is there twice."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from raw_client import RawClient
from running import Node, running_nats
from torture_load import STREAMS, Ledger, Load, read_on, starts_of

ROUNDS_USUAL = 4
LONG_LIFE = 12
"""One life in so many is long enough for checkpoints, retention and compaction to run."""


def test_kill_9_at_any_moment(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """`make torture` does this 200 times and more, with another seed each time."""
    rounds = request.config.getoption("--rounds") or ROUNDS_USUAL
    seed = request.config.getoption("--seed") or 7
    print(f"seed {seed}")
    dice = random.Random(seed)
    ledgers = [Ledger(name) for name in STREAMS]
    with running_nats(tmp_path / "nats") as server:
        node = Node(tmp_path, nats=server.url)
        node.start()
        for name, config in STREAMS.items():
            node.create(name, f"{name}.*", **config)
        began, acks = time.monotonic(), 0
        for number in range(1, rounds + 1):
            acks += live_and_die(node, server.port, ledgers, dice, long=number % LONG_LIFE == 0)
            if dice.random() < 0.1:
                node.spawn(tmp_path / "never.json")
                time.sleep(dice.uniform(0.1, 0.9))
                node.stop(signal.SIGKILL)  # in the middle of opening its logs, maybe
            node.start()
            check(node, ledgers)
            print(f"round {number}: {acks} acks, {time.monotonic() - began:.0f} s", flush=True)
        assert acks > 100 * rounds
        assert node.stop() == 0
        whole(node, ledgers)


def live_and_die(
    node: Node, port: int, ledgers: list[Ledger], dice: random.Random, *, long: bool
) -> int:
    """Load until some time after the first acks; the number of acks."""
    load = Load(port, ledgers)
    load.start()
    deadline = time.monotonic() + 30
    while load.acks < 100 and load.is_alive():
        assert time.monotonic() < deadline, node.log.read_text()[-5_000:]
        time.sleep(0.005)
    time.sleep(dice.uniform(5, 8) if long else dice.uniform(0, 0.4))
    node.stop(signal.SIGKILL)
    load.stop()
    return load.acks


def check(node: Node, ledgers: list[Ledger]) -> None:
    """What is new since the last time, by a Kafka client, against what was sent and acked."""
    host, port = node.doors["client"].rsplit(":", 1)
    with RawClient(host, int(port)) as client:
        for ledger in ledgers:
            starts = starts_of(node, ledger)
            read_on(client, ledger, starts)
            ledger.check(starts)
            assert ledger.refused == []


def whole(node: Node, ledgers: list[Ledger]) -> None:
    """Everything once more from its start, after an orderly stop."""
    node.start()
    for ledger in ledgers:
        ledger.read_to.clear()
        ledger.found.clear()
        ledger.unchecked = list(ledger.acked)
    check(node, ledgers)
    starts = starts_of(node, next(ledger for ledger in ledgers if ledger.name == "short"))
    ids = next(ledger for ledger in ledgers if ledger.name == "ids")
    assert len(ids.found) >= len(ids.acked) > 0
    print(f"retention had moved the start to {starts[0]}")
    assert node.stop() == 0
    assert "Traceback" not in node.log.read_text()
