"""Random kills, elections and ISR changes under acked load: nothing acked is lost."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from bascule.model import NO_LEADER, StreamConfig
from support.replica_group import message
from support.replica_nodes import ReplicaNodes, wait_until
from support.stored_batches import read_records

SEEDS = range(int(os.environ.get("REPLICATION_SEEDS", "3")))
STEPS = 60


class Torture:
    """A controller that decides at random, within its rules."""

    def __init__(self, group: ReplicaNodes, seed: int) -> None:
        self.group = group
        self.random = random.Random(seed)
        self.sent = 0
        self.stale: set[int] = set()
        """Nodes that were not told of the last change."""

    @property
    def alive(self) -> list[int]:
        return [n for n, node in self.group.nodes.items() if node.is_running]

    def publish(self) -> None:
        """At every node: only the leader appends, and an old one cannot commit."""
        node = self.random.choice(self.alive)
        for _ in range(self.random.randrange(1, 30)):
            inbox = b"m.%d" % self.sent
            self.sent += 1
            batch = message(inbox, self.random.choice((1, 1, 7)), value=inbox)
            self.group.nodes[node].writer.append(self.group.partition(node), [batch])

    def tell(self) -> None:
        self.group.tell(*self.alive)
        self.stale.clear()

    def change(self, *, hide_from: int | None = None, **changes: object) -> None:
        """Decide, and tell everybody, or all but one."""
        told = [n for n in self.alive if n != hide_from]
        self.group.apply(*told, **changes)
        if hide_from is not None:
            self.stale.add(hide_from)

    def elect(self, *, tells_old: bool = True) -> None:
        state = self.group.states[0]
        chosen = [n for n in state.isr if n in self.alive and n != state.leader]
        old = state.leader
        if not chosen and old in self.alive and old in self.stale:
            chosen = [old]  # a new incarnation of the only member of the ISR
        if not chosen:
            if old not in self.alive:
                self.change(leader=NO_LEADER, leader_epoch=state.leader_epoch + 1)
            return
        leader = self.random.choice(chosen)
        isr = tuple(n for n in state.isr if n == leader or n != old)
        hidden = None if tells_old or old not in self.alive else old
        self.change(hide_from=hidden, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)

    def kill(self) -> None:
        node = self.random.choice(self.alive)
        if len(self.alive) == 1:
            return
        self.group.nodes[node].stop(kill=True)
        self.stale.discard(node)
        if self.group.states[0].leader == node:
            self.elect()

    def restart(self) -> None:
        dead = [n for n in self.group.nodes if n not in self.alive]
        if not dead:
            return
        node = self.random.choice(dead)
        self.group.start(node)
        state = self.group.states[0]
        if state.leader in (NO_LEADER, node) and node in state.isr:
            epoch = state.leader_epoch + 1
            isr = (node,) if state.leader == node else state.isr
            self.change(leader=node, leader_epoch=epoch, isr=isr)
        else:
            self.group.tell(node)

    def change_isr(self, *, always_commits: bool = False) -> None:
        state = self.group.states[0]
        if state.leader not in self.alive or state.leader in self.stale:
            return
        leader = self.group.nodes[state.leader]
        for wanted in leader.wanted_isrs():
            commitment = wanted.partition.commitment
            if not commitment.on_isr_proposed(wanted.isr, wanted.state):
                continue
            epochs = {n: self.group.nodes[n].node_epoch for n in wanted.node_epochs}
            is_stale = any(epochs[n] != e for n, e in wanted.node_epochs.items())
            if (
                wanted.state != state
                or is_stale
                or (not always_commits and self.random.random() < 0.2)
            ):
                leader._send(commitment.on_isr_failed(wanted.state) or b"")
            else:
                self.change(isr=wanted.isr)

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.4:
            self.publish()
        elif draw < 0.5:
            self.kill()
        elif draw < 0.65:
            self.restart()
        elif draw < 0.75:
            self.elect(tells_old=self.random.random() < 0.5)
        elif draw < 0.9:
            self.change_isr()
        else:
            self.tell()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acked_is_lost(tmp_path: Path, seed: int) -> None:
    config = StreamConfig(subject="s.>", replicas=3, segment_bytes_max=20_000)
    with ReplicaNodes(tmp_path, config, lag_ms_max=50) as group:
        torture = Torture(group, seed)
        group.apply()
        for _ in range(STEPS):
            torture.step()
            # Let some of it get through: the next event comes at any point of a replication.
            time.sleep(torture.random.random() * torture.random.choice((0.0, 0.005, 0.05)))
        while len(torture.alive) < 3:
            torture.restart()
        torture.tell()
        if group.states[0].leader == NO_LEADER:
            torture.elect()

        def is_whole() -> bool:
            torture.change_isr(always_commits=True)
            return len(group.states[0].isr) == 3

        wait_until(is_whole)
        leader = group.states[0].leader
        last = message(b"last", value=b"last")
        group.nodes[leader].writer.append(group.partition(leader), [last])
        group.wait_acks(leader, ["last"])
        group.wait_equal(1, 2, 3)
        store = group.partition(leader).log
        assert store is not None
        stored = {record.offset: record.value for record in read_records(store)}
        acked = 0
        for node in group.nodes.values():
            for inbox, ack in node.received_acks().items():
                if "error" not in ack:
                    offset = ack["offset"]
                    assert isinstance(offset, int)
                    assert stored[offset] == inbox.encode(), f"{inbox} is not at offset {offset}"
                    acked += 1
        assert acked
