"""kill -9 at random moments, repeatedly: acked messages are stored, each message once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from support.processes import Node, running_nats
from support.raw_client import RawClient
from support.torture_load import STREAMS, Ledger, Load, read_on, starts_of

ROUNDS_USUAL = 4
LONG_LIFE = 12
"""One life in so many is long enough for retention to run. The stream of keys is compacted in none;
kill -9 within compaction is in `test_compacted_stream.py`."""


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
        whole(node, ledgers, rounds=rounds)


def live_and_die(
    node: Node, port: int, ledgers: list[Ledger], dice: random.Random, *, long: bool
) -> int:
    """Load until some time after the first acks; the number of acks."""
    load = Load(port, ledgers)
    load.start()
    deadline = time.monotonic() + 120
    while load.acks < 100 and load.is_alive():
        assert time.monotonic() < deadline, node.log.read_text()[-5_000:]
        time.sleep(0.005)
    time.sleep(dice.uniform(5, 8) if long else dice.uniform(0, 0.4))
    node.stop(signal.SIGKILL)
    load.stop()
    return load.acks


def check(node: Node, ledgers: list[Ledger]) -> None:
    """What is new since the last time, by a Kafka client, against what was sent and acked."""
    host, port = node.addresses["client"].rsplit(":", 1)
    with RawClient(host, int(port)) as client:
        for ledger in ledgers:
            starts = starts_of(node, ledger)
            read_on(client, ledger, starts)
            ledger.check(starts)
            assert ledger.refused == []


def whole(node: Node, ledgers: list[Ledger], *, rounds: int) -> None:
    """Everything once more from its start, after an orderly stop."""
    node.start()
    for ledger in ledgers:
        ledger.read_to.clear()
        ledger.found.clear()
        ledger.unchecked = list(ledger.acked)
    check(node, ledgers)
    by_name = {ledger.name: ledger for ledger in ledgers}
    assert len(by_name["ids"].found) >= len(by_name["ids"].acked) > 0
    starts, keys = starts_of(node, by_name["short"]), by_name["keys"]
    left = len(keys.acked.keys() & keys.found.keys())
    print(f"retention had moved the start to {starts[0]}; compaction left {left} records "
          f"of {len(keys.acked)} acked")  # fmt: skip
    if rounds >= 2 * LONG_LIFE:
        assert starts[0] > 0, "retention never ran"
    assert node.stop() == 0
    assert "Traceback" not in node.log.read_text()
