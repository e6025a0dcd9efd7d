"""Commits of many members from one thread, which costs little beside the server's work.

Each member has a connection with one commit under way. All have the same rate.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

ANSWER_BYTES_MAX: Final = 4_096
ANSWER_SECONDS_MAX: Final = 60.0
CORRELATION_AT: Final = 8
"""Of a request; that of a response is behind its size."""


class Committer(NamedTuple):
    """One member: its own connection, its commit and what it is answered, without errors."""

    socket: socket.socket
    frame: bytearray
    answer: bytes
    """Behind the correlation id."""

    @classmethod
    def open(cls, address: str, frame: bytes) -> Committer:
        """Connect, and commit once. The caller checks the answer."""
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(frame)
        return cls(connection, bytearray(frame), connection.recv(ANSWER_BYTES_MAX)[8:])


def commit_at_rate(
    committers: Sequence[Committer], *, rate: float, seconds: float
) -> tuple[int, float]:
    """Commit `rate` times a second together; return how many were answered, and in how many
    seconds. Who waits longest for its turn is the next."""
    turns = deque(committers)
    by_socket = {each.socket.fileno(): each for each in committers}
    poll = select.epoll()
    for number in by_socket:
        poll.register(number, select.EPOLLIN)
    began, sent, answered, count = time.monotonic(), 0, 0, int(rate * seconds)
    while answered < count:
        due = min(count, int((time.monotonic() - began) * rate) + 1)
        while sent < due and turns:
            member = turns.popleft()
            struct.pack_into(">i", member.frame, CORRELATION_AT, sent)
            member.socket.send(member.frame)
            sent += 1
        events = poll.poll(1 / rate if turns and sent < count else ANSWER_SECONDS_MAX)
        if not events and not turns:
            raise TimeoutError(f"a commit is not answered after {ANSWER_SECONDS_MAX} s")
        for number, _ in events:
            member = by_socket[number]
            answer = member.socket.recv(ANSWER_BYTES_MAX)
            if answer[8:] != member.answer:
                raise ValueError(f"expected {member.answer!r}, got {answer[8:]!r}")
            answered += 1
            turns.append(member)
    poll.close()
    return answered, time.monotonic() - began
