"""CPU and memory of a node that coordinates a thousand groups of the consumer protocol, idle."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from bascule.wire.connection import NEED_DATA, ClientConnection
from bascule.wire.messages.group.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from bench.harness import Node, node, report, row, work_directory

MEMBERS = 3
INTERVAL_SECONDS = 5.0
MEASURED_SECONDS = 30.0
QUICK_SECONDS = 10.0


class Member:
    """One member on a connection of its own."""

    def __init__(self, address: str, group: str, name: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.connection = ClientConnection(client_id="bench", frame_bytes_max=1 << 20)
        self.group, self.name, self.epoch = group, name, 0
        self.owned: Any = []
        self.goal: Any = None

    def send(self) -> None:
        request = ConsumerGroupHeartbeatRequest(self.group, self.name, self.epoch)
        if self.epoch == 0:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names = ["flights"]
            request.topic_partitions = []
        elif self.goal is not None:
            request.topic_partitions = self.goal
            self.goal = None
        self.socket.sendall(self.connection.send(request, version=1))

    def receive(self) -> bool:
        """Whether the answer is complete."""
        count = self.socket.recv_into(self.connection.get_buffer())
        self.connection.received(count)
        event = self.connection.next_event()
        if event is NEED_DATA:
            return False
        answer: Any = event.message  # type: ignore[union-attr]
        assert not answer.error_code, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.goal = answer.assignment.topic_partitions
        return True


def share_of(running: Node, work: Callable[[], None]) -> float:
    """CPU of the node while `work` runs, in cores."""
    before, began = running.cpu_seconds(), time.monotonic()
    work()
    return (running.cpu_seconds() - before) / (time.monotonic() - began)


def beat(members: list[Member], seconds: float) -> None:
    """Heartbeats of all members, spread over each interval."""
    selector = selectors.DefaultSelector()
    for member in members:
        selector.register(member.socket, selectors.EVENT_READ, member)
    start, sent = time.monotonic(), 0
    while (passed := time.monotonic() - start) < seconds:
        while sent < passed / INTERVAL_SECONDS * len(members):
            members[sent % len(members)].send()
            sent += 1
        for key, _ in selector.select(0.005):
            key.data.receive()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        for key, _ in selector.select(0.1):
            key.data.receive()
    selector.close()


def run(*, quick: bool = False) -> None:
    count = 200 if quick else 1_000
    seconds = QUICK_SECONDS if quick else MEASURED_SECONDS
    with work_directory() as directory, node(directory) as running:
        running.create("flights", "flights.*", partitions=MEMBERS)
        time.sleep(2)
        empty = running.resident_mb()
        address = running.addresses["client"]
        members = [
            Member(address, f"group-{n}", f"member-{n}-{m}")
            for m in range(MEMBERS)
            for n in range(count)
        ]
        connected = running.resident_mb()
        silent = share_of(running, lambda: time.sleep(QUICK_SECONDS))
        for _ in range(4):
            beat(members, INTERVAL_SECONDS)
        share = share_of(running, lambda: beat(members, seconds))
        full = running.resident_mb()
        epochs = {member.epoch for member in members}
        assert len(epochs) == 1, "all members of a group are settled"
    report(
        "idle_groups",
        [
            row(f"{count} idle groups of {MEMBERS} members: CPU of the node, share of a core",
                {"value": round(share, 4), "without_members": round(silent, 4)}, at_most=0.1),
            row(f"{count} idle groups of {MEMBERS} members: memory, MB",
                {"value": round(full - connected, 1), "connections": round(connected - empty, 1)}),
        ],
    )  # fmt: skip
