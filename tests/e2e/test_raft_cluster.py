"""Raft in real processes: `examples/raft_kv.py` under kill -9, stops, joins and catch-up."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from bascule.host.real import RealRandom
from support.ports import reserve_ports
from support.raft_processes import KvCluster, KvNode, Line, running_cluster, until

WRITERS = 4
ROUNDS = 6


def test_a_group_elects_serves_and_comes_back(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        assert cluster.ask("put colour blue") == "ok"
        assert cluster.ask("get colour") == "ok blue"
        assert cluster.ask("cas colour red green") == "differs blue"
        assert cluster.ask("cas colour blue light green") == "ok"
        follower = cluster.followers()[0]
        assert follower.ask("put colour black") == f"not-leader {cluster.leader().number}"
        until(lambda: follower.ask("local colour") == "ok light green", "the follower applies")
        second = subprocess.run(follower.command(), capture_output=True, timeout=30)
        assert second.returncode == 1
        assert b"in use by process" in second.stderr, second.stderr
        for node in cluster.nodes.values():
            assert node.end() == 0, node.log.read_text()
        for node in cluster.nodes.values():
            node.start()
            node.wait_up()
        assert cluster.ask("get colour") == "ok light green"
        follower = cluster.followers()[0]
        follower.end()
        follower.start()
        follower.wait_up()
        number = cluster.leader().number
        told = f"raft leader changed group=1 leader={number} "
        until(lambda: follower.ask("put x y") == f"not-leader {number}", "it knows the leader")
        assert told in follower.log.read_text().rsplit("raft group opened", 1)[1]


class Writer(threading.Thread):
    """Appends numbers to its own key, one at a time, and notes what became of each."""

    def __init__(self, name: str, cluster: KvCluster, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.cluster = cluster
        self.stop = stop
        self.acked: list[int] = []
        self.unknown: set[int] = set()
        self.refused: set[int] = set()
        self._line: Line | None = None
        self._at = 0

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            answer = self._ask(f"append {self.name} {number}")
            word = answer.split()[0]
            if word == "ok":
                self.acked.append(number)
            elif word in ("not-leader", "again"):
                self.refused.add(number)
                self._go_to(int(answer.split()[1]) if word == "not-leader" else 0)
            else:
                self.unknown.add(number)
                self._go_to(0)
        self._go_to(0)

    def _ask(self, request: str) -> str:
        nodes = list(self.cluster.nodes.values())
        try:
            if self._line is None:
                self._at %= len(nodes)
                self._line = Line(nodes[self._at].client_port)
        except OSError:
            return "again not connected"
        try:
            return self._line.ask(request)
        except OSError as error:
            return f"unknown {error}"

    def _go_to(self, number: int) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        self._at = number - 1 if number else self._at + 1
        if not number:
            self.stop.wait(0.02)


class Reader(threading.Thread):
    """Reads the writers' keys, and holds each answer against what was acknowledged before it was
    asked, and against what was read before."""

    def __init__(self, writers: list[Writer], cluster: KvCluster, stop: threading.Event) -> None:
        super().__init__(name="reader", daemon=True)
        self.writers = writers
        self.cluster = cluster
        self.stop = stop
        self.reads = 0
        self.wrong = ""

    def run(self) -> None:
        seen: dict[str, list[str]] = {writer.name: [] for writer in self.writers}
        turn = 0
        while not self.stop.is_set() and not self.wrong:
            turn += 1
            writer = self.writers[turn % len(self.writers)]
            nodes = list(self.cluster.nodes.values())
            acked = list(writer.acked)
            answer = nodes[turn % len(nodes)].try_ask(f"get {writer.name}", timeout=10)
            if answer is None or answer.split()[0] not in ("ok", "none"):
                self.stop.wait(0.005)
                continue
            values = answer.split()[1:]
            self.reads += 1
            before = seen[writer.name]
            if values[: len(before)] != before:
                self.wrong = f"{writer.name}: read {before[-5:]} at {len(before)}, then {values}"
            elif missing := {str(number) for number in acked} - set(values):
                self.wrong = f"{writer.name}: acknowledged and not read: {sorted(missing)}"
            seen[writer.name] = values


def hold(writer: Writer, values: list[str]) -> None:
    """Every acknowledged append is there once, in order, and nothing else is but perhaps appends
    of unknown fate, once."""
    numbers = [int(value) for value in values]
    assert len(numbers) == len(set(numbers)), f"{writer.name}: something is there twice"
    acked = [number for number in numbers if number not in writer.unknown]
    assert acked == writer.acked, f"{writer.name}: {sorted(set(acked) ^ set(writer.acked))}"
    assert not writer.refused & set(numbers), f"{writer.name}: what was refused is there"


def disturb(victim: KvNode, dice: RealRandom, how: str) -> None:
    if how == "stop":
        victim.send(signal.SIGSTOP)
        time.sleep(dice.uniform(0.1, 1.5))
        victim.send(signal.SIGCONT)
    else:
        victim.end(signal.SIGKILL)
        time.sleep(dice.uniform(0, 1.2))
        victim.start()


@pytest.mark.timeout(600)
def test_what_was_acknowledged_is_there_once(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    rounds = pytestconfig.getoption("rounds") or ROUNDS
    seed = pytestconfig.getoption("seed")
    seed = 5 if seed is None else seed
    dice = RealRandom(seed)
    with running_cluster(tmp_path, "--commit-count", "300") as cluster:
        cluster.leader()
        stop = threading.Event()
        writers = [Writer(f"writer-{n}", cluster, stop) for n in range(WRITERS)]
        reader = Reader(writers, cluster, stop)
        for thread in [*writers, reader]:
            thread.start()
        for number in range(rounds):
            time.sleep(dice.uniform(0.2, 0.8))
            followers = cluster.followers()
            leader = next(node for node in cluster.nodes.values() if node not in followers)
            victim = leader if number % 2 == 0 else followers[int(dice.uniform(0, len(followers)))]
            if number % 5 == 4:
                for node in cluster.nodes.values():
                    node.send(signal.SIGKILL)
                for node in cluster.nodes.values():
                    node.end(signal.SIGKILL)
                    node.start()
            else:
                disturb(victim, dice, "stop" if number % 3 == 2 else "kill")
            for node in cluster.nodes.values():
                node.wait_up()
        cluster.leader()
        time.sleep(0.5)
        stop.set()
        for thread in [*writers, reader]:
            thread.join(30)
        assert not reader.wrong, f"seed {seed}: {reader.wrong}"
        assert reader.reads > rounds
        for writer in writers:
            assert len(writer.acked) > rounds, "hardly anything was written"
            hold(writer, cluster.ask(f"get {writer.name}").split()[1:])
        print(f"\n{sum(len(w.acked) for w in writers)} acknowledged, {reader.reads} reads, "
              f"{sum(len(w.unknown) for w in writers)} unknown, seed {seed}")  # fmt: skip


@pytest.mark.long
def test_nodes_join_are_promoted_lead_and_leave(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--commit-count", "50") as cluster:
        for number in range(120):
            assert cluster.ask(f"put key-{number % 7} {number}") == "ok"
        peer_port, client_port = reserve_ports(2)
        peers = {**cluster.nodes[1].peers, 4: peer_port}
        joiner = KvNode(4, peers, client_port, tmp_path, ("--commit-count", "50", "--join"))
        joiner.start()
        joiner.wait_up()
        assert json.loads(joiner.ask("members").removeprefix("members ")) == [[], [], 0]
        assert cluster.ask(f"add-learner 4 127.0.0.1:{peer_port}").startswith("ok")
        until(lambda: joiner.try_ask("local key-0") == "ok 119", "the learner has it all")
        report = joiner.report()
        assert report is not None
        assert report["snapshots_installed"] == 1, "it was to come by a snapshot"
        assert report["members"][:2] == [[1, 2, 3], [4]]
        assert cluster.ask(f"add-voter 4 127.0.0.1:{peer_port}").startswith("ok")
        assert cluster.ask("transfer 4") == "ok 4"
        cluster.nodes[4] = joiner
        assert cluster.leader() is joiner
        assert cluster.ask("remove 1").startswith("ok")
        cluster.nodes.pop(1).end()
        assert cluster.ask("put after removal") == "ok"
        joiner.end(signal.SIGKILL)
        assert cluster.ask("get after") == "ok removal", "two of three are a majority"
        joiner.start()
        joiner.wait_up()
        until(lambda: joiner.try_ask("local after") == "ok removal", "it is back")


@pytest.mark.long
def test_a_node_that_was_away_is_caught_up_by_a_snapshot(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--commit-count", "100") as cluster:
        assert cluster.ask("put first 1") == "ok"
        away = cluster.followers()[0]
        away.end(signal.SIGKILL)
        leader = cluster.leader()
        for number in range(500):
            assert leader.ask(f"put key-{number} {number}") == "ok"
        away.start()
        away.wait_up()
        until(lambda: away.try_ask("local key-499") == "ok 499", "it has it all")
        assert away.ask("local first") == "ok 1"
        report = away.report()
        assert report is not None
        assert report["snapshots_installed"] == 1
        assert report["log"]["last"] - report["log"]["first"] < 250, "the log stays short"
        away.end(signal.SIGKILL)
        away.start()
        away.wait_up()
        until(lambda: away.try_ask("local key-123") == "ok 123", "the snapshot is on its disk")


@pytest.mark.parametrize("reads", ["by rounds", "by lease"])
def test_a_leader_that_was_stopped_serves_nothing_old(tmp_path: Path, reads: str) -> None:
    with running_cluster(tmp_path, *(["--lease"] if reads == "by lease" else [])) as cluster:
        assert cluster.ask("put key old") == "ok"
        stopped = cluster.leader()
        waiting = Line(stopped.client_port, timeout=30)
        assert waiting.ask("get key") == "ok old"
        others = KvCluster({n: node for n, node in cluster.nodes.items() if node is not stopped})
        stopped.send(signal.SIGSTOP)
        assert others.ask("put key new") == "ok"
        # The request is there before the process wakes, and so before anything tells it the news.
        waiting.send("get key")
        stopped.send(signal.SIGCONT)
        answer = waiting.receive()
        waiting.close()
        assert answer.split()[0] in ("not-leader", "again") or answer == "ok new", answer
        until(lambda: stopped.try_ask("local key") == "ok new", "it follows")


def test_a_node_whose_disk_fails_stops_and_the_others_go_on(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        assert cluster.ask("put key 1") == "ok"
        failing = cluster.leader()
        # From here on a write beyond 512 KiB into a file fails (EFBIG): SQLite's log gets there.
        assert failing.process is not None
        resource.prlimit(failing.process.pid, resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
        value = "x" * 2_000
        others = KvCluster({n: node for n, node in cluster.nodes.items() if node is not failing})
        acked = []
        for number in range(400):
            answer = failing.try_ask(f"put big-{number} {value}")
            if answer == "ok":
                acked.append(number)
            if not failing.is_running:
                break
        assert failing.process.wait(20) == 1
        assert b"raft store failed" in failing.log.read_bytes()
        assert len(acked) > 5
        for number in acked:
            assert others.ask(f"get big-{number}") == f"ok {value}"
        failing.start()
        failing.wait_up()
        until(lambda: failing.try_ask(f"local big-{acked[-1]}") == f"ok {value}", "it is back")


def test_a_leader_that_stops_on_purpose_hands_over(tmp_path: Path) -> None:
    # With an election timeout of 10 s nobody is elected in time but by a transfer.
    with running_cluster(tmp_path, "--tick-ms", "1000") as cluster:
        assert cluster.ask("put key 1") == "ok"
        leader = cluster.leader()
        term = leader.report()["term"]  # type: ignore[index]
        leader.end()
        began = time.monotonic()
        assert cluster.ask("put key 2") == "ok"
        assert cluster.leader().report()["term"] == term + 1  # type: ignore[index]
        print(f"\nanother leads after {time.monotonic() - began:.2f} s")
