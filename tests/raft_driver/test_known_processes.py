"""Two processes with the number of one node: a plain restart is none, a copy of a directory is."""

from __future__ import annotations

import logging

import pytest

from bascule.errors import RemoteProtocolError
from bascule.raft_driver.handshake import TRIAL_SECONDS, KnownProcesses, RefusedProcess

NODE = 3
FIRST, SECOND, THIRD = 11, 22, 33


class Listener:
    """What a peer does with the connections of node 3; at most one is open."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processes = KnownProcesses()
        self.open: object | None = None

    def connect(self, incarnation: int) -> None:
        connection = object()
        self.processes.on_hello(NODE, incarnation, f"host:{incarnation}", self.now, connection)
        self.end()
        self.open = connection

    def end(self) -> None:
        if self.open is not None:
            self.processes.on_gone(NODE, self.open)
            self.open = None


def test_restarts_are_accepted_however_many() -> None:
    listener = Listener()
    for incarnation in range(1, 40):
        for _ in range(3):
            listener.connect(incarnation)
        listener.now += 0.01


def test_the_later_of_two_processes_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    listener = Listener()
    listener.connect(FIRST)
    listener.connect(SECOND)
    listener.connect(FIRST)
    with pytest.raises(RemoteProtocolError, match="is connected from host:11 already") as early:
        listener.connect(SECOND)
    assert not isinstance(early.value, RefusedProcess)
    listener.now += TRIAL_SECONDS
    for _ in range(2):
        with pytest.raises(RefusedProcess, match="another process of node 3 runs at host:11"):
            listener.connect(SECOND)
    (record,) = caplog.records
    assert (record.kept, record.refused) == ("host:11", "host:22")  # type: ignore[attr-defined]
    listener.connect(FIRST)
    listener.connect(THIRD)


def test_what_a_dead_process_has_sent_may_arrive_late() -> None:
    listener = Listener()
    listener.connect(FIRST)
    listener.connect(SECOND)
    listener.connect(FIRST)
    listener.end()
    listener.now += TRIAL_SECONDS
    listener.connect(SECOND)
    listener.now += TRIAL_SECONDS
    listener.connect(SECOND)


def test_a_third_process_ends_the_trial_of_the_first() -> None:
    listener = Listener()
    for incarnation in (FIRST, SECOND, FIRST, THIRD):
        listener.connect(incarnation)
    listener.now += TRIAL_SECONDS
    listener.connect(THIRD)


def test_a_process_of_a_removed_node_does_not_harm_who_has_its_number_now() -> None:
    listener = Listener()
    listener.connect(FIRST)
    listener.processes.on_removed(NODE)
    listener.connect(SECOND)
    listener.connect(FIRST)
    listener.connect(SECOND)
    listener.now += TRIAL_SECONDS
    with pytest.raises(RefusedProcess):
        listener.connect(FIRST)
    listener.connect(SECOND)
