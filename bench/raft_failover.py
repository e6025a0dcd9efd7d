"""The time without writes after a Raft leader is killed.

Three processes of `examples/raft_kv.py` with their SQLite stores, election timeout 500 ms (10 ticks
of 50 ms; a follower waits 500 to 1,000 ms by dice). The leader is killed with -9, a client asks the
others to write, again and again, and the time from the kill to the first `ok` is measured: that
write is committed and applied then. Half of the kills come in the middle of writes, half when the
group has been quiet for so long that it rests (`bascule.raft.multi`). The killed node starts again
and catches up before the next kill.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import Running, report, row, work_directory

NODES: Final = 3
ROUNDS: Final = 30
ELECTION_TIMEOUT_MS: Final = 500
TICK_MS: Final = 50
RETRY_S: Final = 0.005
QUIET_S: Final = 1.5
"""A group hibernates after an election timeout without activity."""
BAR_S: Final = 1.0
EXAMPLE: Final = Path(__file__).resolve().parents[1] / "examples" / "raft_kv.py"


class KvNode(Running):
    """A process of the example, started again over its directory after a kill."""

    def __init__(self, number: int, peers: str, client_port: int, directory: Path) -> None:
        self.number = number
        self.client_port = client_port
        self._directory = directory
        self._command = [
            sys.executable, str(EXAMPLE), "--id", str(number), "--peers", peers,
            "--client", f"127.0.0.1:{client_port}", "--data", str(directory / f"kv-{number}"),
            "--tick-ms", str(TICK_MS),
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        with (self._directory / f"kv-{self.number}.log").open("ab") as output:
            super().__init__(subprocess.Popen(self._command, stdout=output, stderr=output))

    def ask(self, request: str) -> str:
        """The answer; empty where there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.client_port), timeout=5) as sock:
                sock.sendall(request.encode() + b"\n")
                return sock.makefile().readline().strip()
        except OSError:
            return ""


def until(look: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(RETRY_S)
    return found


def first_to_write(nodes: list[KvNode], value: str) -> KvNode | None:
    """The node that committed a write, if one of them did."""
    for node in nodes:
        if node.ask(f"put key {value}").startswith("ok"):
            return node
    return None


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[list[KvNode]]:
    with contextlib.ExitStack() as open_ones:
        ports = []
        for _ in range(2 * NODES):
            one = open_ones.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(one.getsockname()[1])
    peers = ",".join(f"{at + 1}=127.0.0.1:{ports[at]}" for at in range(NODES))
    nodes = [KvNode(at + 1, peers, ports[NODES + at], directory) for at in range(NODES)]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def last_of(node: KvNode) -> tuple[int, int]:
    """(last index, commit) of a node's log."""
    answer = node.ask("report")
    if not answer:
        return 0, 0
    log = json.loads(answer.removeprefix("report "))["log"]
    return log["last"], log["commit"]


def fail_over(nodes: list[KvNode], leader: KvNode, *, quiet: bool) -> tuple[float, KvNode]:
    """Kill the leader; seconds until another commits, and that node. All are well on return."""
    if quiet:
        time.sleep(QUIET_S)
    else:
        for number in range(20):
            assert leader.ask(f"put key {number}") == "ok"
    others = [node for node in nodes if node is not leader]
    began = time.monotonic()
    leader.process.send_signal(signal.SIGKILL)
    after: KvNode = until(lambda: first_to_write(others, "after"), "a new leader commits")
    taken = time.monotonic() - began
    leader.process.wait(30)
    leader.start()
    until(lambda: last_of(leader) == last_of(after), "the killed node catches up")
    return taken, after


def run(*, quick: bool = False) -> None:
    rounds = 6 if quick else ROUNDS
    with work_directory() as directory, cluster(directory) as nodes:
        leader: KvNode = until(lambda: first_to_write(nodes, "first"), "a first leader")
        busy, quiet = [], []
        for number in range(rounds):
            seconds, leader = fail_over(nodes, leader, quiet=bool(number % 2))
            (quiet if number % 2 else busy).append(seconds)
    taken = busy + quiet
    measured = {
        "value": round(statistics.median(taken), 3),
        "median_busy": round(statistics.median(busy), 3),
        "median_at_rest": round(statistics.median(quiet), 3),
        "min": round(min(taken), 3),
        "max": round(max(taken), 3),
        "rounds": [round(value, 3) for value in taken],
        "election_timeout_ms": ELECTION_TIMEOUT_MS,
    }
    report(
        "raft_failover",
        [row("leader killed with -9 to first new commit, s", measured, at_most=BAR_S)],
    )
